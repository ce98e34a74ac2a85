import { kvTable } from './kv.js'
import type { Pattern, PatternVariant } from './pattern.js'

/** The text of a file of this folder. */
export type Read = (file: string) => string

/** As GitHub makes them. */
const anchorOf = (title: string): string =>
  title
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(' ', '-')

/** One line for each. */
export const contentsOf = (patterns: readonly Pick<Pattern<PatternVariant>, 'title' | 'line'>[]): string =>
  patterns.map(({ title, line }) => `- [${title}](#${anchorOf(title)}): ${line}`).join('\n')

export interface SectionOptions {
  /** Its file in this folder. */
  readonly file: string
  /** Of its heading: `##`. */
  readonly level: string
  /** What was said of each variant. */
  readonly said: readonly string[]
  readonly read: Read
}

/** A pattern with its variants, and what was said of them. */
export function printSection(
  pattern: Pattern<PatternVariant>,
  { file, level, said, read }: SectionOptions,
): string {
  const text = read(file)
  const shared = regionOf(text, 'shared')
  return [
    `${level} ${pattern.title}`,
    pattern.claim,
    ...tablesOf(pattern),
    ...(shared ? [code(shared)] : []),
    ...pattern.variants.flatMap((variant, n) => {
      const what = said[n]
      if (what === undefined)
        throw new Error(`${file}, ${variant.name}: it was not tried. Run all tests of the page.`)
      const isLast = n === pattern.variants.length - 1
      return [
        `${level}# ${variant.title ?? capitalized(variant.name)}`,
        code(regionOf(text, variant.name)),
        block('', what),
        variant.text ?? (isLast ? pattern.remedy : n === 0 ? pattern.fault : ''),
      ].filter((part) => part !== '')
    }),
    `<sub>[examples/races/${file}](../examples/races/${file})</sub>`,
  ].join('\n\n')
}

export const helpers = (read: Read): string => `<details>
<summary>What the code uses: <code>inTransaction</code>, and <code>kv</code>, a key-value store of one table</summary>

${code(regionOf(read('in-transaction.ts'), 'inTransaction'))}

${code(regionOf(read('kv.ts'), 'kv'))}

</details>`

/** All but the key-value store, which is shown once. */
function tablesOf({ tables }: { readonly tables: string }): string[] {
  const own = undent(tables)
    .split('\n')
    .filter((line) => !line.startsWith(kvTable))
  return own.length > 0 ? [block('sql', own.join('\n'))] : []
}

const block = (language: string, text: string): string => `\`\`\`${language}\n${text}\n\`\`\``
const code = (text: string | undefined): string => block('ts', text ?? '')

/** What stands between `// #region name` and the next `// #endregion`. */
function regionOf(text: string, name: string): string | undefined {
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

const capitalized = (name: string): string => `${name.charAt(0).toUpperCase()}${name.slice(1)}`
