import { ROW } from '../postgres/rows/row-args.js'
import type { Column, ColumnType } from '../postgres/rows/table.js'

/** A column that is kept, and what its children say. */
export interface KeptColumn {
  readonly column: Column
  /** As it is written: what does not fit is refused. */
  readonly value: string
  /** As the column would have kept it. */
  readonly stored: string
}

export function keepIn(column: Column, value: string): KeptColumn {
  return { column, value, stored: asStored(value, column) }
}

/** It is not what its children say. */
export function differ({ column, value, stored }: KeptColumn): string {
  const own = `${ROW}.${column.quoted}`
  return `case when ${own} is null or ${value} is null then ${own} is not null or ${value} is not null else not (${own} ${column.equals} (${stored})) end`
}

/** What the column keeps of a value: numbers are rounded. What is too long is refused, and so stays as it is here, where a cast would cut it off; but spaces at its end are. */
function asStored(value: string, column: Column): string {
  if (!isCutOff(column)) return `${value}::${column.stored}`
  const [whole, cut] = [`${value}::${column.cast}`, `${value}::${column.stored}`]
  if (column.maxLength === undefined) return whole
  const trimmed = (text: string): string => `pg_catalog.rtrim((${text})::pg_catalog.text)`
  return `case when ${trimmed(whole)} operator(pg_catalog.=) ${trimmed(cut)} then ${cut} else ${whole} end`
}

/** To cast to its type cuts a value off. */
export const isCutOff = ({ base, maxLength, element }: ColumnType): boolean =>
  maxLength !== undefined ||
  base === 'bit' ||
  base === 'varbit' ||
  (element !== undefined && isCutOff(element))
