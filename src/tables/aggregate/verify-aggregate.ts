import {
  BusyError,
  ConstraintViolationError,
  DatabaseError,
  InvalidInputError,
  StatementTimeoutError,
} from '../../errors.js'
import { wholeNumber } from '../../options/number-options.js'
import { optionTable } from '../../options/option-table.js'
import { abortSignal, boolean } from '../../options/value-options.js'
import { emit } from '../../postgres/events.js'
import type { Row } from '../../postgres/executor.js'
import type { Column } from '../catalog/table.js'
import { readExactText } from '../exact-text.js'
import type { Rows } from '../row-executor.js'
import { RowArgs } from '../sql-values.js'
import { type AggregateCall, LIMIT_MS, MAX_TIMEOUTS_IN_A_ROW } from './aggregate-call.js'
import { driftedSql, nextSql, pageSql, unlockableSql } from './drift-sql.js'

export interface VerifyOptions {
  /** Recompute the parents that are wrong. Default false. */
  readonly repair?: boolean | undefined
  /** How many parents one statement checks: 1 to 10,000. Default 1,000. */
  readonly batch?: number | undefined
  /** Ends the run after the current batch. */
  readonly signal?: AbortSignal | undefined
}

export const verifyOptions = optionTable<VerifyOptions>()('aggregate.verify', {
  repair: boolean({ default: false }),
  batch: wholeNumber({ default: 1_000, max: 10_000 }),
  signal: abortSignal(),
})

/** A parent whose totals differed from its children. */
export interface Drift {
  /** The primary key. An object if the key has several columns. */
  readonly id: unknown
  /** The columns that were wrong, with their values as strings. */
  readonly columns: Readonly<
    Record<string, { readonly stored: string | null; readonly derived: string | null }>
  >
  /**
   * Why the parent could not be compared or repaired: its totals do not fit the columns, the count takes too long, or a trigger or a policy keeps the row as it
   * is. Then `columns` is empty, unless a trigger keeps the row.
   */
  readonly failed?: string | undefined
}

export interface AggregateReport {
  /** How many parents were checked. */
  readonly checked: number
  /** How many parents were wrong, or could not be compared. */
  readonly driftedCount: number
  /** The first 1,000 of these parents. */
  readonly drifted: readonly Drift[]
  /** How many of the drifted parents this run has repaired. */
  readonly repaired: number
  /** How many other parents differed, because they are marked or were just being written. */
  readonly unsettled: number
}

const MAX_LISTED = 1_000
/** The longest wait for a lock on a whole table. */
const WAIT_MS = 1_000
const NOT_WRITTEN = 'a trigger or a policy keeps it as it is'

/**
 * First compares without locks, page by page. A parent that differs is compared again under its lock, where no writer can come
 * between the child and the count. A parent that still differs is wrong.
 */
export async function verifyAggregate(
  name: string,
  rows: Rows,
  call: AggregateCall,
  options: VerifyOptions | undefined,
): Promise<AggregateReport> {
  const { repair, batch, signal } = verifyOptions.read(options)
  const run = new Verification(call, repair, signal)
  const { drifted, report } = run
  try {
    await run.part(batch, Number.POSITIVE_INFINITY)
  } finally {
    // Emit even if the run fails: no other run finds again what this run has found and repaired.
    if (report.driftedCount > 0)
      emit('dibs:aggregate.drifted', {
        ...rows.origin,
        aggregate: name,
        count: report.driftedCount,
        isRepaired: report.repaired === report.driftedCount,
      })
  }
  return { ...report, drifted }
}

class Verification {
  readonly drifted: Drift[] = []
  readonly report = { checked: 0, driftedCount: 0, repaired: 0, unsettled: 0 }
  readonly #call: AggregateCall
  readonly #repairs: boolean
  readonly #signal: AbortSignal | undefined
  /** The last parent that was read. Null at the end. */
  #after: string | null | undefined
  /** The error of a wait inside a trigger, which may concern a single parent. */
  #blockedError: unknown
  /** How many parents in a row met this error, with none repaired in between. */
  #timeoutsInARow = 0

  constructor(call: AggregateCall, repairs: boolean, signal: AbortSignal | undefined) {
    this.#call = call
    this.#repairs = repairs
    this.#signal = signal
  }

  /**
   * Checks the next `pages` pages. A page that fails or takes too long is split into ten parts, and again, down to the parent
   * that causes it.
   */
  async part(batch: number, pages: number): Promise<void> {
    for (let page = 0; page < pages && this.#after !== null && !this.#signal?.aborted; page++) {
      const error = await this.#page(batch)
      if (error === undefined) continue
      if (batch > 1) await this.part(Math.ceil(batch / 10), 10)
      else await this.#single()
    }
  }

  /** Checks one page. The results count only if all of the page succeeds. Returns an error that concerns only some parents. */
  async #page(batch: number): Promise<unknown> {
    try {
      const page = await readPage(this.#call, this.#after ?? undefined, batch)
      const found = page.suspects.length > 0 ? await this.#confirm(page.suspects) : []
      this.#add(page, found)
      this.#advance(page.count === batch ? page.last : null)
    } catch (error) {
      if (!this.#failsForSome(error)) throw error
      return error
    }
  }

  #confirm(suspects: readonly string[]): Promise<Drift[]> {
    return confirm(this.#call, suspects, this.#repairs).catch((error) => {
      // The statement skips locked parents. The wait was therefore for the tables, or, with `repair`, for rows that a trigger
      // writes to.
      if (this.#repairs && error instanceof BusyError && error.blockers) this.#blockedError = error
      throw error
    })
  }

