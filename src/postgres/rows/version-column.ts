import { InvalidInputError } from '../../errors.js'
import { ROW, type Taken } from './row-args.js'
import type { RowOptions } from './rows.js'
import { type Column, integerRanges, type Table } from './table.js'

/** Options of a write that does not check the version of the row. */
export interface CountedWriteOptions extends RowOptions {
  /** The column that counts the writes. This write adds one to it, so that `rows.update` notices it. Default: none. */
  readonly versionColumn?: string | undefined
}

/** The assignment that adds one to a version, and the columns that the patch of the same write may not set. */
export interface VersionGrowth {
  readonly column: Column
  readonly set: string
  readonly taken: readonly Taken[]
}

/** @param taken columns with another purpose in the same write, which cannot be the version */
export function growVersion(table: Table, name: string, taken: readonly Taken[]): VersionGrowth {
  const column = table.column('versionColumn', name)
  if (!column.base || column.base === 'oid' || !integerRanges[column.base])
    throw new InvalidInputError(
      'versionColumn',
      `must be a column of whole numbers (smallint, integer, bigint), and "${name}" is ${column.sql}`,
    )
  if (column.isGenerated)
    throw new InvalidInputError('versionColumn', `names "${name}", which the database makes`)
  const other = taken.find((one) => one.name === name)
  if (other) throw new InvalidInputError('versionColumn', `names "${name}", but ${other.why}`)
  return {
    column,
    set: `${column.quoted} = ${ROW}.${column.quoted} operator(pg_catalog.+) 1::pg_catalog.int2`,
    taken: [...taken, { name, why: 'it is the version, which grows by itself' }],
  }
}

/** As `growVersion`. Without a `name`, the write is not counted. */
export function countWrite(
  table: Table,
  name: string | undefined,
  taken: readonly Taken[],
): { readonly sets: readonly string[]; readonly taken: readonly Taken[] } {
  if (name === undefined) return { sets: [], taken }
  const grown = growVersion(table, name, taken)
  return { sets: [grown.set], taken: grown.taken }
}
