import { FenceLostError, InvalidInputError } from '../errors.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { emit } from '../postgres/events.js'
import { type Storable, toJson } from '../postgres/json.js'
import { showGiven } from '../postgres/name-given.js'
import { surely } from '../postgres/send-surely.js'
import type { Transaction } from '../postgres/transaction-types.js'
import { askRow } from './ask-row.js'
import type { Attempt } from './attempt.js'
import type { Engine } from './engine.js'
import { tellJob } from './job-statements.js'

/** Writes a line about the job to the logger of the instance. */
export type JobLog = Readonly<
  Record<'debug' | 'info' | 'warn' | 'error', (message: string, fields?: object) => void>
>

/** What a handler is told of the job that it runs, and what it may say of it. */
export interface JobContext {
  /** Of the job. */
  readonly id: string
  readonly name: string
  readonly queue: string
  /** From 1; an attempt that was given back or snoozed does not count. */
  readonly attempt: number
  readonly maxAttempts: number
  /** If this fails, the job is dead. */
  readonly isLastAttempt: boolean
  /** Grows with each claim of the job: hand it to whatever can refuse a late write. */
  readonly fence: number
  readonly correlationId: string | undefined
  readonly createdAt: Date
  /** Who runs it. */
  readonly worker: string
  /** Fires when the work is not to go on: the lease is lost, the time is over, the job was canceled, the worker stops. Its reason says which. */
  readonly signal: AbortSignal
  readonly log: JobLog
  /** Keeps how far it has come, for `jobs.get`. `FenceLostError` if another has the job by now. */
  progress<T>(value: T & Storable<T>): Promise<void>
  /** Puts the end of the lease at least so far from now, for work that lets no heartbeat through. Later heartbeats do not shorten it. */
  extendLease(ms: number): Promise<void>
}

/** The same in a transaction that ends together with the job. */
export interface TransactionalContext extends JobContext {
  /** What is written here is kept if, and only if, this attempt is recorded as succeeded. */
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

  /** For those without types, who would else be told that undefined has no `query`. Not a field: whoever copies or logs the context does not ask for it. */
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
      // Loggers are called in both ways, and without types nobody says which.
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

  /** Made when somebody looks, and whole by itself: handlers take their context apart. */
  get progress(): JobContext['progress'] {
    return async (value) => await this.#tell(toJson('progress', value), 0)
  }

  get extendLease(): JobContext['extendLease'] {
    return async (ms) => {
      checkDuration('ms', ms, 1, MAX_TIMER_MS)
      const sentAt = performance.now()
      await this.#tell(null, ms)
      this.#attempt.extended(sentAt, ms)
    }
  }

  async #tell(progress: string | null, leaseMs: number): Promise<void> {
    const { job, subject } = this.#attempt
    this.#checkHeld()
    const values = (waitMs: number) => [
      ...[String(job.id), String(job.fence), progress, String(leaseMs), String(waitMs)],
    ]
    const row = await surely(() => askRow(this.#engine, tellJob, values, WAIT_MS))
    if (row?.state === 'locked') throw this.#engine.database.busy(WAIT_MS)
    if (row?.state === 'lost') throw new FenceLostError(subject, job.fence)
  }

  #checkHeld(): void {
    const { state, job, subject } = this.#attempt
    if (state === 'lost') throw new FenceLostError(subject, job.fence)
    if (state === 'ended')
      throw new InvalidInputError('ctx', `is of an attempt that has ended, of ${subject}`)
  }
}
