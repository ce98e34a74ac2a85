import { childOf, lastPart, listOf, type Node, nameParts } from '../statements/parse-tree.js'
import type { TableInfo } from '../statements/schema-info.js'

/** Collects the columns and tables that a statement names. */
export class ColumnUse {
  /** The tables of the statement, by name. */
  readonly tables = new Map<string, TableInfo>()
  /** The aliases of its tables, or their names. */
  readonly aliases = new Set<string>()
  /** True if the statement names all columns of some table, by a star. */
  #hasStar = false
  readonly #columns = new Set<string>()
  /** Columns that the statement names together with their table. */
  readonly #qualified = new Set<string>()
  /** Names that the statement itself introduces for columns and tables. */
  readonly #newNames = new Set<string>()

  addColumnRef({ fields }: Node): void {
    const column = lastPart(fields)
    this.#hasStar ||= JSON.stringify(fields).includes('"A_Star"')
    if (column === undefined) return
    this.#columns.add(column)
    if (listOf(fields).length > 1) this.#qualified.add(column)
  }

  addNewName(name: unknown): void {
    this.#newNames.add(`${name}`)
  }

  /** Adds the names that `as t (a, b)` introduces, after any kind of node. */
  addAliasOf(node: Node): void {
    const alias = childOf(node, 'alias')
    const names = alias ? [alias.aliasname, ...nameParts(alias.colnames)] : []
    for (const name of [...names, ...nameParts(node.aliascolnames)]) this.addNewName(name)
  }

  /** A qualified name that is not a known column: `a.fields` may be a call of a function with the row. */
  get unknownColumn(): string | undefined {
    const known = new Set([...this.tables.values()].flatMap(({ columns }) => columns.map(({ name }) => name)))
    return [...this.#qualified].find((name) => !known.has(name) && !this.#newNames.has(name))
  }

  /** Tables with a temporal column that the statement reads. */
  get timeReadTables(): ReadonlySet<string> {
    // `to_jsonb(a)` reads the row as a whole.
    const readsAll = this.#hasStar || [...this.aliases].some((alias) => this.#columns.has(alias))
    const isTimeRead = ({ columns }: TableInfo): boolean =>
      columns.some(({ name, isTemporal }) => isTemporal && (readsAll || this.#columns.has(name)))
    return new Set([...this.tables].flatMap(([table, info]) => (isTimeRead(info) ? table : [])))
  }
}
