import { describeRow, idToJson } from '../../errors/describe-row.js'
import { InvalidInputError, NotFoundError, NotInTransactionError } from '../../errors.js'
import { MAX_TIMER_MS } from '../../options/max-timer-ms.js'
import { nameGiven } from '../../options/name-given.js'
import { duration } from '../../options/number-options.js'
import { required, unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { oneOf } from '../../options/value-options.js'
import type { Row, Tx } from '../../postgres/executor.js'
import type { Column, Table } from '../catalog/table.js'
import type { RowCall } from '../row-call.js'
import type { Rows } from '../row-executor.js'
import { type KeyPart, type RowId, readId } from '../row-id.js'
import { WAIT_MS } from '../row-options.js'
import { lockersOf } from '../row-write.js'
import { ROW, RowArgs } from '../sql-values.js'

/** The limit for one call, because each lock writes to its row. Lock more rows in parts. */
const MAX_IDS = 10_000

const ADVICE = 'A row lock ends with its transaction: pass an open one as `tx`.'

/**
 * The row locks of PostgreSQL, from weak to strong. `no key update` is the lock of an UPDATE that does not change the key. Rows that refer to the locked
 * row can still be inserted.
 */
export type RowLockMode = 'key share' | 'share' | 'no key update' | 'update'

export interface RowLockOptions {
  /** Your open transaction, which holds the locks until it ends. */
  readonly tx: Tx
  /** Default `no key update`. */
  readonly mode?: RowLockMode | undefined
  /** The policy for rows that others have locked: `wait` up to `waitMs` (default), `fail` at once with `BusyError`, or `skip` those rows. */
  readonly ifLocked?: 'wait' | 'fail' | 'skip' | undefined
  /** How long to wait for all rows in total, then `BusyError`. 0 means `ifLocked: 'fail'`. Default 5,000. */
  readonly waitMs?: number | undefined
  /** The policy for ids without a row: `fail` with `NotFoundError` (default), or `skip` them. With `ifLocked: 'skip'` they are always skipped. */
  readonly ifMissing?: 'fail' | 'skip' | undefined
}

export const rowLockOptions = optionTable<RowLockOptions>()('rows.lock', {
  tx: required(unchecked()),
  mode: oneOf(['key share', 'share', 'no key update', 'update'], { default: 'no key update' }),
  ifLocked: oneOf(['wait', 'fail', 'skip'], { default: 'wait' }),
  waitMs: duration({ min: 0, max: MAX_TIMER_MS }),
  ifMissing: oneOf(['fail', 'skip'], { default: 'fail' }),
})

export type LockRows = <R extends object = Row>(
  table: string,
  ids: readonly RowId[],
  options: RowLockOptions,
) => Promise<R[]>

/** Returns the clause of `select … for update` for rows that are locked, and how long the statement may wait. */
function readWait(
  ifLocked: 'wait' | 'fail' | 'skip',
  waitMs: number | undefined,
): { clause: string; waitMs: number } {
  if (ifLocked !== 'wait' && waitMs !== undefined)
    throw new InvalidInputError(
      'waitMs',
      `must not be given with ifLocked: '${ifLocked}', which does not wait`,
    )
  if (ifLocked === 'skip') return { clause: ' skip locked', waitMs: WAIT_MS }
  const ms = ifLocked === 'fail' ? 0 : (waitMs ?? WAIT_MS)
  return { clause: ms === 0 ? ' nowait' : '', waitMs: ms }
}

/** See `TableRows.lock`. */
export function lockRowsOn(rows: Rows): LockRows {
  return async <R extends object>(table: string, ids: readonly RowId[], options: RowLockOptions) => {
    if (options === undefined) throw new NotInTransactionError('undefined', ADVICE)
    const { tx, mode, ifLocked, waitMs, ifMissing } = rowLockOptions.read(options)
    // guard: rows.lock-transaction
    if (tx === undefined || tx === null) throw new NotInTransactionError(`${tx}`, ADVICE)
    const waits = readWait(ifLocked, waitMs)
    checkIds(ids)
    const results = await rows
      .call(tx, table, (known) => ({
        ...lockCall(known, ids, `for ${mode} of ${ROW}${waits.clause}`),
        // With `skip`, the function does not search again for rows that it did not find.
        rest: [String(ifLocked === 'skip' ? 0 : ids.length), ifMissing === 'fail' ? '1' : '0'],
        waitMs: waits.waitMs,
      }))
      .catch(adviseLocker)
    const last = results.slice(results.findLastIndex(({ state }) => state === 'anew') + 1)
    const found = new Map(
      last.filter(({ state }) => state === 'locked').map(({ detail: place, row }) => [Number(place), row]),
    )
    if (results.at(-1)?.state === 'absent')
      throw missingRows(
        table,
        ids.filter((_, n) => !found.has(n + 1)),
      )
    return ids.flatMap((_, n) => found.get(n + 1) ?? []) as R[]
  }
}

/** Replaces the general advice to leave `tx` out: a row lock needs a transaction. */
function adviseLocker(error: unknown): never {
  if (error instanceof NotInTransactionError && error.message.includes('leave `tx` out'))
    throw new NotInTransactionError(error.given, ADVICE, { cause: error })
  throw error
}

function checkIds(ids: unknown): void {
  if (!Array.isArray(ids)) throw new InvalidInputError('ids', `must be an array, not ${nameGiven(ids)}`)
  if (ids.length === 0) throw new InvalidInputError('ids', 'must not be empty')
  if (ids.length > MAX_IDS)
    throw new InvalidInputError(
      'ids',
      `must be at most ${MAX_IDS}, not ${ids.length}; lock them in parts, each in the order of the key`,
    )
}

/**
 * Joins the ids, with their places in the list, to their rows. The lock is above the sort in the plan: rows are locked in the order of the key, each one when
 * the function fetches it.
 */
function lockCall(table: Table, ids: readonly unknown[], clause: string): RowCall {
  const parts = ids.map((id, n) => readId(`ids[${n}]`, table, id))
  const [first = []] = parts
  const columns = first.map(({ column }) => column)
  for (const [n, part] of parts.entries())
    if (part.some(({ column }, place) => column !== columns[place]) || part.length !== columns.length)
      throw new InvalidInputError(`ids[${n}]`, 'must name the same columns as the others')
  const args = new RowArgs()
  const lists = columns.map((column, place) => {
    const values = parts.map((part) => (part[place] as KeyPart).value)
    return isTakenApart(column) ? args.texts('ids', column, values) : args.list('ids', column, values)
  })
  const names = columns.map((_, place) => `"dibs_${place}"`)
  const wanted = `rows from (${lists.map((list) => `pg_catalog.unnest(${list})`).join(', ')}) with ordinality as "dibs_k"(${names.join(', ')}, "dibs_n")`
  const match = columns
    .map(
      (column, place) =>
        `${ROW}.${column.quoted} ${column.equals} "dibs_k".${names[place]}${isTakenApart(column) ? `::${column.cast}` : ''}`,
    )
    .join(' and ')
  // Order by the primary key, whichever index names the rows. Otherwise callers that use different indexes would lock in different orders.
  const order = (table.primary.length > 0 ? table.primary : columns)
    .map(({ quoted }) => `${ROW}.${quoted}`)
    .join(', ')
  const inPlace = columns
    .map((column, place) =>
      isTakenApart(column)
        ? `exists (select from pg_catalog.unnest(${lists[place]}) as "dibs_k"("dibs_0") where ${ROW}.${column.quoted} ${column.equals} "dibs_k"."dibs_0"::${column.cast})`
        : `${ROW}.${column.quoted} ${column.equals} any (${lists[place]})`,
    )
    .join(' and ')
  return {
    name: 'row_lock',
    statements: [
      `select 'locked'::text as dibs_state, "dibs_k"."dibs_n"::text as dibs_detail, ${table.list(`${ROW}.`)} from ${wanted} join ${table.quoted} as ${ROW} on ${match} order by ${order} ${clause}`, // guard: rows.lock-order, rows.lock-clause
      lockersOf(table, inPlace),
    ],
    args,
    waitMs: 0,
  }
}

/** Whether values cannot be passed as one array: `unnest` flattens arrays of arrays, and expands a composite type into several columns. */
function isTakenApart({ element, isComposite }: Column): boolean {
  return element !== undefined || isComposite
}

function missingRows(table: string, ids: readonly unknown[]): NotFoundError {
  const [only] = ids
  if (ids.length === 1) return new NotFoundError(describeRow(table, only), table, idToJson(only))
  const some = ids.slice(0, 3).map((id) => JSON.stringify(idToJson(id)))
  return new NotFoundError(
    `rows ${some.join(', ')}${ids.length > 3 ? ` and ${ids.length - 3} more` : ''} of table "${table}"`,
    table,
    ids.map(idToJson),
  )
}
