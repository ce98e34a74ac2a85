import { createHash } from 'node:crypto'
import { mkdir, writeFile } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'

export interface PageOrder {
  /** The file, if the options name one. */
  readonly page: string | undefined
  /** Its name in the folder of the environment, where the report is worth a page there. */
  readonly name: string | false
  readonly render: () => string
}

/** Where it is; or why it could not be written. */
export type WrittenPage =
  | { readonly page: string; readonly line: string }
  | { readonly note: string; readonly line: string }

/**
 * Writes the page of a report where the options, or for what went wrong the environment, say so; undefined: nobody does. If
 * it cannot be written, a note tells, and the report stands: what was found must not be lost for want of a page.
 */
export async function writePage({ page, name, render }: PageOrder): Promise<WrittenPage | undefined> {
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

/** The same finding has the same name in every run, and another finding another one. */
export function pageName(words: string, signs: readonly string[]): string {
  const harmless = words.replace(/[^\p{L}\p{N}-]+/gu, '_').slice(0, 60)
  return `${harmless}-${createHash('sha256').update(signs.join('\n')).digest('hex').slice(0, 8)}.html`
}
