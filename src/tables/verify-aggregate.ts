import {
  BusyError,
  ConstraintViolationError,
  DatabaseError,
  InvalidInputError,
  StatementTimeoutError,
} from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import { emit } from '../postgres/events.js'
import type { Row } from '../postgres/executor.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import { RowArgs } from '../postgres/rows/row-args.js'
import type { Rows } from '../postgres/rows/rows.js'
import type { Column } from '../postgres/rows/table.js'
import { type AggregateCall, LIMIT_MS, MAX_VAIN } from './aggregate-call.js'
import { driftedSql, keptSql, nextSql, pageSql } from './aggregate-drift.js'
import { readExactText } from './exact-text.js'

export interface VerifyOptions {
  /** Recompute the parents that are wrong. Default false. */
  readonly repair?: boolean | undefined
  /** How many parents one statement checks: 1 to 10,000. Default 1,000. */
  readonly batch?: number | undefined
  /** Ends the run after the current batch. */
  readonly signal?: AbortSignal | undefined
}

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

const BATCH = 1_000
const MAX_BATCH = 10_000
const MAX_LISTED = 1_000
/** The longest wait for a lock on a whole table. */
const WAIT_MS = 1_000
const KEPT = 'a trigger or a policy keeps it as it is'

/**
 * First compares without locks, page by page. A parent that differs is compared again under its lock, where no writer can be between the child and the count. A
 * parent that still differs is wrong.
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
      `must be a whole number from 1 to ${MAX_BATCH}, not ${showGiven(batch)}`,
    )
  const run = new Verification(call, repair, signal)
  const { drifted, report } = run
  try {
    await run.part(batch, Number.POSITIVE_INFINITY)
  } finally {
    // Also when the run fails: no other run finds again what this run has found and repaired.
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
  #heldUp: unknown
  /** How many parents in a row met this error, with none repaired in between. */
  #inVain = 0

  constructor(call: AggregateCall, repairs: boolean, signal: AbortSignal | undefined) {
    this.#call = call
    this.#repairs = repairs
    this.#signal = signal
  }

  /** Checks the next `pages` pages. A page that fails or takes too long is split into ten parts, and so on, down to the single parent that causes it. */
  async part(batch: number, pages: number): Promise<void> {
    for (let page = 0; page < pages && this.#after !== null && !this.#signal?.aborted; page++) {
      const error = await this.#page(batch)
      if (error === undefined) continue
      if (batch > 1) await this.part(Math.ceil(batch / 10), 10)
      else await this.#single()
    }
  }

  /** Checks one page. Its results count only if all of it succeeds. Returns an error that concerns only some parents. */
  async #page(batch: number): Promise<unknown> {
    try {
      const page = await readPage(this.#call, this.#after ?? undefined, batch)
      const found = page.suspects.length > 0 ? await this.#confirm(page.suspects) : []
      this.#add(page, found)
      this.#goOn(page.count === batch ? page.last : null)
    } catch (error) {
      if (!this.#isOfSome(error)) throw error
      return error
    }
  }

  #confirm(suspects: readonly string[]): Promise<Drift[]> {
    return confirm(this.#call, suspects, this.#repairs).catch((error) => {
      // The statement skips locked parents. So the wait was for the tables, or, with `repair`, for what a trigger writes to.
      if (this.#repairs && error instanceof BusyError && error.blockers) this.#heldUp = error
      throw error
    })
  }

  #isOfSome(error: unknown): boolean {
    return isOfSome(error) || error === this.#heldUp
  }

  /** Checks a single parent under its lock, even if it cannot be compared without: the parent may be right by then. */
  async #single(): Promise<void> {
    const page = await readPage(this.#call, this.#after ?? undefined)
    this.#goOn(page.last ?? null)
    if (page.last === undefined) return
    try {
      this.#add(page, await this.#confirm(page.suspects))
    } catch (error) {
      if (!this.#isOfSome(error)) throw error
      if (error === this.#heldUp && ++this.#inVain === MAX_VAIN) throw error
      this.#add(page, [{ id: page.id, columns: {}, failed: (error as Error).message }])
    }
  }

  /** If the text of a key loses information, the key may sort behind its own text. The same parent would then be the next one forever. */
  #goOn(last: string | null | undefined): void {
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
      if (repaired > 0) this.#inVain = 0
    }
    this.report.checked += page.count
    this.report.driftedCount += found.length
    this.report.unsettled += page.suspects.length - found.length
    this.drifted.push(...found.slice(0, MAX_LISTED - this.drifted.length))
  }
}

/** SQLSTATEs that all other parents are known to meet too. A policy that forbids one row (42501) is not among them. */
const everyones = /^(0A|25|3F|42(?!501)|55|58|XX)/

/** Whether the error concerns one of the parents, or the batch is too large for the time limit. The others can then be checked separately. */
const isOfSome = (error: unknown): boolean =>
  error instanceof ConstraintViolationError ||
  (error instanceof StatementTimeoutError && error.sqlState !== undefined) ||
  (error instanceof DatabaseError && !everyones.test(error.sqlState))

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
  const told = await call(undefined, (sql) => {
    key = sql.key
    const args = new RowArgs()
    const isBehind = after !== undefined
    if (isBehind) args.place(after, 'pg_catalog.text')
    const page = batch === undefined ? nextSql(sql, isBehind) : pageSql(sql, isBehind, batch)
    const limit = { ms: LIMIT_MS, readOnly: true }
    return { name: 'row_claim', statements: [page], args, waitMs: WAIT_MS, limit }
  })
  const seen = told.map(({ state, told: text, row }) => {
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
  const told = await call(undefined, (sql) => {
    key = sql.key
    const args = new RowArgs()
    for (const id of ids) args.place(id, 'pg_catalog.text')
    return {
      name: 'aggregate_recompute',
      statements: [sql.lockFree, driftedSql(sql, { repairs }), keptSql(sql), sql.lockers],
      args,
      rest: ['0'],
      waitMs: WAIT_MS,
      // Not `readOnly`, even without `repair`: the row locks are then released before the result arrives.
      limit: { ms: LIMIT_MS, readOnly: false },
    }
  })
  return told.map(({ state, told: text, row }) => ({
    id: idOf(row, key),
    columns: onlyWrong(JSON.parse(`${text}`) ?? {}),
    ...(state === 'kept' ? { failed: KEPT } : {}),
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
