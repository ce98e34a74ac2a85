import { MAX_TIMER_MS } from '../postgres/check-duration.js'
import { emit } from '../postgres/events.js'
import { DUE_TOPIC, wasRefused } from './add-jobs.js'
import type { EngineParts } from './engine-parts.js'
import { historyValues } from './job-history.js'
import { expireJobs, keepHistory, promoteJobs, recoverJobs } from './job-statements.js'

/** Rows in one statement: short enough not to be in anyone's way. */
const BATCH = 1_000
/** How often what is due is looked for, if nobody says when. */
const DUE_MS = 1_000
/** How often leases that have run out are looked for. */
const RECOVER_MS = 1_000
/** How often the partitions of history are seen to. */
const HISTORY_MS = 3_600_000
/** Each takes a twentieth of the time at most: behind a transaction that is held open for long, rows that are gone are read again each time. */
const REST = 20
const MAX_REST_MS = 5_000
/** Soon again after a failure. */
const FAILED_MS = 1_000
/** What was finished while the database was away is recorded before leases that have run out are looked for: here, and for so long after it is back elsewhere. */
const AWAY_MS = 100
const GRACE_MS = 3_000

type Task = 'promotion' | 'recovery' | 'expiry' | 'history'

export interface Recovered {
  readonly id: number
  readonly queue: string
  readonly name: string
  readonly worker: string
  readonly attempt: number
  readonly fence: number
  readonly state: 'ready' | 'dead' | 'canceled'
}

/** What any worker does for all jobs: what is due is made ready, what has expired is over, what was left by workers that are gone is taken from them, history gets its partitions. */
export class JobUpkeep {
  readonly #engine: EngineParts
  readonly #keepDays = new Set<number>()
  readonly #timers = new Map<string, NodeJS.Timeout>()
  #unsubscribe: (() => void) | undefined
  #isRunning = false
  readonly #busy = new Set<string>()
  /** What is to run again after so long, once it is done. */
  readonly #again = new Map<string, number>()
  #dueAt = Number.POSITIVE_INFINITY
  #isAway = false
  #recoverAt = 0

  constructor(engine: EngineParts) {
    this.#engine = engine
  }

  keepDays(days: Iterable<number>): void {
    for (const one of days) if (one > 0) this.#keepDays.add(one)
    if (this.#isRunning) this.#plan('history', 0)
  }

  /** Something is due in so long. */
  promoteIn(ms: number): void {
    if (performance.now() + ms < this.#dueAt) this.#plan('promotion', ms)
  }

  start(): void {
    this.#isRunning = true
    this.#unsubscribe = this.#engine.wakeups.subscribe(DUE_TOPIC, () => this.#plan('promotion', 0))
    this.#plan('history', 0)
    this.#plan('promotion', 0)
    this.#plan('recovery', Math.random() * RECOVER_MS)
    this.#plan('expiry', Math.random() * RECOVER_MS)
  }

  stop(): void {
    this.#isRunning = false
    this.#isAway = false
    this.#unsubscribe?.()
    for (const timer of this.#timers.values()) clearTimeout(timer)
    this.#timers.clear()
    this.#busy.clear()
    this.#again.clear()
  }

  #plan(what: Task, inMs: number): void {
    if (!this.#isRunning) return
    if (this.#busy.has(what)) {
      // What it is told of now it may have missed.
      this.#again.set(what, Math.min(inMs, this.#again.get(what) ?? inMs))
      return
    }
    clearTimeout(this.#timers.get(what))
    if (what === 'promotion') this.#dueAt = performance.now() + inMs
    this.#timers.set(
      what,
      setTimeout(() => void this.#run(what), Math.min(inMs, MAX_TIMER_MS)),
    )
  }

  async #run(what: Task): Promise<void> {
    const waitMs = what === 'recovery' ? this.#graceMs() : 0
    if (waitMs > 0) return this.#plan(what, waitMs)
    this.#busy.add(what)
    if (what === 'promotion') this.#dueAt = Number.POSITIVE_INFINITY
    const startedAt = performance.now()
    let nextMs = FAILED_MS
    try {
      nextMs = await this[what]()
      this.#engine.onAnswer()
      if (this.#isAway && what !== 'history') {
        this.#isAway = false
        this.#recoverAt = performance.now() + GRACE_MS
      }
      if (nextMs > 0) nextMs = Math.max(nextMs, Math.min(MAX_REST_MS, REST * (performance.now() - startedAt)))
    } catch (error) {
      // What was on its way when the last worker stopped lost its connection by that.
      if (this.#isRunning) {
        emit('dibs:worker.failed', { ...this.#engine.origin, what, error })
        // History goes another way, which may be closed for as long as the server has no connection left.
        this.#isAway ||= what !== 'history' && !wasRefused(error)
      }
    }
    this.#busy.delete(what)
    const againMs = this.#again.get(what) ?? nextMs
    this.#again.delete(what)
    this.#plan(what, Math.min(againMs, nextMs))
  }

  /** How long those who have finished something are waited for. */
  #graceMs(): number {
    if (this.#isAway || this.#engine.ender.isBehind) return AWAY_MS
    return this.#recoverAt - performance.now()
  }

  /** Each answers after how long it is to run again. */
  private async promotion(): Promise<number> {
    const [row] = await this.#engine.upkeep.send(promoteJobs, [String(BATCH)])
    const told: { count: number; queues: string[]; dueInMs: number | null } = JSON.parse(`${row?.told}`)
    this.#engine.hint(told.queues)
    if (told.count === BATCH) return 0
    return Math.min(told.dueInMs ?? DUE_MS, DUE_MS * (0.75 + Math.random() / 2))
  }

  private async recovery(): Promise<number> {
    const over = this.#engine.keeper.over(BATCH)
    const [row] = await this.#engine.upkeep.send(recoverJobs, [String(BATCH), `{${over.join(',')}}`])
    const { lost, isMore }: { lost: readonly Recovered[]; isMore: boolean } = JSON.parse(`${row?.told}`)
    for (const { id, ...rest } of lost)
      emit('dibs:job.recovered', { ...this.#engine.origin, ...rest, id: String(id) })
    this.#engine.hint(new Set(lost.filter(({ state }) => state === 'ready').map(({ queue }) => queue)))
    return isMore ? 0 : RECOVER_MS * (0.75 + Math.random() / 2)
  }

  private async expiry(): Promise<number> {
    const [row] = await this.#engine.upkeep.send(expireJobs, [String(BATCH)])
    return Number(row?.count) === BATCH ? 0 : RECOVER_MS * (0.75 + Math.random() / 2)
  }

  private async history(): Promise<number> {
    // It may have to wait for a lock on a table, and heartbeats must not wait behind it.
    await this.#engine.looks.send(keepHistory, historyValues(this.#keepDays))
    return HISTORY_MS
  }
}
