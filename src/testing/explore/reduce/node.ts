import { isRecord, quoteIfNeeded } from '../statements/tree-names.js'

/** A node of libpg-query's JSON: one key, which is its kind. */
export type Node = Readonly<Record<string, unknown>>

/** What is inside a node of this kind; undefined for any other. */
export function inside(node: unknown, kind: string): Node | undefined {
  const found = isRecord(node) ? node[kind] : undefined
  return isRecord(found) ? found : undefined
}

export const list = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : [])

/** The parts of a name that is given as a list of strings; `undefined` stands for `*`. */
export const names = (value: unknown): readonly (string | undefined)[] =>
  list(value).map((part) => {
    const text = inside(part, 'String')
    return text && `${text.sval ?? ''}`
  })

/** A table as a RangeVar names it, written as the catalog is asked for it. */
export const tableName = ({ schemaname, relname }: Node): string =>
  [schemaname, relname].flatMap((part) => (part ? [quoteIfNeeded(`${part}`)] : [])).join('.')
