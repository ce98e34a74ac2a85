import { constantOf, type Values } from '../footprint/key-values.js'
import { childOf, columnRefsIn, listOf, type Node, someNode, valueRowsOf } from '../statements/parse-tree.js'
import type { SchemaInfo, TableInfo } from '../statements/schema-info.js'
import type { KnownRow } from './row-match.js'
import { columnsIn, keysOf, mentionOf, primaryKeyOfRow } from './shape-parts.js'

/** An INSERT, UPDATE or DELETE of one table. */
export interface WriteShape {
  /** `put`: INSERT … ON CONFLICT DO UPDATE, which inserts or updates. */
  readonly kind: 'insert' | 'put' | 'update' | 'delete'
  readonly table: string
  readonly info: TableInfo
  readonly keys?: ReadonlySet<string> | undefined
  /** True if the statement writes all rows of the table. */
  readonly isWhole: boolean
  readonly whereColumns: ReadonlySet<string>
  /** By the column that is set: true if the new value does not come from the row. Undefined if whole rows are written. */
  readonly sets?: ReadonlyMap<string, boolean> | undefined
  /** By the column that is set: the new value, if that is a constant. */
  readonly constants?: KnownRow | undefined
  readonly rows?: readonly KnownRow[] | undefined
  /** True for an INSERT that does not change an existing row with its key, or changes it only on a condition. */
  readonly isExclusive: boolean
}

const NO_COLUMNS: ReadonlySet<string> = new Set()

/** The write of a statement; undefined if there is none, or if the statement may write something else too. */
export function writeShapeOf(
  kind: string,
  node: Node,
  values: Values,
  schemaInfo: SchemaInfo,
): WriteShape | undefined {
  const range = childOf(node, 'relation')
  if (!range || !/^(Insert|Update|Delete)Stmt$/.test(kind)) return undefined
  const { table, alias, info } = mentionOf(range, schemaInfo)
  if (info.unpredictable || info.unpredictableWrites) return undefined
  if (kind === 'InsertStmt') return insertShapeOf(node, table, info, values)
  if (listOf(node.fromClause).length + listOf(node.usingClause).length > 0) return undefined
  return {
    kind: kind === 'UpdateStmt' ? 'update' : 'delete',
    table,
    info,
    keys: keysOf(node.whereClause, info, values),
    isWhole: node.whereClause === undefined,
    whereColumns: columnsIn(node.whereClause, info, [table, alias]),
    ...(kind === 'UpdateStmt'
      ? { sets: setsOf(node.targetList), constants: constantsOf(node.targetList, values) }
      : {}),
    isExclusive: false,
  }
}

function insertShapeOf(insert: Node, table: string, info: TableInfo, values: Values): WriteShape {
  const listed = listOf(insert.cols).map((column) => `${childOf(column, 'ResTarget')?.name}`)
  const columns = listed.length > 0 ? listed : info.columns.map(({ name }) => name)
  const rows = expressionRowsOf(insert.selectStmt)?.map((items): KnownRow => {
    const row = new Map<string, string | null>()
    for (const [i, item] of items.entries()) {
      const value = constantOf(item, values)
      if (value !== undefined) row.set(columns[i] ?? '', value)
    }
    return row
  })
  const conflict = childOf(insert, 'onConflictClause')
  const isPut = conflict?.action === 'ONCONFLICT_UPDATE'
  const keys = rows?.map((row) => primaryKeyOfRow(row, info))
  return {
    kind: isPut ? 'put' : 'insert',
    table,
    info,
    keys: keys && !keys.includes(undefined) ? new Set(keys as string[]) : undefined,
    isWhole: false,
    whereColumns: isPut ? columnsIn(conflict.whereClause, info, [table]) : NO_COLUMNS,
    ...(isPut ? { sets: setsOf(conflict.targetList) } : {}),
    rows,
    isExclusive: !isPut || conflict.whereClause !== undefined,
  }
}

/** The rows of VALUES, or the one row of a SELECT without tables, as expressions. */
function expressionRowsOf(source: unknown): readonly (readonly unknown[])[] | undefined {
  const select = childOf(source, 'SelectStmt')
  if (!select || listOf(select.fromClause).length > 0) return undefined
  return valueRowsOf(source) ?? [listOf(select.targetList).map((target) => childOf(target, 'ResTarget')?.val)]
}

function setsOf(targetList: unknown): ReadonlyMap<string, boolean> {
  return new Map(
    listOf(targetList).map((target) => {
      const { name, val } = childOf(target, 'ResTarget') ?? {}
      const usesRow = columnRefsIn(val).some(([first]) => first !== 'excluded')
      return [`${name}`, !usesRow && !someNode(val, (kind) => kind === 'SubLink')]
    }),
  )
}

function constantsOf(targetList: unknown, values: Values): KnownRow {
  return new Map(
    listOf(targetList).flatMap((target) => {
      const { name, val } = childOf(target, 'ResTarget') ?? {}
      const value = constantOf(val, values)
      return value === undefined ? [] : [[`${name}`, value] as const]
    }),
  )
}
