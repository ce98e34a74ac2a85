import { InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import { emit } from '../postgres/events.js'
import type { Row } from '../postgres/executor.js'
import { nameGiven } from '../postgres/name-given.js'
import { RowArgs } from '../postgres/rows/row-args.js'
import type { Rows } from '../postgres/rows/rows.js'
import type { Column } from '../postgres/rows/table.js'
import type { AggregateCall } from './aggregate-call.js'

export interface VerifyOptions {
  /** Counts those anew that are wrong. Default false. */
  readonly repair?: boolean | undefined
  /** How many parents are looked at in one statement: 1 to 10,000. Default 1,000. */
  readonly batch?: number | undefined
  /** Ends it after the part it is at. */
  readonly signal?: AbortSignal | undefined
}

/** A parent that was not what its children say. */
export interface Drift {
  /** Its primary key; of several columns, an object. */
  readonly id: unknown
  /** The columns that were wrong, as texts. */
  readonly columns: Readonly<
    Record<string, { readonly stored: string | null; readonly derived: string | null }>
  >
}

export interface AggregateReport {
  /** Parents that were looked at. */
  readonly checked: number
  /** How many were wrong. */
  readonly driftedCount: number
  /** These, the first 1,000 of them. */
  readonly drifted: readonly Drift[]
  /** How many of them are right now. */
  readonly repaired: number
  /** Others that differ: they are marked, or were written just then. */
  readonly unsettled: number
}

const BATCH = 1_000
const MAX_BATCH = 10_000
const MAX_LISTED = 1_000

/**
 * First a look without locks, page by page; what differs there is looked at again under the lock of its parent, where nobody can be between the child and the count: then it
 * is wrong.
 */
export async function verifyAggregate(
  name: string,
  rows: Rows,
  call: AggregateCall,
  options: VerifyOptions,
): Promise<AggregateReport> {
  checkOptions(options, ['repair', 'batch', 'signal'])
  const { repair = false, batch = BATCH, signal } = options
  if (typeof repair !== 'boolean')
    throw new InvalidInputError('repair', `must be true or false, not ${nameGiven(repair)}`)
  if (!Number.isSafeInteger(batch) || batch < 1 || batch > MAX_BATCH)
    throw new InvalidInputError(
      'batch',
      `must be a whole number from 1 to ${MAX_BATCH}, not ${String(batch)}`,
    )
  const drifted: Drift[] = []
  const report = { checked: 0, driftedCount: 0, unsettled: 0 }
  let after: string | undefined
  do {
    const page = await readPage(call, after, batch)
    report.checked += page.count
    after = page.count === batch ? page.last : undefined
    if (page.suspects.length === 0) continue
    const found = await confirm(call, page.suspects, repair)
    report.driftedCount += found.length
    report.unsettled += page.suspects.length - found.length
    drifted.push(...found.slice(0, MAX_LISTED - drifted.length))
  } while (after !== undefined && !signal?.aborted)
  if (report.driftedCount > 0)
    emit('dibs:aggregate.drifted', {
      ...rows.origin,
      ...{ aggregate: name, count: report.driftedCount, isRepaired: repair },
    })
  return { ...report, drifted, repaired: repair ? report.driftedCount : 0 }
}

interface Page {
  readonly suspects: readonly string[]
  readonly last: string | undefined
  readonly count: number
}

async function readPage(call: AggregateCall, after: string | undefined, batch: number): Promise<Page> {
  const told = await call(undefined, (sql) => {
    const args = new RowArgs()
    if (after !== undefined) args.place(after, 'pg_catalog.text')
    return { name: 'row_claim', statements: [sql.page(after !== undefined, batch)], args, waitMs: 0 }
  })
  const seen = told.map(({ state, told: text }) => ({ state, ...JSON.parse(`${text}`) }))
  return {
    suspects: seen.filter(({ state }) => state === 'suspect').map(({ id }) => id),
    last: seen.at(-1)?.id,
    count: seen.at(-1)?.count ?? 0,
  }
}

async function confirm(call: AggregateCall, ids: readonly string[], repairs: boolean): Promise<Drift[]> {
  let key: readonly Column[] = []
  const told = await call(undefined, (sql) => {
    key = sql.key
    const args = new RowArgs()
    for (const id of ids) args.place(id, 'pg_catalog.text')
    return {
      name: 'aggregate_recompute',
      statements: [sql.lock({ skips: true, tells: 'id' }), sql.drifted({ repairs }), sql.lockers],
      args,
      rest: ['0'],
      waitMs: 1_000,
    }
  })
  return told.map(({ told: text, row }) => ({
    id: idOf(row, key),
    columns: onlyWrong(JSON.parse(`${text}`)),
  }))
}

function idOf(row: Row, key: readonly Column[]): unknown {
  const parts = key.map(({ name }) => [name, row[name]])
  return parts.length === 1 ? parts[0]?.[1] : Object.fromEntries(parts)
}

function onlyWrong(columns: Drift['columns']): Drift['columns'] {
  return Object.fromEntries(Object.entries(columns).filter(([, { stored, derived }]) => stored !== derived))
}
