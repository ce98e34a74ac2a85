/** A request for maintenance, which lasts until it is stopped. */
export interface MaintenanceLoop extends AsyncDisposable {
  /** Withdraws the request. After the last request is withdrawn, no round begins, and `stop` resolves when running work has ended. */
  stop(): Promise<void>
}

interface Request {
  readonly everyMs: number
  /** True if `Dibs.open` made the request. Such a request does not keep the process alive. */
  readonly isAutomatic: boolean
}

/** How a round ended. `unavailable`: the database could not be used. `closed`: the instance is closed. */
export type RoundEnd = 'done' | 'unavailable' | 'closed'

export interface LoopEvents {
  /** Runs one round. Must not reject. */
  readonly round: (everyMs: number, isAutomatic: boolean, signal: AbortSignal) => Promise<RoundEnd>
  /** Waits for background work that rounds have begun. */
  readonly drain: () => Promise<unknown>
}

/** After failures the pause doubles, up to this. */
const MAX_PAUSE_MS = 300_000

/** The one maintenance loop of an instance. The loop runs while there is a request, at the shortest interval requested. */
export class RoundScheduler {
  readonly #events: LoopEvents
  readonly #requests = new Set<Request>()
  #stopping = new AbortController()
  #timer: NodeJS.Timeout | undefined
  #round: Promise<void> | undefined
  /** When the next round is due, by `performance.now()`. */
  #dueAt = Number.POSITIVE_INFINITY
  #failures = 0

  constructor(events: LoopEvents) {
    this.#events = events
  }

  add(request: Request): MaintenanceLoop {
    this.#requests.add(request)
    if (this.#stopping.signal.aborted) this.#stopping = new AbortController()
    // A random delay, because pods start together. A script that ends within half an interval of `open` runs no round.
    const wait = request.isAutomatic ? 0.5 + 0.5 * Math.random() : 0.5 * Math.random()
    this.#dueAt = Math.min(this.#dueAt, performance.now() + request.everyMs * wait)
    this.#schedule()
    let stopped: Promise<void> | undefined
    const stop = (): Promise<void> => {
      stopped ??= this.#remove(request)
      return stopped
    }
    return { stop, [Symbol.asyncDispose]: stop }
  }

  /** Withdraws all requests. */
  async stop(): Promise<void> {
    await Promise.all([...this.#requests].map((request) => this.#remove(request)))
  }

  async #remove(request: Request): Promise<void> {
    this.#requests.delete(request)
    this.#schedule()
    if (this.#requests.size > 0) return
    this.#dueAt = Number.POSITIVE_INFINITY
    this.#stopping.abort()
    await this.#round
    await this.#events.drain()
  }

  get #isAutomatic(): boolean {
    return [...this.#requests].every(({ isAutomatic }) => isAutomatic)
  }

  #schedule(): void {
    clearTimeout(this.#timer)
    if (this.#round || this.#requests.size === 0) return
    this.#timer = setTimeout(
      () => {
        this.#round = this.#run()
      },
      Math.max(0, this.#dueAt - performance.now()),
    )
    if (this.#isAutomatic) this.#timer.unref()
  }

  async #run(): Promise<void> {
    const everyMs = Math.min(...[...this.#requests].map((request) => request.everyMs))
    const end = await this.#events.round(everyMs, this.#isAutomatic, this.#stopping.signal)
    if (end === 'closed') this.#requests.clear()
    this.#failures = end === 'unavailable' ? this.#failures + 1 : 0 // guard: ops.maintenance-backoff
    const pauseMs = Math.min(everyMs * 2 ** Math.min(this.#failures, 20), Math.max(everyMs, MAX_PAUSE_MS))
    this.#dueAt = performance.now() + pauseMs * (0.8 + 0.4 * Math.random())
    this.#round = undefined
    this.#schedule()
  }
}
