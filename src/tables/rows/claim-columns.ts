import { InvalidInputError } from '../../errors.js'
import { type Column, integerRanges, type Table } from '../catalog/table.js'
import { ROW } from '../sql-values.js'

/** Checks the column that holds the end of a claim. */
export function leaseColumn(table: Table, name: string): Column {
  const column = table.column('leaseColumn', name)
  if (column.base === 'timestamptz' && (column.digits ?? 6) >= 3) return column
  throw new InvalidInputError(
    'leaseColumn',
    `must be of the type timestamptz, and keep milliseconds; "${name}" is ${column.sql}${column.digits === undefined ? '' : `(${column.digits})`}`,
  )
}

/** Checks a column of whole numbers. */
export function wholeColumn(table: Table, field: string, name: string, bases: readonly string[]): Column {
  const column = table.column(field, name)
  if (column.base && bases.includes(column.base) && integerRanges[column.base]) return column
  const wanted = bases.length === 1 ? 'bigint' : 'smallint, integer or bigint'
  throw new InvalidInputError(field, `must be of the type ${wanted}, and "${name}" is ${column.sql}`)
}

/** SQL: the count plus one, up to the maximum of its type. A row that always fails must not keep other rows from being claimed. */
export function countUp(column: Column): string {
  const most = integerRanges[`${column.base}`]?.[1]
  return `coalesce(${ROW}.${column.quoted}, 0) operator(pg_catalog.+) case when ${ROW}.${column.quoted} operator(pg_catalog.=) ${most} then 0 else 1 end::pg_catalog.int2`
}
