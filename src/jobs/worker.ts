import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { JobCanceledError, WorkerStoppedError } from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import { emit, isHeard } from '../postgres/events.js'
import { showError } from '../postgres/name-given.js'
import { sleep } from '../postgres/sleep.js'
import { storeFailure } from '../postgres/stored-failure.js'
import { THIS_PROCESS } from '../postgres/this-process.js'
import { withTimeout } from '../postgres/with-timeout.js'
import { Attempt } from './attempt.js'
import type { ClaimedJob } from './claimed-job.js'
import type { EndState } from './ender.js'
import type { Engine } from './engine.js'
import type { Fetcher, Lane, Member } from './fetcher.js'
import type { HandledJob } from './handlers.js'
import { enterWorker, findLane, leaveWorker } from './job-statements.js'
import type { Kept } from './lease-keeper.js'
import { deadWith, type Settlement, settlementOf } from './outcome.js'
import { type Run, runAttempt } from './run-attempt.js'
import type { ReadWorkOptions, StopOptions, Worker, WorkerStats } from './work-options.js'

/** How long a handler may take to notice that it is not to go on, before its slot is given to another, and a canceled job is taken for over. */
const STUCK_MS = 5_000
/** What is claimed ahead is what was finished in this time, so that nothing waits here for long while others have room. */
const AHEAD_MS = 50
/** More than this are not begun before the next claim is on its way. */
const FEW = 20
/** What has waited here for longer is given back. */
const STALE_MS = 1_000
/** How long a stop waits for the database to hear of it, beyond the time to drain. */
const FAREWELL_MS = 5_000

/** Pauses after a transaction that could not begin grow from `START_PAUSE_MS` to `MAX_START_PAUSE_MS`. */
const START_PAUSE_MS = 200
const MAX_START_PAUSE_MS = 5_000

const BACK: Settlement = { to: 'back', delayMs: 0, error: null }

interface Waiting {
  readonly attempt: Attempt
  readonly since: number
}

