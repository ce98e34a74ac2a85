import { InvalidInputError } from '../errors.js'
import { ROW } from '../postgres/rows/row-args.js'
import { type Column, integerRanges, type Table } from '../postgres/rows/table.js'

/** A column that says until when a row is taken. */
export function leaseColumn(table: Table, name: string): Column {
  const column = table.column('leaseColumn', name)
  if (column.base === 'timestamptz' && (column.digits ?? 6) >= 3) return column
  throw new InvalidInputError(
    'leaseColumn',
    `must be of the type timestamptz, and keep milliseconds; "${name}" is ${column.sql}${column.digits === undefined ? '' : `(${column.digits})`}`,
  )
}

/** A column of whole numbers. */
export function wholeColumn(table: Table, field: string, name: string, bases: readonly string[]): Column {
  const column = table.column(field, name)
  if (column.base && bases.includes(column.base) && integerRanges[column.base]) return column
  const wanted = bases.length === 1 ? 'bigint' : 'smallint, integer or bigint'
  throw new InvalidInputError(field, `must be of the type ${wanted}, and "${name}" is ${column.sql}`)
}

/** One more, up to the most that its type can hold: a row that fails for ever must not keep the others from being taken. */
export function countUp(column: Column): string {
  const most = integerRanges[`${column.base}`]?.[1]
  return `coalesce(${ROW}.${column.quoted}, 0) operator(pg_catalog.+) case when ${ROW}.${column.quoted} operator(pg_catalog.=) ${most} then 0 else 1 end::pg_catalog.int2`
}
