import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import type { Row } from '../../postgres/executor.js'
import type { Table } from '../catalog/table.js'
import type { RowCall } from '../row-call.js'
import type { Rows } from '../row-executor.js'
import { type RowOptions, rowOptions } from '../row-options.js'
import { expectRow, lockersOf } from '../row-write.js'
import { checkPatch, ROW, RowArgs, type RowPatch, writable } from '../sql-values.js'

/** The row as it is now, and whether this call inserted it. */
export interface Inserted<R extends object = Row> {
  readonly row: R
  /** True if this call inserted the row. */
  readonly created: boolean
}

export type InsertOnce = <R extends object = Row>(
  table: string,
  conflictColumns: readonly string[],
  row: RowPatch,
  options?: RowOptions,
) => Promise<Inserted<R>>

export function insertOnceOn(rows: Rows): InsertOnce {
  return async <R extends object>(
    table: string,
    conflictColumns: readonly string[],
    row: RowPatch,
    options?: RowOptions,
  ) => {
    const { tx, waitMs } = rowOptions.read(options)
    checkPatch('row', row)
    const results = await rows.call(tx, table, (known) => insertCall(known, conflictColumns, row, waitMs))
    const id = Object.fromEntries(conflictColumns.map((name) => [name, row[name]]))
    const found = expectRow(results, table, id)
    return { row: found.row as R, created: found.state === 'written' }
  }
}

/**
 * Reads the conflicting row in a separate statement, whose snapshot is newer than the conflict. The read always returns a
 * result: if the row was deleted by then, the insert is tried again. The read compares the values as their columns round them,
 * because the columns store rounded values.
 */
function insertCall(
  table: Table,
  conflictColumns: readonly string[],
  row: RowPatch,
  waitMs: number,
): RowCall {
  const unique = readUnique(table, conflictColumns)
  const args = new RowArgs()
  const entries = Object.entries(row).map(([name, value]) => {
    const column = writable(`row.${name}`, table, name, [])
    return { column, place: args.value(`row.${name}`, column, value) }
  })
  const match = unique
    .map((name) => {
      const value = row[name]
      if (value === undefined || value === null)
        throw new InvalidInputError(
          `row.${name}`,
          `must be given, and not null: this column identifies the row`,
        )
      const column = table.column(`row.${name}`, name)
      return `${ROW}.${column.quoted} ${column.equals} ${args.stored(`row.${name}`, column, value)}`
    })
    .join(' and ')
  const names = entries.map(({ column }) => column.quoted).join(', ')
  const arbiter = unique.map((name) => table.column('conflictColumns', name).quoted).join(', ')
  const values = entries.map(({ place }) => place).join(', ')
  return {
    name: 'row_write',
    statements: [
      `insert into ${table.quoted} as ${ROW} (${names}) values (${values}) on conflict (${arbiter}) do nothing returning 'written'::text, null::text, ${table.list(`${ROW}.`)}`,
      `select case when ${ROW}.tableoid is null then 'again' else 'read' end::text as dibs_state, null::text as dibs_detail, ${table.list(`${ROW}.`)} from (select) as "dibs_one" left join ${table.quoted} as ${ROW} on ${match}`,
      // No lock clause: a row that does not exist cannot be locked.
      '',
      lockersOf(table, match),
    ],
    args,
    waitMs,
  }
}

function readUnique(table: Table, names: unknown): readonly string[] {
  if (!Array.isArray(names) || names.length === 0)
    throw new InvalidInputError(
      'conflictColumns',
      `must be the columns of a unique index, not ${Array.isArray(names) ? 'an empty list' : nameGiven(names)}`,
    )
  for (const name of names) table.column('conflictColumns', name)
  const isListed = [...table.uniques].find(
    (unique) => unique.length === names.length && unique.every((name) => names.includes(name)),
  )
  if (isListed) return isListed
  throw new InvalidInputError(
    'conflictColumns',
    `must be all columns of a unique index of ${table.name.input} that has no condition and is not deferrable, not (${names.join(', ')}). ${table.describeUniques()}`,
  )
}
