import { randomUUID } from 'node:crypto'
import { JobCanceledError, WorkerStoppedError } from '../errors.js'
import { emit } from '../postgres/events.js'
import { backoffMs, retry } from '../postgres/retry.js'
import { sleep } from '../postgres/sleep.js'
import { storeFailure } from '../postgres/stored-failure.js'
import { THIS_PROCESS } from '../postgres/this-process.js'
import { withTimeout } from '../postgres/with-timeout.js'
import { Attempt } from './attempt.js'
import { AttemptOutcomes } from './attempt-outcomes.js'
import type { ClaimedJob } from './claimed-job.js'
import type { Engine } from './engine.js'
import type { Fetcher } from './fetcher.js'
import type { HandledJob } from './handlers.js'
import type { HeartbeatMember } from './heartbeat.js'
import type { Claimant } from './lane-claimer.js'
import { type RunResult, runAttempt } from './run-attempt.js'
import {
  type ResolvedWorkOptions,
  type StopOptions,
  stopOptions,
  type Worker,
  type WorkerStats,
} from './work-options.js'
import { WorkerRegistration } from './worker-registration.js'
import { WorkerSlots } from './worker-slots.js'

/** How long an aborted handler may run on before it loses its slot, and before its job ends if the job was canceled. */
const STUCK_MS = 5_000
/** The jobs of a larger claim start only after the next claim has been sent. */
const SMALL_CLAIM = 20
/** How long `stop` waits, after the time to drain, until the worker is removed from the database. */
const LEAVE_MS = 5_000

/** One call of `dibs.work`. */
export class RunningWorker implements Worker, Claimant, HeartbeatMember {
  readonly id = `${THIS_PROCESS}:${randomUUID().slice(0, 8)}`
  readonly ready: Promise<void>
  /** Resolves when the worker has stopped. */
  readonly stopped: Promise<void>
  readonly #engine: Engine
  readonly #options: ResolvedWorkOptions
  readonly #registration: WorkerRegistration
  readonly #slots: WorkerSlots
  readonly #outcomes: AttemptOutcomes
  readonly #startPauses = new StartPauses()
  /** The timers of handlers that were aborted and still run. */
  readonly #stuckTimers = new Map<Attempt, NodeJS.Timeout>()
  readonly #stopping = new AbortController()
  #fetcher: Fetcher | undefined
  #started = 0
  #stop: Promise<void> | undefined
  #onStopped: () => void = () => {}

