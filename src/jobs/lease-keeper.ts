import { emit } from '../postgres/events.js'
import { textArray } from '../postgres/text-values.js'
import type { Attempt } from './attempt.js'
import type { EngineParts } from './engine-parts.js'
import { HeartbeatThread, type ThreadReport } from './heartbeat-thread.js'
import { beatJobs } from './job-statements.js'

/** How many leases go with one statement. */
const MOST = 1_000
/** How often a worker says that it is there, also when it has nothing to do. */
const WORKER_MS = 10_000
/** How soon a heartbeat without an answer is tried again, at the earliest; else after a tenth of the lease. */
const RETRY_MS = 100
/** Claims that are known to be over; those beyond are looked at when their leases would have ended. */
const MOST_OVER = 10_000

interface Told {
  readonly lost: readonly number[]
  readonly locked: readonly number[]
  /** Why, by id. */
  readonly canceled: Readonly<Record<string, { readonly message?: string } | null>>
  readonly unknown: readonly string[]
}

/** Who is told of what a heartbeat brings to light. */
export interface Kept {
  /** Its worker, as the database knows it. */
  readonly id: string
  /** Somebody wants the job to be given up. */
  onCanceled(attempt: Attempt, reason: string | undefined): void
  /** The database does not know it any more: it was silent for too long. */
  onForgotten(): void
}

/**
 * Renews all leases of a process, each when a third of its time has passed, with one statement for all that are due, and says that its workers are there. What could not be renewed in time is
 * lost, by this process's own clock, before anybody else may have it.
 */
export class LeaseKeeper {
  readonly #engine: EngineParts
  readonly #attempts = new Map<number, Attempt>()
  readonly #workers = new Map<string, Kept>()
  #timer: NodeJS.Timeout | undefined
  #nextAt = Number.POSITIVE_INFINITY
  #workersAt = Number.POSITIVE_INFINITY
  #isSending = false
  #isWanted = false
  #thread: HeartbeatThread | undefined
  #over: number[] = []

  constructor(engine: EngineParts) {
    this.#engine = engine
  }

  /** What is held. */
  get attempts(): IterableIterator<Attempt> {
    return this.#attempts.values()
  }

