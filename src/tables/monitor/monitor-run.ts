import { describeRow, idToJson } from '../../errors/describe-row.js'
import { isPlain } from '../../errors/is-plain.js'
import {
  BusyError,
  ClosedError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  DatabaseError,
  InvalidInputError,
  NotWrittenError,
  StatementTimeoutError,
} from '../../errors.js'
import { showGiven } from '../../options/name-given.js'
import type { Database } from '../../postgres/database.js'
import { emit } from '../../postgres/events.js'
import type { Row } from '../../postgres/executor.js'
import { readFault } from '../../postgres/fault.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import type { Table } from '../catalog/table.js'
import type { RowCall, RowResult } from '../row-call.js'
import type { Rows } from '../row-executor.js'
import type { RowPlace } from './monitor-conditions.js'
import type { MonitorAction, MonitorRule, MonitorVerdict } from './monitor-options.js'
import type { MonitorWrite } from './monitor-sets.js'
import { listCall, pickCall, sweepCall, verdictCall } from './monitor-statements.js'

/** The maximum number of batches in one run. The next run handles the remaining rows. */
const MAX_BATCHES = 100 // guard: monitor.run-end
/** A run stops after this many rows that are locked or take too long, because each costs a wait. */
const MAX_SLOW_ROWS = 10

/** The number of rows for each outcome. */
export interface MonitorCounts {
  readonly requeued: number
  readonly failed: number
  readonly handled: number
  readonly left: number
  readonly errors: number
}

/** One run over the stuck rows, from the oldest to the newest. The run continues after each row that it could not change. */
export class MonitorRun {
  readonly counts = { requeued: 0, failed: 0, handled: 0, left: 0, errors: 0 } satisfies MonitorCounts
  readonly #database: Database
  readonly #rows: Rows
  readonly #rule: MonitorRule
  readonly #signal: AbortSignal | undefined
  /** The position of the last row that the run has seen. */
  #after: RowPlace | undefined
  /** The names of the columns of the key. */
  #key: readonly string[] = []
  #slowRows = 0

  constructor(database: Database, rows: Rows, rule: MonitorRule, signal: AbortSignal | undefined) {
    this.#database = database
    this.#rows = rows
    this.#rule = rule
    this.#signal = signal
  }

