import type { Column, ColumnType } from '../catalog/table.js'
import { ROW } from '../sql-values.js'

/** A column of the parent that holds a total. */
export interface TotalColumn {
  readonly column: Column
  /** The value to write. PostgreSQL refuses a value that does not fit. */
  readonly value: string
  /** The value as the column would store it. */
  readonly stored: string
}

export function toTotalColumn(column: Column, value: string): TotalColumn {
  return { column, value, stored: toStoredSql(value, column) }
}

/** SQL: the stored total differs from the value. */
export function differsSql({ column, value, stored }: TotalColumn): string {
  const own = `${ROW}.${column.quoted}`
  return `case when ${own} is null or ${value} is null then ${own} is not null or ${value} is not null else not (${own} ${column.equals} (${stored})) end`
}

/**
 * Rounds a value as the column does. A cast would truncate text that is too long, while a write refuses it, so such text stays
 * as it is. Only trailing spaces are truncated, as in a write.
 */
function toStoredSql(value: string, column: Column): string {
  if (!isTruncated(column)) return `${value}::${column.stored}`
  const [whole, cut] = [`${value}::${column.cast}`, `${value}::${column.stored}`]
  if (column.maxLength === undefined) return whole
  const trimmed = (text: string): string => `pg_catalog.rtrim((${text})::pg_catalog.text)`
  return `case when ${trimmed(whole)} operator(pg_catalog.=) ${trimmed(cut)} then ${cut} else ${whole} end`
}

/** True if a cast to the column's type truncates a value that is too long. */
export const isTruncated = ({ base, maxLength, element }: ColumnType): boolean =>
  maxLength !== undefined ||
  base === 'bit' ||
  base === 'varbit' ||
  (element !== undefined && isTruncated(element))