/** One call of `dibs.work`. */
export class RunningWorker implements Worker, Member, Kept {
  readonly id = `${THIS_PROCESS}:${randomUUID().slice(0, 8)}`
  readonly ready: Promise<void>
  readonly #engine: Engine
  readonly #handled: readonly HandledJob[]
  readonly #options: ReadWorkOptions
  readonly #byLane = new Map<number, HandledJob>()
  #fetcher: Fetcher | undefined
  #waiting: Waiting[] = []
  readonly #running = new Set<Attempt>()
  /** Handlers that were given up and have not ended. */
  #stuck = 0
  #reserved = 0
  #staleTimer: NodeJS.Timeout | undefined
  readonly #rate = new FinishRate()
  readonly #startPauses = new StartPauses()
  readonly #counts = {
    started: 0,
    succeeded: 0,
    failed: 0,
    retried: 0,
    snoozed: 0,
    canceled: 0,
    lost: 0,
    released: 0,
  }
  readonly #stopping = new AbortController()
  #stopped: Promise<void> | undefined
  /** Resolves when it has stopped. */
  readonly stopped: Promise<void>
  #onStopped: () => void = () => {}
  #onIdle: (() => void) | undefined
  /** Whose end is on its way. */
  #ending = 0

  constructor(engine: Engine, handled: readonly HandledJob[], options: ReadWorkOptions) {
    this.#engine = engine
    this.#handled = handled
    this.#options = options
    engine.enter(new Set(handled.map(({ definition }) => definition.keepDays)))
    this.stopped = new Promise((resolve) => {
      this.#onStopped = resolve
    })
    this.ready = this.#start()
    // Whoever waits for it hears of it.
    this.ready.catch(() => {})
  }

  get stats(): WorkerStats {
    return {
      ...this.#counts,
      running: this.#running.size,
      waiting: this.#waiting.length,
      stuck: this.#stuck,
      isStopping: this.#stopping.signal.aborted,
      breaker: this.#engine.breaker.state,
    }
  }

  /** Until the database is there, or it is stopped. */
  async #start(): Promise<void> {
    for (let tries = 1; ; tries++) {
      try {
        const lanes = await this.#findLanes()
        if (!this.#stopping.signal.aborted) await this.#enter(lanes)
        if (this.#stopping.signal.aborted) throw new WorkerStoppedError(this.id)
        if (this.#options.heartbeatThread) this.#engine.keeper.useThread()
        this.#engine.keeper.enter(this)
        this.#fetcher = this.#engine.fetcher(lanes)
        this.#fetcher.join(this, this.#options.pollMs)
        emit('dibs:worker.started', { ...this.#engine.origin, worker: this.id, lanes: lanes.length })
        return
      } catch (error) {
        if (this.#stopping.signal.aborted) throw new WorkerStoppedError(this.id)
        emit('dibs:worker.failed', { ...this.#engine.origin, what: 'start', error })
        await sleep(100 + fullJitterMs(tries, 200, 10_000), this.#stopping.signal).catch(() => {})
      }
    }
  }

  async #findLanes(): Promise<Lane[]> {
    const lanes: Lane[] = []
    for (const handled of this.#handled) {
      const { queue, name, version, leaseMs } = handled.definition
      const [row] = await this.#engine.claims.send(findLane, [queue, name, String(version)])
      const id = Number(row?.lane)
      this.#byLane.set(id, handled)
      lanes.push({ id, queue, leaseMs })
    }
    return lanes.sort((one, other) => one.id - other.id)
  }

  async #enter(
    lanes: readonly { id: number }[] = [...this.#byLane.keys()].map((id) => ({ id })),
  ): Promise<void> {
    await this.#engine.upkeep.send(enterWorker, [
      ...[this.id, hostname(), String(process.pid), `{${lanes.map(({ id }) => id).join(',')}}`],
      String(this.#options.concurrency),
    ])
  }

  get wants(): number {
    if (this.#stopping.signal.aborted) return 0
    const { concurrency, prefetch } = this.#options
    const ahead = Math.min(prefetch, this.#rate.in(AHEAD_MS))
    return concurrency - this.#running.size + ahead - this.#waiting.length - this.#reserved
  }

  get running(): number[] {
    return [...this.#running].map(({ job }) => job.id)
  }

  reserve(count: number): void {
    this.#reserved += count
  }

  take(jobs: readonly ClaimedJob[], sentAt: number): void {
    const since = performance.now()
    for (const job of jobs) {
      const handled = this.#byLane.get(job.lane) as HandledJob
      const attempt = new Attempt(job, handled.definition, this.id, sentAt)
      this.#engine.keeper.add(attempt)
      if (this.#stopping.signal.aborted) this.#giveBack(attempt)
      else this.#waiting.push({ attempt, since })
    }
    this.#engine.keeper.flush()
    if (jobs.length < FEW) this.#fill()
    else setImmediate(() => this.#fill())
  }

  #fill(): void {
    const room = (): number => this.#options.concurrency - this.#running.size
    // Again if some of them were lost while they waited.
    while (room() > 0 && this.#waiting.length > 0)
      for (const { attempt } of this.#waiting.splice(0, room()))
        if (attempt.state === 'held') this.#begin(attempt)
    if (this.#waiting.length > 0) this.#staleTimer ??= setTimeout(() => this.#giveStaleBack(), STALE_MS)
  }

  /** Handlers take longer than they did: others may have room. */
  #giveStaleBack(): void {
    this.#staleTimer = undefined
    const before = performance.now() - STALE_MS
    const stale = this.#waiting.filter(({ since }) => since <= before)
    this.#waiting = this.#waiting.filter(({ since }) => since > before)
    for (const { attempt } of stale) this.#giveBack(attempt)
    this.#fill()
  }

  #giveBack(attempt: Attempt): void {
    this.#settle(attempt, BACK)
  }

  /** Lets go of it when its end is recorded. */
  #record(
    attempt: Attempt,
    settlement: Settlement | undefined,
    result: string | null,
    onEnd: (state: EndState) => void,
  ): void {
    this.#ending++
    this.#engine.ender.end(attempt, settlement, result, (state) => {
      onEnd(state)
      this.#engine.keeper.remove(attempt)
      this.#ending--
    })
  }

  #begin(attempt: Attempt): void {
    this.#running.add(attempt)
    this.#counts.started++
    const { handler } = this.#byLane.get(attempt.job.lane) as HandledJob
    attempt.onAbort = () => this.#watch(attempt)
    const running = runAttempt(this.#engine, attempt, handler, (run) => this.#ended(attempt, run, running))
  }

  /** It is not to go on. If its handler does not notice, its slot is for another. */
  #watch(attempt: Attempt): void {
    const timer = setTimeout(() => {
      if (attempt.isCanceled) this.#settle(attempt, { to: 'canceled', delayMs: 0, error: null })
      if (!this.#running.has(attempt)) return
      this.#stuck++
      attempt.isStuck = true
      emit('dibs:job.stuck', this.#about(attempt))
      this.#free(attempt)
    }, STUCK_MS)
    timer.unref()
    attempt.unwatch = () => clearTimeout(timer)
  }

  #free(attempt: Attempt): void {
    if (!this.#running.delete(attempt)) return
    this.#fill()
    if (this.wants > 0) this.#fetcher?.poke()
    if (this.#running.size === 0 && this.#waiting.length === 0) this.#onIdle?.()
  }

  #ended(attempt: Attempt, outcome: Run, running: Promise<unknown>): void {
    if (outcome.state === 'not-started') {
      this.#notStarted(attempt, outcome.error)
      return
    }
    if (attempt.definition.transactional) this.#startPauses.reset()
    this.#rate.count()
    this.#conclude(attempt, outcome)
    const { room } = this.#engine.ender
    // A handler that was given up may still be at it.
    const rest = outcome.state === 'threw' && attempt.isAborted ? running.catch(() => {}) : undefined
    if (room || rest) void Promise.all([room, rest]).then(() => this.#leave(attempt))
    else this.#leave(attempt)
  }

  /** The handler has not run. The job is released without counting the attempt, and its slot stays empty for as long as the job waits, so that claims do not spin. */
  #notStarted(attempt: Attempt, error: unknown): void {
    this.#counts.started--
    const retryInMs = this.#startPauses.next()
    emit('dibs:job.not-started', { ...this.#about(attempt), retryInMs, error })
    this.#settle(attempt, { to: 'back', delayMs: retryInMs, error: storeFailure(error) })
    void sleep(retryInMs, this.#stopping.signal)
      .catch(() => {})
      .then(() => this.#leave(attempt))
  }

  #leave(attempt: Attempt): void {
    attempt.unwatch?.()
    if (attempt.isStuck) this.#stuck--
    this.#free(attempt)
  }

  #conclude(attempt: Attempt, outcome: Exclude<Run, { readonly state: 'not-started' }>): void {
    if (outcome.state === 'completed') {
      attempt.state = 'ended'
      this.#engine.keeper.remove(attempt)
      this.#succeeded(attempt)
    } else if (outcome.state === 'late') {
      attempt.state = 'lost'
      this.#engine.keeper.remove(attempt)
      this.#late(attempt)
    } else if (outcome.state === 'returned') this.#complete(attempt, outcome.result)
    else if (attempt.state === 'lost') this.#counts.lost++
    else if (attempt.isEnding)
      return // it was given back, or up, before
    else if (outcome.state === 'unknown') this.#settle(attempt, BACK)
    else if (attempt.isCanceled)
      this.#settle(attempt, { to: 'canceled', delayMs: 0, error: storeFailure(outcome.error) })
    else this.#fail(attempt, outcome.error)
  }

  #complete(attempt: Attempt, result: string | null): void {
    if (attempt.isEnding) {
      this.#late(attempt)
      return
    }
    this.#record(attempt, undefined, result, (state) => {
      if (state === 'done') this.#succeeded(attempt)
      else if (state === 'lost') this.#late(attempt)
      else
        this.#fail(attempt, new Error(`the result could not be stored: ${showError(attempt.refusal)}`), true)
    })
  }

  #succeeded(attempt: Attempt): void {
    this.#counts.succeeded++
    if (isHeard('dibs:job.succeeded')) emit('dibs:job.succeeded', this.#about(attempt))
  }

  /** Somebody has given it up, and that is how it ended, also if its handler did not know. */
  #canceled(attempt: Attempt): void {
    this.#counts.canceled++
    emit('dibs:job.canceled', this.#about(attempt))
  }

  /** It was done, and came too late: another has the job, or has had it. Nothing was changed. */
  #late(attempt: Attempt): void {
    this.#counts.lost++
    emit('dibs:job.refused', { ...this.#about(attempt), fence: attempt.job.fence })
  }

  #fail(attempt: Attempt, error: unknown, isFinal = false): void {
    const settlement: Settlement = isFinal
      ? deadWith(error)
      : settlementOf(error, attempt.job, attempt.definition.retry)
    emit('dibs:job.failed', {
      ...this.#about(attempt),
      ...{
        isFinal: settlement.to === 'dead',
        isSnoozed: settlement.to === 'snooze',
        retryInMs: settlement.delayMs,
        error,
      },
    })
    this.#settle(attempt, settlement, isFinal)
  }

  #settle(attempt: Attempt, settlement: Settlement, isAgain = false): void {
    if (attempt.isEnding && !isAgain) return
    const { to } = settlement
    this.#record(attempt, settlement, null, (state) => {
      if (state === 'succeeded') return this.#succeeded(attempt)
      if (state === 'lost' || state === 'refused') return this.#late(attempt)
      if (state === 'canceled' || to === 'canceled') return this.#canceled(attempt)
      const count = {
        retry: 'retried',
        dead: 'failed',
        snooze: 'snoozed',
        back: 'released',
      } as const
      this.#counts[count[to]]++
      if (to === 'dead') return
      // It is ready, or due at a time that nobody knows of yet.
      if (settlement.delayMs === 0) this.#engine.hint([attempt.definition.queue])
      else this.#engine.onScheduled(settlement.delayMs)
    })
  }

  #about({ job, definition }: Attempt) {
    return { ...this.#engine.origin, id: String(job.id), name: definition.name, attempt: job.attempt }
  }

  onCanceled(attempt: Attempt, reason: string | undefined): void {
    if (attempt.isCanceled || attempt.mayBeOver) return
    attempt.isCanceled = true
    attempt.abort(new JobCanceledError(attempt.subject, reason || undefined))
    const place = this.#waiting.findIndex((waiting) => waiting.attempt === attempt)
    if (place < 0) return
    this.#waiting.splice(place, 1)
    this.#settle(attempt, { to: 'canceled', delayMs: 0, error: null })
  }

  onForgotten(): void {
    if (!this.#stopping.signal.aborted) void this.#enter().catch(() => {})
  }

  async stop(options: StopOptions = {}): Promise<void> {
    checkOptions(options, ['drainMs'])
    const { drainMs = this.#options.drainMs } = options
    checkDuration('drainMs', drainMs, 0, MAX_TIMER_MS)
    this.#stopped ??= this.#stop(drainMs)
    await this.#stopped
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  async #stop(drainMs: number): Promise<void> {
    this.#stopping.abort()
    this.#fetcher?.leave(this)
    clearTimeout(this.#staleTimer)
    for (const { attempt } of this.#waiting.splice(0)) this.#giveBack(attempt)
    await this.#drain(drainMs)
    for (const attempt of this.#running) {
      attempt.abort(new WorkerStoppedError(this.id))
      // What is being committed ends by that.
      if (!attempt.isCommitting) this.#settle(attempt, BACK)
    }
    await this.#farewell()
    this.#engine.keeper.leave(this)
    this.#engine.leave()
    emit('dibs:worker.stopped', { ...this.#engine.origin, worker: this.id })
    this.#onStopped()
  }

  async #drain(drainMs: number): Promise<void> {
    if (this.#running.size === 0 && this.#reserved === 0) return
    const idle = new Promise<void>((resolve) => {
      this.#onIdle = resolve
      if (this.#running.size === 0) resolve()
    })
    await withTimeout(idle, drainMs, () => {})
  }

  #isCommitting(): boolean {
    for (const { isCommitting } of this.#running) if (isCommitting) return true
    return false
  }

  /** What has ended is recorded, and it is not there any more; if the database is away, leases run out by themselves. */
  async #farewell(): Promise<void> {
    const said = async (): Promise<void> => {
      await this.ready.catch(() => {}) // else it might be there after it has left
      while (this.#reserved > 0 || this.#ending > 0 || this.#isCommitting()) await sleep(5)
      await this.#engine.upkeep.send(leaveWorker, [`{"${this.id}"}`]).catch(() => {})
    }
    await withTimeout(said(), FAREWELL_MS, () => {})
  }
}

/** How many were finished of late. */
class FinishRate {
  #since = performance.now()
  #count = 0
  #perMs = 0

  count(): void {
    this.#count++
  }

  /** In so many milliseconds, as it goes. */
  in(ms: number): number {
    const now = performance.now()
    if (now - this.#since >= AHEAD_MS) {
      this.#perMs = this.#count / (now - this.#since)
      this.#since = now
      this.#count = 0
    }
    return Math.floor(this.#perMs * ms)
  }
}

/** Pauses that grow while transactions cannot begin. Failures of the same moment get pauses of the same step. */
class StartPauses {
  #failures = 0
  #growsAt = 0

  next(): number {
    const now = performance.now()
    if (now >= this.#growsAt) this.#failures++
    const jitterMs = fullJitterMs(this.#failures, START_PAUSE_MS, MAX_START_PAUSE_MS - START_PAUSE_MS)
    const pauseMs = Math.ceil(START_PAUSE_MS + jitterMs)
    this.#growsAt = now + pauseMs
    return pauseMs
  }

  reset(): void {
    this.#failures = 0
    this.#growsAt = 0
  }
}
