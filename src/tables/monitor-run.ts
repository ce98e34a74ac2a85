import {
  BusyError,
  ClosedError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  DatabaseError,
  InvalidInputError,
  NotWrittenError,
  StatementTimeoutError,
} from '../errors.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import type { Row } from '../postgres/executor.js'
import { readFault } from '../postgres/fault.js'
import { showGiven } from '../postgres/name-given.js'
import { isPlain } from '../postgres/rows/row-args.js'
import { nameRow, showId } from '../postgres/rows/row-id.js'
import type { RowCall, Rows, ToldRow } from '../postgres/rows/rows.js'
import type { Table } from '../postgres/rows/table.js'
import type { Transaction } from '../postgres/transaction-types.js'
import type { RowPlace } from './monitor-conditions.js'
import type { MonitorAction, MonitorRule, MonitorVerdict } from './monitor-options.js'
import type { MonitorWrite } from './monitor-sets.js'
import { listCall, pickCall, sweepCall, verdictCall } from './monitor-statements.js'

/** Batches in one run. What is left over is stuck all the same, and goes in the next. */
const MAX_BATCHES = 100
/** Rows that somebody is in the way of, or that take too long, until a run ends: each takes its wait. */
const MAX_BUSY = 10

/** How many rows ended in which way. */
export interface MonitorCounts {
  readonly requeued: number
  readonly failed: number
  readonly handled: number
  readonly left: number
  readonly errors: number
}

/** One run: it goes from the oldest to the newest, and on behind each row that it could not change. */
export class MonitorRun {
  readonly counts = { requeued: 0, failed: 0, handled: 0, left: 0, errors: 0 } satisfies MonitorCounts
  readonly #database: Database
  readonly #rows: Rows
  readonly #rule: MonitorRule
  readonly #signal: AbortSignal | undefined
  /** The last row that it has seen. */
  #after: RowPlace | undefined
  /** The names of the columns of the key. */
  #key: readonly string[] = []
  #busy = 0

  constructor(database: Database, rows: Rows, rule: MonitorRule, signal: AbortSignal | undefined) {
    this.#database = database
    this.#rows = rows
    this.#rule = rule
    this.#signal = signal
  }

