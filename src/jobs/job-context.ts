import { FenceLostError, InvalidInputError } from '../errors.js'
import { checkDuration, MAX_TIMER_MS } from '../options/check-duration.js'
import { showGiven } from '../options/name-given.js'
import { emit } from '../postgres/events.js'
import { type Storable, toJson } from '../postgres/json.js'
import { RESEND, retry } from '../postgres/retry.js'
import type { Transaction } from '../postgres/transaction-types.js'
import type { Attempt } from './attempt.js'
import type { Engine } from './engine.js'
import { reportProgress } from './job-statements.js'
import { updateJobRow } from './update-job-row.js'

/** Writes a line about the job to the logger of the instance. */
export type JobLog = Readonly<
  Record<'debug' | 'info' | 'warn' | 'error', (message: string, fields?: object) => void>
>

/** The job that a handler runs, as the handler sees it, and what the handler can report about it. */
export interface JobContext {
  /** The id of the job, the same in all attempts. */
  readonly id: string
  readonly name: string
  readonly queue: string
  /** The number of the attempt, from 1. A released or snoozed attempt does not count. */
  readonly attempt: number
  readonly maxAttempts: number
  /** True if the job is dead after this attempt fails. */
  readonly isLastAttempt: boolean
  /** Grows with each claim of the job. Pass it to a store that can refuse a late write. */
  readonly fence: number
  readonly correlationId: string | undefined
  readonly createdAt: Date
  /** The id of the worker that runs the job. */
  readonly worker: string
  /** Fires when the handler should stop: the lease is lost, the timeout has passed, the job was canceled, or the worker stops. `signal.reason` says which. */
  readonly signal: AbortSignal
  readonly log: JobLog
  /** Stores a progress value, for `jobs.get`. Throws `FenceLostError` if another worker has the job by now. */
  progress<T>(value: T & Storable<T>): Promise<void>
  /** Moves the end of the lease to at least `ms` from now, for work that blocks heartbeats. Later heartbeats do not shorten it. */
  extendLease(ms: number): Promise<void>
}

/** A `JobContext` with a transaction that ends together with the job. */
export interface TransactionalContext extends JobContext {
  /** The transaction of the attempt. Its writes are kept if, and only if, this attempt is recorded as succeeded. */
  readonly tx: Transaction
}

const WAIT_MS = 5_000

export class AttemptContext implements JobContext {
  readonly #engine: Engine
  readonly #attempt: Attempt
  readonly #tx: Transaction | undefined

  constructor(engine: Engine, attempt: Attempt, tx?: Transaction) {
    this.#engine = engine
    this.#attempt = attempt
    this.#tx = tx
  }

  /** Gives callers without types a clear error, in place of "undefined has no `query`". A getter, so that copying or logging the context does not call it. */
  get tx(): Transaction {
    if (this.#tx) return this.#tx
    throw new InvalidInputError('tx', 'is there only in a handler with `transactional: true`')
  }

  get id(): string {
    return String(this.#attempt.job.id)
  }

  get name(): string {
    return this.#attempt.definition.name
  }

  get queue(): string {
    return this.#attempt.definition.queue
  }

  get attempt(): number {
    return this.#attempt.job.attempt
  }

  get maxAttempts(): number {
    return this.#attempt.job.maxAttempts
  }

  get isLastAttempt(): boolean {
    return this.attempt >= this.maxAttempts
  }

  get fence(): number {
    return this.#attempt.job.fence
  }

  get correlationId(): string | undefined {
    return this.#attempt.job.correlationId ?? undefined
  }

  get createdAt(): Date {
    return new Date(this.#attempt.job.createdAt / 1000)
  }

  get worker(): string {
    return this.#attempt.worker
  }

  get signal(): AbortSignal {
    return this.#attempt.signal
  }

  get log(): JobLog {
    const write = (level: keyof JobLog) => (message: string, fields?: object) => {
      // Other loggers take the fields first. Callers without types may use either order.
      const isTurned = typeof message === 'object'
      const text = isTurned ? (fields ?? '') : message
      emit('dibs:job.logged', {
        ...this.#engine.origin,
        ...{ id: this.id, name: this.name, attempt: this.attempt, level },
        ...{
          message: typeof text === 'string' ? text : showGiven(text),
          fields: isTurned ? message : fields,
        },
      })
    }
    return { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') }
  }

  /** A getter that returns a function without `this`, because handlers destructure their context. */
  get progress(): JobContext['progress'] {
    return async (value) => await this.#report(toJson('progress', value), 0)
  }

  get extendLease(): JobContext['extendLease'] {
    return async (ms) => {
      checkDuration('ms', ms, 1, MAX_TIMER_MS)
      const sentAt = performance.now()
      await this.#report(null, ms)
      this.#attempt.extend(sentAt, ms)
    }
  }

  async #report(progress: string | null, leaseMs: number): Promise<void> {
    const { job, subject } = this.#attempt
    this.#checkHeld()
    const values = (waitMs: number) => [
      ...[String(job.id), String(job.fence), progress, String(leaseMs), String(waitMs)],
    ]
    const row = await retry(() => updateJobRow(this.#engine, reportProgress, values, WAIT_MS), RESEND)
    if (row?.state === 'locked') throw this.#engine.database.busy(WAIT_MS)
    if (row?.state === 'lost') throw new FenceLostError(subject, job.fence)
  }

  #checkHeld(): void {
    const { state, job, subject } = this.#attempt
    if (state === 'lost' || state === 'refused') throw new FenceLostError(subject, job.fence)
    if (state === 'ended')
      throw new InvalidInputError('ctx', `is of an attempt that has ended, of ${subject}`)
  }
}
