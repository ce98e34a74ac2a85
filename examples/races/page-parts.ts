import { kvTable } from './kv.js'

/** The text of a file of this folder. */
export type Read = (file: string) => string

/** As GitHub makes them. */
export const anchorOf = (title: string): string =>
  title
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(' ', '-')

export const helpers = (read: Read): string => `<details>
<summary>What the code uses: <code>inTransaction</code>, and <code>kv</code>, a key-value store of one table</summary>

${code(regionOf(read('in-transaction.ts'), 'inTransaction'))}

${code(regionOf(read('kv.ts'), 'kv'))}

</details>`

/** All but the key-value store, which is shown once. */
export function tablesOf({ tables }: { readonly tables: string }): string[] {
  const own = undent(tables)
    .split('\n')
    .filter((line) => !line.startsWith(kvTable))
  return own.length > 0 ? [block('sql', own.join('\n'))] : []
}

export const block = (language: string, text: string): string => `\`\`\`${language}\n${text}\n\`\`\``
export const code = (text: string | undefined): string => block('ts', text ?? '')

/** What stands between `// #region name` and the next `// #endregion`. */
export function regionOf(text: string, name: string): string | undefined {
  const start = text.split(`// #region ${name}\n`)[1]
  return start
    ?.split('// #endregion')[0]
    ?.trimEnd()
    .replace(/^export /gm, '')
}

/** Without the indentation that it has in the source; a line that continues another stays indented by two. */
const undent = (sql: string): string =>
  sql
    .trim()
    .split('\n')
    .map((line) => line.trim().replace(/^(?!create )/, '  '))
    .join('\n')

export const capitalized = (name: string): string => `${name.charAt(0).toUpperCase()}${name.slice(1)}`
