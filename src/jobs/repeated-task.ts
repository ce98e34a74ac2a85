import { MAX_TIMER_MS } from '../options/max-timer-ms.js'

/** A task that runs again and again, never twice at a time, until it is stopped. */
export class RepeatedTask {
  readonly #run: () => Promise<number>
  #timer: NodeJS.Timeout | undefined
  #dueAt = Number.POSITIVE_INFINITY
  #isRunning = false
  #isStopped = false

  /** @param run resolves to the delay before the next run, and never rejects */
  constructor(run: () => Promise<number>) {
    this.#run = run
  }

  /** Runs the task after `ms`, unless it is due earlier. A task that runs now runs once more, because it may have missed the reason of this call. */
  runIn(ms: number): void {
    const dueAt = performance.now() + ms
    if (dueAt >= this.#dueAt || this.#isStopped) return
    this.#dueAt = dueAt
    if (!this.#isRunning) this.#schedule()
  }

  /** Stops the task, without waiting for a run in progress. */
  stop(): void {
    this.#isStopped = true
    clearTimeout(this.#timer)
  }

  #schedule(): void {
    clearTimeout(this.#timer)
    const delayMs = Math.max(0, this.#dueAt - performance.now())
    this.#timer = setTimeout(() => void this.#tick(), Math.min(delayMs, MAX_TIMER_MS))
  }

  async #tick(): Promise<void> {
    this.#dueAt = Number.POSITIVE_INFINITY
    this.#isRunning = true
    const nextMs = await this.#run()
    this.#isRunning = false
    this.#dueAt = Math.min(this.#dueAt, performance.now() + nextMs)
    if (!this.#isStopped) this.#schedule()
  }
}
