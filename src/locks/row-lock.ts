import { InvalidInputError, NotFoundError, NotInTransactionError } from '../errors.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Row, Tx } from '../postgres/executor.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import { ROW, RowArgs } from '../postgres/rows/row-args.js'
import { type KeyPart, nameRow, type RowId, readId, showId } from '../postgres/rows/row-id.js'
import { lockersOf, type RowCall, type Rows, WAIT_MS } from '../postgres/rows/rows.js'
import type { Column, Table } from '../postgres/rows/table.js'

/** More are locked in parts: each lock is written into its row. */
const MAX_IDS = 10_000

const ADVICE = 'A row is locked until its transaction ends: pass an open one.'

/** From weak to strong. `no key update` is what an UPDATE takes that leaves the key alone: rows that refer to this one can still be inserted. */
export type RowLockMode = 'key share' | 'share' | 'no key update' | 'update'

export interface RowLockOptions {
  /** Default `no key update`. */
  readonly mode?: RowLockMode | undefined
  /**
   * For rows that another has locked: wait so many milliseconds for all of them together (default 5,000), refuse at once (`nowait`), or leave
   * them out (`skip`).
   */
  readonly wait?: number | 'nowait' | 'skip' | undefined
  /** For ids without a row: refuse (default), or leave them out. With `wait: 'skip'` they are left out in any case. */
  readonly missing?: 'refuse' | 'leave out' | undefined
}

export type RowLock = <R extends object = Row>(
  tx: Tx,
  table: string,
  ids: readonly RowId[],
  options?: RowLockOptions,
) => Promise<R[]>

const clauses: Readonly<Record<RowLockMode, string>> = {
  update: 'for update',
  'no key update': 'for no key update',
  share: 'for share',
  'key share': 'for key share',
}

/** How the wait is written, and how long it is. */
function readWait(wait: unknown): { clause: string; waitMs: number } {
  if (wait === 'nowait') return { clause: ' nowait', waitMs: 0 }
  if (wait === 'skip') return { clause: ' skip locked', waitMs: WAIT_MS }
  return { clause: '', waitMs: checkDuration('wait', wait, 1, MAX_TIMER_MS) }
}

export function rowLockOn(rows: Rows): RowLock {
  return async <R extends object>(
    tx: Tx,
    table: string,
    ids: readonly RowId[],
    options: RowLockOptions = {},
  ) => {
    if (tx === undefined || tx === null) throw new NotInTransactionError(`${tx}`, ADVICE)
    checkOptions(options, ['mode', 'wait', 'missing'])
    const { mode = 'no key update', wait = WAIT_MS, missing = 'refuse' } = options
    const clause = typeof mode === 'string' && Object.hasOwn(clauses, mode) ? clauses[mode] : undefined
    if (clause === undefined)
      throw new InvalidInputError(
        'mode',
        `must be one of ${Object.keys(clauses).join(', ')}, not ${showGiven(mode)}`,
      )
    if (!['refuse', 'leave out'].includes(missing))
      throw new InvalidInputError('missing', `must be 'refuse' or 'leave out', not ${showGiven(missing)}`)
    const waits = readWait(wait)
    checkIds(ids)
    const told = await rows
      .call(tx, table, (known) => ({
        ...lockCall(known, ids, `${clause} of ${ROW}${waits.clause}`),
        // Rows that are left out since they are locked are not looked for again.
        rest: [String(wait === 'skip' ? 0 : ids.length), missing === 'refuse' ? '1' : '0'],
        waitMs: waits.waitMs,
      }))
      .catch(adviseLocker)
    const last = told.slice(told.findLastIndex(({ state }) => state === 'anew') + 1)
    const found = new Map(
      last.filter(({ state }) => state === 'locked').map(({ told: place, row }) => [Number(place), row]),
    )
    if (told.at(-1)?.state === 'absent')
      throw missingRows(
        table,
        ids.filter((_, n) => !found.has(n + 1)),
      )
    return ids.flatMap((_, n) => found.get(n + 1) ?? []) as R[]
  }
}

/** What others are told, to leave `tx` out, is no way to lock. */
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
 * The ids with their places in the list, and the rows that they belong to. The lock stands above the sort: rows are locked in the order of the key, one as
 * the function asks for the next.
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
  // The primary key, whichever index names the rows: else two who name them in different ways have different orders.
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
      `select 'locked'::text as dibs_state, "dibs_k"."dibs_n"::text as dibs_told, ${table.list(`${ROW}.`)} from ${wanted} join ${table.quoted} as ${ROW} on ${match} order by ${order} ${clause}`,
      lockersOf(table, inPlace),
    ],
    args,
    waitMs: 0,
  }
}

/** Arrays of arrays are one array to `unnest`, and of a composite type it makes several columns. */
function isTakenApart({ element, isComposite }: Column): boolean {
  return element !== undefined || isComposite
}

function missingRows(table: string, ids: readonly unknown[]): NotFoundError {
  const [only] = ids
  if (ids.length === 1) return new NotFoundError(nameRow(table, only), table, showId(only))
  const some = ids.slice(0, 3).map((id) => JSON.stringify(showId(id)))
  return new NotFoundError(
    `rows ${some.join(', ')}${ids.length > 3 ? ` and ${ids.length - 3} more` : ''} of table "${table}"`,
    table,
    ids.map(showId),
  )
}
