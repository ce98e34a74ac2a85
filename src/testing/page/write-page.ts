import { createHash } from 'node:crypto'
import { mkdir, writeFile } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'

export interface PageRequest {
  /** The file that the options name. */
  readonly page: string | undefined
  /** The file's name in the folder `DIBS_REPORT`. False: the report needs no page there. */
  readonly name: string | false
  readonly render: () => string
}

/** The file of the page, or a note why there is none. `line` is for the printout. */
export type WrittenPage =
  | { readonly page: string; readonly line: string }
  | { readonly note: string; readonly line: string }

/**
 * Writes the page of a report to the file of the options, or to the folder `DIBS_REPORT`. Returns undefined if neither is given.
 * A page that cannot be written becomes a note, because the report must not be lost.
 */
export async function writePage({ page, name, render }: PageRequest): Promise<WrittenPage | undefined> {
  const folder = process.env.DIBS_REPORT
  const path = page ?? (folder && name ? join(folder, name) : undefined)
  if (path === undefined) return undefined
  const target = resolve(path)
  try {
    await mkdir(dirname(target), { recursive: true })
    await writeFile(target, render())
  } catch (error) {
    const note = `The page could not be written: ${(error as Error).message}`
    return { note, line: `Note: ${note}` }
  }
  return { page: target, line: `Page: ${target}` }
}

/** A file name that is the same for the same finding in every run. */
export function pageName(words: string, signs: readonly string[]): string {
  const harmless = words.replace(/[^\p{L}\p{N}-]+/gu, '_').slice(0, 60)
  return `${harmless}-${createHash('sha256').update(signs.join('\n')).digest('hex').slice(0, 8)}.html`
}
