import { childOf, columnOf, type Node, nameParts, tableName } from '../statements/parse-tree.js'
import { primaryColumnsOf, type SchemaInfo, type TableInfo } from '../statements/schema-info.js'
import { ColumnUse } from './column-use.js'
import { EMPTY, type Footprint, join, type Resource, ROWS, unbounded } from './footprint.js'
import { keysIn, type Values } from './key-values.js'

/** A table as a statement mentions it. */
export interface TableMention {
  readonly name: string
  /** The alias that qualifies its columns, or the table's name. */
  readonly alias: string
  /** True if its columns have other names in the statement. */
  readonly isRenamed: boolean
  readonly info: TableInfo
}

/** Collects the footprint of one statement while `StatementReader` visits its parse tree. */
export class FootprintBuilder {
  readonly values: Values
  readonly schemaInfo: SchemaInfo
  readonly columns = new ColumnUse()
  footprint: Footprint = EMPTY
  /** The nesting depth of the visited statement; 1 for the outermost. The server counts rows of the outermost only. */
  depth = 0
  /** True if the result depends on the order in which rows reach some function or clause. */
  combinesRows = false
  /** True if a nested INSERT copies rows in the order in which its query returns them. */
  copiesRows = false
  /** Tables that may contribute several rows in no defined order. */
  unsortedTables: ReadonlySet<string> = new Set()

  constructor(values: Values, schemaInfo: SchemaInfo) {
    this.values = values
    this.schemaInfo = schemaInfo
  }

  add(part: Partial<Footprint>): void {
    this.footprint = join(this.footprint, { ...EMPTY, ...part })
  }

  /** Makes the footprint unbounded. */
  addUnbounded(why: string): void {
    this.add(unbounded(why))
  }

  mention(range: Node): TableMention {
    const name = `${range.relname}`
    const info = this.schemaInfo.table(tableName(range))
    const aliasNode = childOf(range, 'alias')
    const alias = `${aliasNode?.aliasname ?? name}`
    if (info.unpredictable) this.addUnbounded(info.unpredictable)
    this.add({ tables: new Set([name]) })
    this.columns.tables.set(name, info)
    this.columns.aliases.add(alias)
    return { name, alias, isRenamed: aliasNode?.colnames !== undefined, info }
  }

  /** The target of an INSERT, UPDATE or DELETE. */
  mentionTarget(statement: Node): TableMention {
    const target = this.mention(childOf(statement, 'relation') ?? {})
    if (target.info.unpredictableWrites) this.addUnbounded(target.info.unpredictableWrites)
    return target
  }

  /** The tables that a FROM clause names, in joins too. Its subqueries are visited separately. */
  mentionsIn(from: unknown, ctes: ReadonlySet<string>): TableMention[] {
    if (Array.isArray(from)) return from.flatMap((item) => this.mentionsIn(item, ctes))
    const range = childOf(from, 'RangeVar')
    if (range) return !range.schemaname && ctes.has(`${range.relname}`) ? [] : [this.mention(range)]
    const joined = childOf(from, 'JoinExpr')
    const found = joined ? this.mentionsIn([joined.larg, joined.rarg], ctes) : []
    // `(a join b) as c` hides the names inside.
    return joined?.alias === undefined ? found : found.map((one) => ({ ...one, isRenamed: true }))
  }

  /** The rows of a table for which a condition can be true. */
  rowsOf(table: TableMention, where: unknown, isAlone: boolean): Resource {
    const keys = this.keysOf(table, where, primaryColumnsOf(table.info) ?? null, isAlone)
    return { table: table.name, schema: table.info.schema, index: ROWS, keys }
  }

  /**
   * The values of some columns for which a condition can be true; undefined if they can be any.
   *
   * @param isAlone true if no other table has columns here, so that an unqualified column is this table's
   */
  keysOf(
    { alias, info, isRenamed }: TableMention,
    where: unknown,
    wanted: readonly string[] | null,
    isAlone: boolean,
  ): ReadonlySet<string> | undefined {
    if (isRenamed || !wanted) return undefined
    const columns = wanted.flatMap((name) => info.columns.find((one) => one.name === name) ?? [])
    const isColumn = (field: unknown, column: string): boolean => {
      if (columnOf(field) !== column) return false
      const parts = nameParts(childOf(field, 'ColumnRef')?.fields)
      return parts.length === 1 ? isAlone : parts.at(-2) === alias
    }
    return keysIn(where, columns, isColumn, this.values)
  }
}

/** The number of tables, subqueries and functions in a FROM clause. */
export function countSources(from: unknown): number {
  if (from === undefined) return 0
  if (Array.isArray(from)) return from.reduce((sum, item) => sum + countSources(item), 0)
  const joined = childOf(from, 'JoinExpr')
  return joined ? countSources([joined.larg, joined.rarg]) : 1
}
