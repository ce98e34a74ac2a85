import { InvalidInputError } from '../../errors.js'
import { optionTable } from '../../options/option-table.js'
import { string } from '../../options/value-options.js'
import { type Column, integerRanges, type Table } from '../catalog/table.js'
import { type RowOptions, rowOptions } from '../row-options.js'
import { type ReservedColumn, ROW } from '../sql-values.js'

/** Options of a write that does not check the version of the row. */
export interface CountedWriteOptions extends RowOptions {
  /** The column that counts the writes. This write adds one to it, so that `rows.update` notices it. Default: none. */
  readonly versionColumn?: string | undefined
}

export const countedWriteOptions = optionTable<CountedWriteOptions>()('rows.lastWriteWins, rows.transition', {
  ...rowOptions.fields,
  versionColumn: string(),
})

/** The assignment that adds one to a version, and the columns that the patch of the same write may not set. */
export interface VersionGrowth {
  readonly column: Column
  readonly set: string
  readonly reserved: readonly ReservedColumn[]
}

/** @param reserved columns with another purpose in the same write, which cannot be the version */
export function growVersion(table: Table, name: string, reserved: readonly ReservedColumn[]): VersionGrowth {
  const column = table.column('versionColumn', name)
  if (!column.base || column.base === 'oid' || !integerRanges[column.base])
    throw new InvalidInputError(
      'versionColumn',
      `must be a column of whole numbers (smallint, integer, bigint), and "${name}" is ${column.sql}`,
    )
  if (column.isGenerated)
    throw new InvalidInputError('versionColumn', `names "${name}", which the database makes`)
  const other = reserved.find((one) => one.name === name)
  if (other) throw new InvalidInputError('versionColumn', `names "${name}", but ${other.why}`)
  return {
    column,
    set: `${column.quoted} = ${ROW}.${column.quoted} operator(pg_catalog.+) 1::pg_catalog.int2`, // guard: rows.version-grows
    reserved: [...reserved, { name, why: 'it is the version, which grows by itself' }],
  }
}

/** Like `growVersion`. Without a `name`, the write is not counted. */
export function countWrite(
  table: Table,
  name: string | undefined,
  reserved: readonly ReservedColumn[],
): { readonly sets: readonly string[]; readonly reserved: readonly ReservedColumn[] } {
  if (name === undefined) return { sets: [], reserved }
  const grown = growVersion(table, name, reserved)
  return { sets: [grown.set], reserved: grown.reserved }
}