  constructor(engine: Engine, handled: readonly HandledJob[], options: ResolvedWorkOptions) {
    this.#engine = engine
    this.#options = options
    this.#registration = new WorkerRegistration(engine, this.id, options.concurrency, handled)
    this.#outcomes = new AttemptOutcomes(engine)
    this.#slots = new WorkerSlots(options, {
      onStart: (attempt) => this.#run(attempt),
      onStale: (attempt) => this.#outcomes.release(attempt),
      onFree: () => {
        if (this.room > 0) this.#fetcher?.wake()
      },
    })
    engine.enter(new Set(handled.map(({ definition }) => definition.keepDays)))
    this.stopped = new Promise((resolve) => {
      this.#onStopped = resolve
    })
    this.ready = this.#start()
    this.ready.catch(() => {}) // The caller of `ready` handles it.
  }

  get stats(): WorkerStats {
    return {
      started: this.#started,
      ...this.#outcomes.counts,
      ...this.#slots.counts,
      isStopping: this.#stopping.signal.aborted,
      breaker: this.#engine.breaker.state,
    }
  }

  /** Registers the worker. Waits for the database while that is unavailable. */
  async #start(): Promise<void> {
    const { signal } = this.#stopping
    const start = async (): Promise<void> => {
      const lanes = await this.#registration.enter(signal)
      signal.throwIfAborted() // in the same turn as the join: a stop comes before both, or finds the fetcher
      if (this.#options.heartbeatThread) this.#engine.heartbeat.useThread()
      this.#engine.heartbeat.join(this)
      this.#fetcher = this.#engine.fetcher(lanes)
      this.#fetcher.join(this, this.#options.pollMs)
      emit('dibs:worker.started', { ...this.#engine.origin, worker: this.id, lanes: lanes.length })
    }
    await retry(start, {
      ...{ isRetryable: () => true, baseMs: 200, maxMs: 10_000, minMs: 100, signal },
      onRetry: (error) => emit('dibs:worker.failed', { ...this.#engine.origin, what: 'start', error }),
    })
  }

  get room(): number {
    return this.#stopping.signal.aborted ? 0 : this.#slots.room
  }

  get running(): number[] {
    return [...this.#slots.running].map(({ job }) => job.id)
  }

  reserve(count: number): void {
    this.#slots.reserve(count)
  }

  take(jobs: readonly ClaimedJob[], sentAt: number): void {
    const since = performance.now()
    for (const job of jobs) {
      const { definition } = this.#registration.handledIn(job.lane)
      const attempt = new Attempt(job, definition, this.id, sentAt)
      this.#engine.heartbeat.add(attempt)
      if (this.#stopping.signal.aborted) this.#outcomes.release(attempt)
      else this.#slots.add(attempt, since)
    }
    this.#engine.heartbeat.flush()
    if (jobs.length < SMALL_CLAIM) this.#slots.fill()
    else setImmediate(() => this.#slots.fill())
  }

  #run(attempt: Attempt): void {
    attempt.start()
    this.#started++
    attempt.onAbort = () => this.#onAborted(attempt)
    const { handler } = this.#registration.handledIn(attempt.job.lane)
    const running = runAttempt(this.#engine, attempt, handler, (run) => this.#onEnded(attempt, run, running))
  }

  #onAborted(attempt: Attempt): void {
    const timer = setTimeout(() => {
      if (attempt.isCanceled) this.#outcomes.cancel(attempt)
      if (this.#slots.giveUp(attempt)) emit('dibs:job.stuck', this.#outcomes.about(attempt))
    }, STUCK_MS)
    timer.unref()
    this.#stuckTimers.set(attempt, timer)
  }

  #onEnded(attempt: Attempt, run: RunResult, running: Promise<unknown>): void {
    if (run.state === 'not-started') {
      this.#onNotStarted(attempt, run.error)
      return
    }
    if (attempt.definition.transactional) this.#startPauses.reset()
    this.#slots.countFinished()
    this.#outcomes.conclude(attempt, run)
    const { whenCapacity } = this.#engine.completer
    // A handler whose time is over may still run.
    const handlerEnded = run.state === 'threw' && attempt.isAborted ? running.catch(() => {}) : undefined
    if (whenCapacity || handlerEnded)
      void Promise.all([whenCapacity, handlerEnded]).then(() => this.#leave(attempt))
    else this.#leave(attempt)
  }

  /** The handler has not run. The job is released, and its slot stays empty for as long as the job waits, so that claims do not spin. */
  #onNotStarted(attempt: Attempt, error: unknown): void {
    this.#started--
    const retryInMs = this.#startPauses.next()
    emit('dibs:job.not-started', { ...this.#outcomes.about(attempt), retryInMs, error })
    this.#outcomes.release(attempt, retryInMs, storeFailure(error))
    void sleep(retryInMs, this.#stopping.signal)
      .catch(() => {})
      .then(() => this.#leave(attempt))
  }

  #leave(attempt: Attempt): void {
    clearTimeout(this.#stuckTimers.get(attempt))
    this.#stuckTimers.delete(attempt)
    this.#slots.leave(attempt)
  }

  onCanceled(attempt: Attempt, reason: string | undefined): void {
    if (attempt.isAborted || attempt.isBeingEnded) return
    attempt.abort(new JobCanceledError(attempt.subject, reason || undefined))
    if (this.#slots.removeWaiting(attempt)) this.#outcomes.cancel(attempt)
  }

  onForgotten(): void {
    if (!this.#stopping.signal.aborted) void this.#registration.writeRow().catch(() => {})
  }

  async stop(options: StopOptions = {}): Promise<void> {
    const { drainMs = this.#options.drainMs } = stopOptions.read(options)
    this.#stop ??= this.#shutDown(drainMs)
    await this.#stop
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  async #shutDown(drainMs: number): Promise<void> {
    this.#stopping.abort(new WorkerStoppedError(this.id))
    this.#fetcher?.leave(this)
    for (const attempt of this.#slots.removeAllWaiting()) this.#outcomes.release(attempt)
    await withTimeout(this.#slots.whenIdle(), drainMs, () => {})
    for (const attempt of this.#slots.running) {
      attempt.abort(this.#stopping.signal.reason)
      // A commit decides the outcome by itself.
      if (attempt.state !== 'committing') this.#outcomes.release(attempt)
    }
    // If the database is unavailable, the leases expire.
    await withTimeout(this.#leaveDatabase(), LEAVE_MS, () => {})
    this.#engine.heartbeat.leave(this)
    this.#engine.leave()
    emit('dibs:worker.stopped', { ...this.#engine.origin, worker: this.id })
    this.#onStopped()
  }

  /** Removes the worker from the database when all outcomes are recorded. */
  async #leaveDatabase(): Promise<void> {
    await this.ready.catch(() => {}) // Otherwise the row could be written after it was removed.
    while (this.#slots.isClaiming || this.#outcomes.unrecorded > 0 || this.#isCommitting()) await sleep(5)
    await this.#registration.leave().catch(() => {})
  }

  #isCommitting(): boolean {
    for (const { state } of this.#slots.running) if (state === 'committing') return true
    return false
  }
}

/** Pauses that grow while transactions cannot begin. Failures of the same moment get pauses of the same step. */
class StartPauses {
  #failures = 0
  #growsAt = 0

  /** From 0.2 to 5 seconds. */
  next(): number {
    const now = performance.now()
    if (now >= this.#growsAt) this.#failures++
    const pauseMs = Math.ceil(200 + backoffMs(this.#failures, 200, 4_800))
    this.#growsAt = now + pauseMs
    return pauseMs
  }

  reset(): void {
    this.#failures = 0
    this.#growsAt = 0
  }
}
