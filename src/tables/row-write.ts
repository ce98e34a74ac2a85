import { describeRow, idToJson } from '../errors/describe-row.js'
import { NotFoundError, NotWrittenError } from '../errors.js'
import type { Table } from './catalog/table.js'
import type { RowCall, RowResult } from './row-call.js'
import { ROW, type RowArgs } from './sql-values.js'

/** See `RowWrite.also`. */
export interface SecondWrite {
  readonly write: string
  readonly isWanted: string
  readonly table: Table
  /** SQL that returns the id of the row, as a JSON array, and who has locked the row. */
  readonly held: string
}

/** A write of one row: the write itself, and the read that tells why nothing was written. */
export interface RowWrite {
  readonly table: Table
  readonly args: RowArgs
  /** The condition that identifies the row. */
  readonly match: string
  /** The statement up to `returning`. */
  readonly write: string
  /** The SQL expression to report about the existing row. */
  readonly detail?: string
  /**
   * A second write up to `returning`, of another row, based on the result of the first write. `written` is the name of that result.
   *
   * If the second write finds no row although `isWanted` is true of the result, both writes are undone and tried again. The first write may have waited,
   * so that this statement cannot see the other row.
   */
  readonly also?: (written: string) => SecondWrite
  /** The SQL condition under which the write would succeed by now. The write is then tried again. */
  readonly again: string
  readonly waitMs: number
}

export function rowWrite({
  table,
  args,
  match,
  write,
  also,
  detail = 'null',
  again,
  waitMs,
}: RowWrite): RowCall {
  const written = `${write} returning 'written'::text as "${table.unusedName('dibs_state')}", null::text as "${table.unusedName('dibs_detail')}", ${table.list(`${ROW}.`)}`
  const readBack = `select case when ${again} then 'again' else 'read' end::text as dibs_state, (${detail})::text as dibs_detail, ${table.list(`${ROW}.`)} from ${table.quoted} as ${ROW} where ${match}`
  const second = also?.('"dibs_w"')
  return {
    name: 'row_write',
    second,
    statements: [
      second ? withAlso(written, second) : written,
      readBack,
      ` for no key update of ${ROW}`,
      lockersOf(table, match),
    ],
    args,
    waitMs,
  }
}

function withAlso(written: string, { write, isWanted }: SecondWrite): string {
  return `with "dibs_w" as (${written}), "dibs_a" as (${write} returning 1)
select * from "dibs_w" where exists (select from "dibs_a") or not (${isWanted})`
}

/** SQL that reads which transactions have locked these rows, as the rows themselves record it. */
export function lockersOf(table: Table, match: string): string {
  return `select pg_catalog.array_agg(distinct ${ROW}.xmax::text) from ${table.quoted} as ${ROW} where ${match}`
}

/** Returns the result for the one row. Throws if the row does not exist or was not written. */
export function expectRow([first]: readonly RowResult[], table: string, id: unknown): RowResult {
  if (first?.state === 'unwritten') throw new NotWrittenError(describeRow(table, id), table, idToJson(id))
  if (first && first.state !== 'absent') return first
  throw new NotFoundError(describeRow(table, id), table, idToJson(id))
}
