import type { Access, Read, Write } from './history.js'
import { clip } from './printout.js'

/** The name of a step as in the printout: `alice 2`. */
export const stepName = ({ unit, number }: Access): string => `${unit} ${number}`

/** `row 'lamp' of stock`; of several rows, the table. */
export function describeRows({ table, keys }: Pick<Read | Write, 'table' | 'keys'>): string {
  if (keys?.size !== 1) return table
  const [key] = keys
  const parts = (JSON.parse(key as string) as string[]).map((part) =>
    /^-?\d+$/.test(part) ? part : `'${clip(part.replace(/\s+/g, ' '), 24)}'`,
  )
  return `row ${parts.join(', ')} of ${table}`
}

export function enumerate(words: readonly string[]): string {
  return words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} and ${words.at(-1)}`
}
