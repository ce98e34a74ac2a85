import { InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Row } from '../postgres/executor.js'
import { ROW, RowArgs, type RowPatch } from '../postgres/rows/row-args.js'
import { keyTaken, matchId, type RowId, readId } from '../postgres/rows/row-id.js'
import { checkWait, expectRow, type RowCall, type Rows, rowWrite } from '../postgres/rows/rows.js'
import type { Table } from '../postgres/rows/table.js'
import { type CountedWriteOptions, countWrite } from '../postgres/rows/version-column.js'

export type LastWriteWins = <R extends object = Row>(
  table: string,
  id: RowId,
  patch: RowPatch,
  options?: CountedWriteOptions,
) => Promise<R>

export function lastWriteWinsOn(rows: Rows): LastWriteWins {
  return async <R extends object>(
    table: string,
    id: RowId,
    patch: RowPatch,
    options: CountedWriteOptions = {},
  ) => {
    checkOptions(options, ['tx', 'versionColumn', 'waitMs'])
    const waitMs = checkWait(options.waitMs)
    const told = await rows.call(options.tx, table, (known) =>
      updateCall(known, id, patch, options.versionColumn, waitMs),
    )
    return expectRow(told, table, id).row as R
  }
}

function updateCall(
  table: Table,
  id: RowId,
  patch: RowPatch,
  counter: string | undefined,
  waitMs: number,
): RowCall {
  const parts = readId('id', table, id)
  const counted = countWrite(table, counter, keyTaken(table, parts))
  const args = new RowArgs()
  const match = matchId(parts, args)
  const sets = args.assign('patch', table, patch, counted.taken)
  if (sets.length === 0) throw new InvalidInputError('patch', 'must not be empty')
  return rowWrite({
    ...{ table, args, match, waitMs },
    write: `update ${table.quoted} as ${ROW} set ${[...sets, ...counted.sets].join(', ')} where ${match}`,
    // If the row exists, try again: it may have been deleted and inserted again during the wait.
    again: 'true',
  })
}