  #failsForSome(error: unknown): boolean {
    return failsForSome(error) || error === this.#blockedError
  }

  /** Checks a single parent under its lock, even if the comparison without a lock fails: the parent may be correct by then. */
  async #single(): Promise<void> {
    const page = await readPage(this.#call, this.#after ?? undefined)
    this.#advance(page.last ?? null)
    if (page.last === undefined) return
    try {
      this.#add(page, await this.#confirm(page.suspects))
    } catch (error) {
      if (!this.#failsForSome(error)) throw error
      if (error === this.#blockedError && ++this.#timeoutsInARow === MAX_TIMEOUTS_IN_A_ROW) throw error
      this.#add(page, [{ id: page.id, columns: {}, failed: (error as Error).message }])
    }
  }

  /** A key may sort behind its own text if that text loses information. The same parent would then be the next one forever. */
  #advance(last: string | null | undefined): void {
    // guard: aggregate.verify-end
    if (typeof last === 'string' && last === this.#after)
      throw new InvalidInputError(
        'parent',
        `has a primary key that cannot be gone through: PostgreSQL takes the key with the text ${last} for one behind it`,
      )
    this.#after = last
  }

  #add(page: Page, found: readonly Drift[]): void {
    if (this.#repairs) {
      const repaired = found.filter(({ failed }) => failed === undefined).length
      this.report.repaired += repaired
      if (repaired > 0) this.#timeoutsInARow = 0
    }
    this.report.checked += page.count
    this.report.driftedCount += found.length
    this.report.unsettled += page.suspects.length - found.length
    this.drifted.push(...found.slice(0, MAX_LISTED - this.drifted.length))
  }
}

/** SQLSTATEs that all other parents are known to meet too. A policy that forbids one row (42501) is not among them. */
const statesForAll = /^(0A|25|3F|42(?!501)|55|58|XX)/

/**
 * True if the error concerns one of the parents, or the batch is too large for the time limit. The others can then be checked
 * separately.
 */
const failsForSome = (error: unknown): boolean =>
  error instanceof ConstraintViolationError ||
  (error instanceof StatementTimeoutError && error.sqlState !== undefined) ||
  (error instanceof DatabaseError && !statesForAll.test(error.sqlState))

interface Page {
  readonly suspects: readonly string[]
  readonly last: string | undefined
  /** The last id, as the caller's driver returns it. */
  readonly id: unknown
  readonly count: number
}

/** Reads the next page. Without `batch`, reads only the next parent, whether its totals differ or not. */
async function readPage(call: AggregateCall, after: string | undefined, batch?: number): Promise<Page> {
  let key: readonly Column[] = []
  const results = await call(undefined, (sql) => {
    key = sql.key
    const args = new RowArgs()
    const hasStart = after !== undefined
    if (hasStart) args.place(after, 'pg_catalog.text')
    const page = batch === undefined ? nextSql(sql, hasStart) : pageSql(sql, hasStart, batch)
    const limit = { ms: LIMIT_MS, readOnly: true }
    return { name: 'row_claim', statements: [page], args, waitMs: WAIT_MS, limit }
  })
  const seen = results.map(({ state, detail: text, row }) => {
    const { id, count } = JSON.parse(`${text}`)
    return { state, row, count, id: readExactId(key, id) }
  })
  const last = seen.at(-1)
  return {
    suspects: seen.filter(({ state }) => state === 'suspect').map(({ id }) => id),
    last: last?.id,
    id: last && idOf(last.row, key),
    count: last?.count ?? 0,
  }
}

async function confirm(call: AggregateCall, ids: readonly string[], repairs: boolean): Promise<Drift[]> {
  let key: readonly Column[] = []
  const results = await call(undefined, (sql) => {
    key = sql.key
    const args = new RowArgs()
    for (const id of ids) args.place(id, 'pg_catalog.text')
    return {
      name: 'aggregate_recompute',
      statements: [sql.lockAvailable, driftedSql(sql, { repairs }), unlockableSql(sql), sql.lockers], // guard: aggregate.verify-lock-free
      args,
      rest: ['0'],
      waitMs: WAIT_MS,
      // Not `readOnly`, even without `repair`: the row locks are then released before the result arrives.
      limit: { ms: LIMIT_MS, readOnly: false },
    }
  })
  return results.map(({ state, detail: text, row }) => ({
    id: idOf(row, key),
    columns: onlyWrong(JSON.parse(`${text}`) ?? {}),
    ...(state === 'kept' ? { failed: NOT_WRITTEN } : {}),
  }))
}

/** Converts the texts of the key's columns to texts that our statements read. */
const readExactId = (key: readonly Column[], id: string): string =>
  JSON.stringify((JSON.parse(id) as string[]).map((text, n) => readExactText(key[n] as Column, text)))

function idOf(row: Row, key: readonly Column[]): unknown {
  const parts = key.map(({ name }) => [name, row[name]])
  return parts.length === 1 ? parts[0]?.[1] : Object.fromEntries(parts)
}

function onlyWrong(columns: Drift['columns']): Drift['columns'] {
  return Object.fromEntries(Object.entries(columns).filter(([, { stored, derived }]) => stored !== derived))
}
