import { InvalidInputError } from '../../errors.js'
import type { Row } from '../../postgres/executor.js'
import type { Table } from '../catalog/table.js'
import type { RowCall } from '../row-call.js'
import type { Rows } from '../row-executor.js'
import { matchId, type RowId, readId, reservedByKey } from '../row-id.js'
import { expectRow, rowWrite } from '../row-write.js'
import { ROW, RowArgs, type RowPatch } from '../sql-values.js'
import { type CountedWriteOptions, countedWriteOptions, countWrite } from './version-column.js'

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
    options?: CountedWriteOptions,
  ) => {
    const { tx, versionColumn, waitMs } = countedWriteOptions.read(options)
    const results = await rows.call(tx, table, (known) => updateCall(known, id, patch, versionColumn, waitMs))
    return expectRow(results, table, id).row as R
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
  const counted = countWrite(table, counter, reservedByKey(table, parts))
  const args = new RowArgs()
  const match = matchId(parts, args)
  const sets = args.assign('patch', table, patch, counted.reserved)
  if (sets.length === 0) throw new InvalidInputError('patch', 'must not be empty')
  return rowWrite({
    ...{ table, args, match, waitMs },
    write: `update ${table.quoted} as ${ROW} set ${[...sets, ...counted.sets].join(', ')} where ${match}`, // guard: rows.version-last-write
    // If the row exists, try again: it may have been deleted and inserted again during the wait.
    again: 'true',
  })
}