  /** Processes all stuck rows, up to the limits of a run. Returns true if more rows may be stuck. */
  async runToEnd(): Promise<boolean> {
    const { action, batch } = this.#rule
    const maxSteps = typeof action === 'function' ? MAX_BATCHES * batch : MAX_BATCHES
    for (let step = 0; step < maxSteps; step++) {
      if (this.#mustStop) return true
      const before = this.#after
      const hasMore = await (typeof action === 'function' ? this.#handleNext(action) : this.#sweep(action))
      if (!hasMore) return false
      // If a session setting has rounded the position, as in a key of several numbers, the same row would come again.
      if (JSON.stringify(this.#after) === JSON.stringify(before)) return true
    }
    return true
  }

  get #mustStop(): boolean {
    return this.#signal?.aborted === true || this.#slowRows >= MAX_SLOW_ROWS
  }

  /** Handles one batch in one statement. Returns true if there may be more rows. */
  async #sweep(write: 'requeue' | 'fail'): Promise<boolean> {
    const after = this.#after
    let picked: readonly RowResult[]
    try {
      picked = await this.#send((table) => sweepCall(table, this.#rule, write, { after }))
    } catch (error) {
      if (failsForAll(error)) throw error
      return this.#sweepSingly(write) // guard: monitor.isolate
    }
    for (const row of picked) this.#count(row)
    return picked.length === this.#rule.batch
  }

  /** Handles the rows of a batch one by one, so that one bad row fails alone. */
  async #sweepSingly(write: 'requeue' | 'fail'): Promise<boolean> {
    const seen = await this.#send((table) => listCall(table, this.#rule, this.#after))
    for (const { detail, row } of seen) {
      if (this.#mustStop) return true
      const only = readPlace(detail)
      try {
        const [done] = await this.#send((table) => sweepCall(table, this.#rule, write, { only })) // guard: monitor.singly-condition
        if (done) this.#count(done)
      } catch (error) {
        if (failsForAll(error)) throw error
        if (isSlow(error)) this.#slowRows++
        this.#fail(row, error)
      }
      this.#after = only
    }
    return seen.length === this.#rule.batch
  }

  #count({ state, detail, row }: RowResult): void {
    this.#after = readPlace(detail)
    if (state === 'requeued' || state === 'failed') this.counts[state]++
    else this.#fail(row, this.#notWritten(row))
  }

  /** Handles the next row in its own transaction. Returns false if there was none. */
  async #handleNext(action: MonitorAction<never>): Promise<boolean> {
    let picked: RowResult | undefined
    try {
      const done = await this.#database.transaction(
        async (tx) => {
          picked = undefined
          const [first] = await this.#send((table) => pickCall(table, this.#rule, this.#after), tx) // guard: monitor.function-verdict-joined
          if (!first) return undefined
          picked = first
          return await this.#apply(await action(first.row as never, tx), first, tx)
        },
        { maxAttempts: 2 },
      )
      if (!picked || !done) return false
      this.counts[done]++
    } catch (error) {
      // An error before a row was picked concerns no row, and the next attempt would meet it too. If COMMIT got no answer, it
      // is unknown whether the row was changed.
      if (!picked || isOutcomeUnknown(error) || isServerFault(error)) throw error
      // A row may cost its function the connection each time, if the function idles for longer than the server allows. If the
      // server is unavailable, the next pick fails.
      if (isSlow(error) || error instanceof ConnectionLostError) this.#slowRows++ // guard: monitor.function-connections
      this.#fail(picked.row, error)
    }
    this.#after = readPlace(picked.detail)
    return true
  }

  async #apply(verdict: unknown, { row, detail }: RowResult, tx: Transaction): Promise<keyof MonitorCounts> {
    const write = readVerdict(verdict)
    if (write === undefined) return 'left'
    const [done] = await this.#send((table) => verdictCall(table, this.#rule, write, readPlace(detail)), tx)
    if (done?.state === 'requeued' || done?.state === 'failed' || done?.state === 'handled') return done.state
    throw this.#notWritten(row)
  }

  #send(build: (table: Table) => RowCall, tx?: Transaction): Promise<readonly RowResult[]> {
    return this.#rows.call(tx, this.#rule.table, (table) => {
      this.#key = table.key.map(({ name }) => name)
      return build(table)
    })
  }

  #idOf(row: Row): unknown {
    const [first = '', ...more] = this.#key
    const id = more.length === 0 ? row[first] : Object.fromEntries(this.#key.map((name) => [name, row[name]]))
    return idToJson(id)
  }

  #notWritten(row: Row): NotWrittenError {
    const { table } = this.#rule
    const id = this.#idOf(row)
    return new NotWrittenError(describeRow(table, id), table, id)
  }

  #fail(row: Row, error: unknown): void {
    this.counts.errors++
    const { name: monitor, table } = this.#rule
    emit('dibs:monitor.row-failed', { ...this.#database.origin, monitor, table, id: this.#idOf(row), error })
  }
}

/** True if all other rows would meet the error too. */
const failsForAll = (error: unknown): boolean =>
  error instanceof ConnectionLostError ||
  error instanceof InvalidInputError ||
  isOutcomeUnknown(error) ||
  isServerFault(error)

const isOutcomeUnknown = (error: unknown): boolean =>
  error instanceof ClosedError || error instanceof CommitOutcomeUnknownError

/**
 * True if the server accepts no writes, lacks resources, or denies a right. A policy or a trigger may refuse one row with the
 * same code, but with another message.
 */
const isServerFault = (error: unknown): boolean =>
  (error instanceof DatabaseError &&
    (/^(25006|53|58)/.test(error.sqlState) ||
      (error.sqlState === '42501' && error.message.includes('permission denied')))) ||
  (error instanceof BusyError && /^53/.test(`${readFault(error.cause)?.sqlState}`))

/** True if the row has used up its time, as the next one may. */
const isSlow = (error: unknown): boolean =>
  error instanceof BusyError || error instanceof StatementTimeoutError

const readPlace = (detail: string | null): RowPlace => JSON.parse(`${detail}`)

function readVerdict(verdict: MonitorVerdict | unknown): MonitorWrite | undefined {
  if (verdict === undefined || verdict === 'leave') return undefined
  if (verdict === 'requeue' || verdict === 'fail') return verdict
  if (isPlain(verdict) && isPlain(verdict.set) && Object.keys(verdict).length === 1)
    return { set: verdict.set }
  throw new InvalidInputError(
    'action',
    `must answer 'requeue', 'fail', 'leave' or { set }, not ${showGiven(verdict)}`,
  )
}
