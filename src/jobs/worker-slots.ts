import type { Attempt } from './attempt.js'

/** A worker claims ahead as many jobs as it has finished in this time, so that no job waits for long while other workers have free slots. */
const AHEAD_MS = 50
/** A job that has waited for a slot this long is released. */
const STALE_MS = 1_000

interface Waiting {
  readonly attempt: Attempt
  readonly since: number
}

export interface SlotEvents {
  /** Starts the handler of an attempt that has got a slot. */
  readonly onStart: (attempt: Attempt) => void
  /** An attempt has waited for too long. Other workers may have free slots. */
  readonly onStale: (attempt: Attempt) => void
  /** A slot was freed. */
  readonly onFree: () => void
}

/** The slots of one worker. Each runs one handler at a time. Jobs that were claimed ahead wait here for a slot. */
export class WorkerSlots {
  readonly #concurrency: number
  readonly #prefetch: number
  readonly #events: SlotEvents
  readonly #running = new Set<Attempt>()
  /** Handlers that ignore their signal, and have no slot any more. */
  readonly #stuck = new Set<Attempt>()
  readonly #finishRate = new FinishRate()
  #waiting: Waiting[] = []
  /** The number of jobs that the claims in flight may bring. */
  #reserved = 0
  #staleTimer: NodeJS.Timeout | undefined
  #onIdle: (() => void) | undefined

  constructor(
    { concurrency, prefetch }: { readonly concurrency: number; readonly prefetch: number },
    events: SlotEvents,
  ) {
    this.#concurrency = concurrency
    this.#prefetch = prefetch
    this.#events = events
  }

  /** The attempts that have a slot. */
  get running(): ReadonlySet<Attempt> {
    return this.#running
  }

  get counts() {
    return { running: this.#running.size, waiting: this.#waiting.length, stuck: this.#stuck.size }
  }

  /** True while a claim in flight may bring jobs. */
  get isClaiming(): boolean {
    return this.#reserved > 0
  }

  /** The number of jobs that the worker has room for. */
  get room(): number {
    const ahead = Math.min(this.#prefetch, this.#finishRate.expectedIn(AHEAD_MS))
    return this.#concurrency - this.#running.size + ahead - this.#waiting.length - this.#reserved
  }

  /** Reserves room for a claim of `count` jobs in flight. A negative `count` frees the room when the claim has ended. */
  reserve(count: number): void {
    this.#reserved += count
  }

  add(attempt: Attempt, since: number): void {
    this.#waiting.push({ attempt, since })
  }

  /** Gives free slots to waiting jobs. */
  fill(): void {
    const free = (): number => this.#concurrency - this.#running.size
    // An attempt that was lost while it waited gets no slot, so there may be free slots after a round.
    while (free() > 0 && this.#waiting.length > 0)
      for (const { attempt } of this.#waiting.splice(0, free()))
        if (attempt.state === 'waiting') {
          this.#running.add(attempt)
          this.#events.onStart(attempt)
        }
    if (this.#waiting.length > 0) this.#staleTimer ??= setTimeout(() => this.#removeStale(), STALE_MS)
  }

  /** Returns false if the attempt does not wait for a slot. */
  removeWaiting(attempt: Attempt): boolean {
    const place = this.#waiting.findIndex((waiting) => waiting.attempt === attempt)
    if (place >= 0) this.#waiting.splice(place, 1)
    return place >= 0
  }

  removeAllWaiting(): Attempt[] {
    clearTimeout(this.#staleTimer)
    return this.#waiting.splice(0).map(({ attempt }) => attempt)
  }

  #removeStale(): void {
    this.#staleTimer = undefined
    const before = performance.now() - STALE_MS
    const stale = this.#waiting.filter(({ since }) => since <= before)
    this.#waiting = this.#waiting.filter(({ since }) => since > before)
    for (const { attempt } of stale) this.#events.onStale(attempt)
    this.fill()
  }

  countFinished(): void {
    this.#finishRate.count()
  }

  /** Gives the slot of a handler that ignores its signal to another job. Returns false if the attempt has no slot. */
  giveUp(attempt: Attempt): boolean {
    if (!this.#running.has(attempt)) return false
    this.#stuck.add(attempt)
    this.#free(attempt)
    return true
  }

  /** Called when the handler has ended. */
  leave(attempt: Attempt): void {
    this.#stuck.delete(attempt)
    this.#free(attempt)
  }

  #free(attempt: Attempt): void {
    if (!this.#running.delete(attempt)) return
    this.fill()
    this.#events.onFree()
    if (this.#running.size === 0 && this.#waiting.length === 0) this.#onIdle?.()
  }

  /** Resolves when no handler has a slot. */
  async whenIdle(): Promise<void> {
    if (this.#running.size === 0) return
    await new Promise<void>((resolve) => {
      this.#onIdle = resolve
    })
  }
}

/** Measures how many jobs the worker finishes. */
class FinishRate {
  #since = performance.now()
  #count = 0
  #perMs = 0

  count(): void {
    this.#count++
  }

  /** The number of jobs that the worker is likely to finish in this time. */
  expectedIn(ms: number): number {
    const now = performance.now()
    if (now - this.#since >= AHEAD_MS) {
      this.#perMs = this.#count / (now - this.#since)
      this.#since = now
      this.#count = 0
    }
    return Math.floor(this.#perMs * ms)
  }
}