  /** To the end of what is stuck, or of what a run may do: whether there may be more. */
  async toEnd(): Promise<boolean> {
    const { action, batch } = this.#rule
    const turns = typeof action === 'function' ? MAX_BATCHES * batch : MAX_BATCHES
    for (let turn = 0; turn < turns; turn++) {
      if (this.#isOver) return true
      const before = this.#after
      const goesOn = await (typeof action === 'function' ? this.#decide(action) : this.#sweep(action))
      if (!goesOn) return false
      // A place that a setting of the session has rounded, in a key of several numbers, leads to the same row again.
      if (JSON.stringify(this.#after) === JSON.stringify(before)) return true
    }
    return true
  }

  get #isOver(): boolean {
    return this.#signal?.aborted === true || this.#busy >= MAX_BUSY
  }

  /** A batch; whether there may be another. */
  async #sweep(write: 'requeue' | 'fail'): Promise<boolean> {
    const after = this.#after
    let picked: readonly ToldRow[]
    try {
      picked = await this.#send((table) => sweepCall(table, this.#rule, write, { after }))
    } catch (error) {
      if (isEveryones(error)) throw error
      return this.#sweepSingly(write)
    }
    for (const row of picked) this.#count(row)
    return picked.length === this.#rule.batch
  }

  /** One bad row fails alone. */
  async #sweepSingly(write: 'requeue' | 'fail'): Promise<boolean> {
    const seen = await this.#send((table) => listCall(table, this.#rule, this.#after))
    for (const { told, row } of seen) {
      if (this.#isOver) return true
      const only = readPlace(told)
      try {
        const [done] = await this.#send((table) => sweepCall(table, this.#rule, write, { only }))
        if (done) this.#count(done)
      } catch (error) {
        if (isEveryones(error)) throw error
        if (isSlow(error)) this.#busy++
        this.#fail(row, error)
      }
      this.#after = only
    }
    return seen.length === this.#rule.batch
  }

  #count({ state, told, row }: ToldRow): void {
    this.#after = readPlace(told)
    if (state === 'requeued' || state === 'failed') this.counts[state]++
    else this.#fail(row, this.#notWritten(row))
  }

  /** The next row, in a transaction of its own; whether there was one. */
  async #decide(action: MonitorAction<never>): Promise<boolean> {
    let picked: ToldRow | undefined
    try {
      const done = await this.#database.transaction(
        async (tx) => {
          picked = undefined
          const [first] = await this.#send((table) => pickCall(table, this.#rule, this.#after), tx)
          if (!first) return undefined
          picked = first
          return await this.#carryOut(await action(first.row as never, tx), first, tx)
        },
        { maxAttempts: 2 },
      )
      if (!picked || !done) return false
      this.counts[done]++
    } catch (error) {
      // What happens before there is a row is not the fault of one, and the next would meet it too. Of a row whose COMMIT was not answered nobody knows whether it was changed.
      if (!picked || isUnknown(error) || isServers(error)) throw error
      // A row may cost its function the connection each time, if that stands still for longer than the server lets it. If the server is away, the next row cannot be picked.
      if (isSlow(error) || error instanceof ConnectionLostError) this.#busy++
      this.#fail(picked.row, error)
    }
    this.#after = readPlace(picked.told)
    return true
  }

  async #carryOut(verdict: unknown, { row, told }: ToldRow, tx: Transaction): Promise<keyof MonitorCounts> {
    const write = readVerdict(verdict)
    if (write === undefined) return 'left'
    const [done] = await this.#send((table) => verdictCall(table, this.#rule, write, readPlace(told)), tx)
    if (done?.state === 'requeued' || done?.state === 'failed' || done?.state === 'handled') return done.state
    throw this.#notWritten(row)
  }

  #send(build: (table: Table) => RowCall, tx?: Transaction): Promise<readonly ToldRow[]> {
    return this.#rows.call(tx, this.#rule.table, (table) => {
      this.#key = table.key.map(({ name }) => name)
      return build(table)
    })
  }

  #idOf(row: Row): unknown {
    const [first = '', ...more] = this.#key
    const id = more.length === 0 ? row[first] : Object.fromEntries(this.#key.map((name) => [name, row[name]]))
    return showId(id)
  }

  #notWritten(row: Row): NotWrittenError {
    const { table } = this.#rule
    const id = this.#idOf(row)
    return new NotWrittenError(nameRow(table, id), table, id)
  }

  #fail(row: Row, error: unknown): void {
    this.counts.errors++
    const { name: monitor, table } = this.#rule
    emit('dibs:monitor.row-failed', { ...this.#database.origin, monitor, table, id: this.#idOf(row), error })
  }
}

/** All other rows would meet it too. */
const isEveryones = (error: unknown): boolean =>
  error instanceof ConnectionLostError ||
  error instanceof InvalidInputError ||
  isUnknown(error) ||
  isServers(error)

const isUnknown = (error: unknown): boolean =>
  error instanceof ClosedError || error instanceof CommitOutcomeUnknownError

/** It takes no writes, or has no room; or it lacks a right. A policy or a trigger may refuse one row with the same code, in other words. */
const isServers = (error: unknown): boolean =>
  (error instanceof DatabaseError &&
    (/^(25006|53|58)/.test(error.sqlState) ||
      (error.sqlState === '42501' && error.message.includes('permission denied')))) ||
  (error instanceof BusyError && /^53/.test(`${readFault(error.cause)?.sqlState}`))

/** It has taken its time, and so may the next one. */
const isSlow = (error: unknown): boolean =>
  error instanceof BusyError || error instanceof StatementTimeoutError

const readPlace = (told: string | null): RowPlace => JSON.parse(`${told}`)

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
