import { joinKey, keyOf, keysIn, type Values } from '../footprint/key-values.js'
import { childOf, columnOf, columnRefsIn, type Node, tableName } from '../statements/parse-tree.js'
import { primaryColumnsOf, type SchemaInfo, type TableInfo } from '../statements/schema-info.js'
import type { KnownRow } from './row-match.js'

/** A table as a statement mentions it. */
export interface TableMention {
  readonly table: string
  readonly alias: string
  readonly info: TableInfo
}

export function mentionOf(range: Node, schemaInfo: SchemaInfo): TableMention {
  const table = `${range.relname}`
  const info = schemaInfo.table(tableName(range))
  return { table, alias: `${childOf(range, 'alias')?.aliasname ?? table}`, info }
}

/** The primary key of a row; undefined if the row does not have all of its values. */
export function primaryKeyOfRow(row: KnownRow, info: TableInfo): string | undefined {
  const parts = primaryColumnsOf(info)?.map((name) =>
    keyOf(
      row.get(name),
      info.columns.find((column) => column.name === name),
    ),
  )
  return parts && !parts.includes(undefined) ? joinKey(parts as string[]) : undefined
}

/** The primary keys for which a condition can be true; undefined if they can be any. */
export function keysOf(where: unknown, info: TableInfo, values: Values): ReadonlySet<string> | undefined {
  const columns = (primaryColumnsOf(info) ?? []).flatMap(
    (name) => info.columns.find((column) => column.name === name) ?? [],
  )
  return keysIn(where, columns, (field, name) => columnOf(field) === name, values)
}

/** The columns in an expression. The row as a whole stands for all columns of its table. */
export function columnsIn(
  tree: unknown,
  { columns }: TableInfo,
  tables: readonly string[],
): ReadonlySet<string> {
  const found = columnRefsIn(tree).flatMap((parts) => {
    const last = parts.at(-1)
    const isRow = last === undefined || (parts.length === 1 && tables.includes(last))
    return isRow ? columns.map(({ name }) => name) : [last]
  })
  return new Set(found)
}