  /** From now on leases are renewed from a thread of its own. */
  useThread(): void {
    if (this.#thread) return
    const { database, origin } = this.#engine
    const thread = new HeartbeatThread(
      database,
      (report) => this.#onReport(report),
      (error) => {
        if (this.#thread !== thread) return
        // It is gone: this one goes on.
        this.#thread = undefined
        emit('dibs:worker.failed', { ...origin, what: 'heartbeat', error })
        this.#schedule()
      },
    )
    this.#thread = thread
    for (const attempt of this.#attempts.values()) thread.add(attempt)
  }

  /** What was added is known wherever it has to be, before anything is begun. */
  flush(): void {
    this.#thread?.flush()
  }

  #onReport({ sentAt, claims, told, error }: ThreadReport): void {
    if (told === null) {
      emit('dibs:worker.failed', { ...this.#engine.origin, what: 'heartbeat', error })
      return
    }
    const agoMs = Number(process.hrtime.bigint() - sentAt) / 1e6
    // Not of an earlier claim of the same job.
    const due = claims.flatMap(({ id, fence }) => {
      const attempt = this.#attempts.get(id)
      return attempt?.job.fence === fence ? [attempt] : []
    })
    this.#read(due, performance.now() - agoMs, JSON.parse(told))
  }

  enter(worker: Kept): void {
    this.#workers.set(worker.id, worker)
    this.#workersAt = Math.min(this.#workersAt, performance.now() + WORKER_MS)
    this.#setTimer(Math.min(this.#nextAt, this.#workersAt))
  }

  leave(worker: Kept): void {
    this.#workers.delete(worker.id)
    if (this.#workers.size > 0) return
    this.#workersAt = Number.POSITIVE_INFINITY
    if (this.#attempts.size === 0) this.#setTimer(Number.POSITIVE_INFINITY)
    const thread = this.#thread
    this.#thread = undefined
    if (thread) this.#engine.database.finish(thread.end())
  }

  add(attempt: Attempt): void {
    // Claimed again by this process, before a heartbeat could tell that it was lost.
    const old = this.#attempts.get(attempt.job.id)
    if (old && !old.mayBeOver) this.#lose(old, 'stolen')
    this.#attempts.set(attempt.job.id, attempt)
    this.#thread?.add(attempt)
    if (attempt.renewAt < this.#nextAt) this.#setTimer(attempt.renewAt)
  }

  remove(attempt: Attempt): void {
    if (this.#attempts.get(attempt.job.id) !== attempt) return
    this.#attempts.delete(attempt.job.id)
    this.#thread?.remove(attempt)
    const { held } = attempt.job
    if (--held.left === 0 && this.#over.length < MOST_OVER) this.#over.push(held.id)
  }

  /** Claims of which nothing is left, each told once. */
  over(most: number): number[] {
    return this.#over.splice(0, most)
  }

  /** All leases at once: somebody may want one of them to be given up. */
  beatNow(): void {
    this.#isWanted = true
    if (!this.#isSending) this.#setTimer(performance.now())
  }

  #setTimer(at: number): void {
    clearTimeout(this.#timer)
    this.#nextAt = at
    if (at === Number.POSITIVE_INFINITY) return
    this.#timer = setTimeout(() => this.#tick(), Math.max(0, at - performance.now()))
  }

  #schedule(): void {
    const renews = !this.#isSending && !this.#thread
    let next = this.#workersAt
    for (const { renewAt, endsAt, mayBeOver } of this.#attempts.values()) {
      if (!mayBeOver) next = Math.min(next, endsAt)
      if (renews) next = Math.min(next, renewAt)
    }
    this.#setTimer(next)
  }

  #tick(): void {
    this.#thread?.drain()
    const now = performance.now()
    for (const attempt of this.#attempts.values()) {
      // What is being recorded is decided by the row.
      if (attempt.endsAt > now || attempt.mayBeOver) continue
      this.remove(attempt)
      this.#lose(attempt, 'lost contact')
    }
    if (!this.#isSending && (this.#isWanted || this.#workersAt <= now || this.#isDue(now)))
      void this.#beat(now)
    this.#schedule()
  }

  #isDue(now: number): boolean {
    if (this.#thread) return false
    for (const { renewAt } of this.#attempts.values()) if (renewAt <= now) return true
    return false
  }

  async #beat(now: number): Promise<void> {
    // All of them, a part at a time.
    if (this.#isWanted)
      for (const attempt of this.#attempts.values()) attempt.renewAt = Math.min(attempt.renewAt, now)
    const due = [...this.#attempts.values()]
      .filter(({ renewAt, definition }) => renewAt - definition.leaseMs / 6 <= now)
      .sort((one, other) => one.endsAt - other.endsAt)
      .slice(0, MOST)
    this.#isSending = true
    this.#isWanted = false
    this.#workersAt = this.#workers.size > 0 ? now + WORKER_MS : Number.POSITIVE_INFINITY
    const shortest = due.reduce((least, { definition }) => Math.min(least, definition.leaseMs), WORKER_MS)
    try {
      this.#read(due, now, await this.#send(due, Math.max(RETRY_MS, shortest / 4)))
      this.#engine.onAnswer()
    } catch (error) {
      emit('dibs:worker.failed', { ...this.#engine.origin, what: 'heartbeat', error })
      for (const attempt of due)
        attempt.renewAt = performance.now() + Math.max(RETRY_MS, attempt.definition.leaseMs / 10)
      if (due.length === 0 && this.#workers.size > 0) this.#workersAt = performance.now() + 1_000
    }
    this.#isSending = false
    this.#tick()
  }

  async #send(due: readonly Attempt[], withinMs: number): Promise<Told> {
    const column = (value: (attempt: Attempt) => number): string => `{${due.map(value).join(',')}}`
    const [row] = await this.#engine.upkeep.send(
      beatJobs,
      [
        textArray([...this.#workers.keys()]),
        column(({ job }) => job.id),
        column(({ job }) => job.fence),
        column(({ definition }) => definition.leaseMs),
      ],
      withinMs,
    )
    return JSON.parse(`${row?.told}`)
  }

  #read(due: readonly Attempt[], sentAt: number, { lost, locked, canceled, unknown }: Told): void {
    const bad = new Set([...lost, ...locked])
    for (const attempt of due)
      if (!bad.has(attempt.job.id)) attempt.renewed(sentAt, attempt.definition.leaseMs)
    for (const attempt of this.#these(due, locked))
      attempt.renewAt = performance.now() + Math.max(RETRY_MS, attempt.definition.leaseMs / 10)
    for (const attempt of this.#these(due, lost)) {
      // It may have been completed meanwhile, by this process. Until that is known, it is not asked for again and again.
      attempt.renewAt = performance.now() + Math.max(RETRY_MS, attempt.definition.leaseMs / 10)
      if (this.#attempts.get(attempt.job.id) !== attempt || attempt.mayBeOver) continue
      this.remove(attempt)
      this.#lose(attempt, 'stolen')
    }
    for (const attempt of this.#these(due, Object.keys(canceled).map(Number)))
      this.#workers.get(attempt.worker)?.onCanceled(attempt, canceled[attempt.job.id]?.message)
    for (const id of unknown) this.#workers.get(id)?.onForgotten()
  }

  *#these(due: readonly Attempt[], ids: readonly number[]): Generator<Attempt> {
    if (ids.length === 0) return
    const wanted = new Set(ids)
    for (const attempt of due) if (wanted.has(attempt.job.id)) yield attempt
  }

  #lose(attempt: Attempt, reason: 'stolen' | 'lost contact'): void {
    if (!attempt.lose(reason)) return
    const { job, definition } = attempt
    emit('dibs:job.lost', {
      ...this.#engine.origin,
      ...{ id: String(job.id), name: definition.name, fence: job.fence, attempt: job.attempt, reason },
    })
  }
}
