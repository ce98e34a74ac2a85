/** An event of a `PgProxy`. */
export interface ProxyEvent {
  /** Milliseconds since the proxy was started. */
  readonly atMs: number
  /** `refused`: a fault refused a new connection. `fault`: a fault was injected. `cut`: a fault cut the connection of a statement. */
  readonly event: 'opened' | 'closed' | 'refused' | 'statement' | 'fault' | 'cut'
  /** The number of the connection, from 1. */
  readonly connection?: number | undefined
  /** The SQL of the request, at most 1,000 characters. */
  readonly statement?: string | undefined
  /** The kind of the fault. */
  readonly fault?: string | undefined
}

const MAX_EVENTS = 10_000
const MAX_STATEMENT = 1_000

/** The newest events, in order. */
export class EventLog {
  #events: ProxyEvent[] = []
  readonly #startedAt = performance.now()

  get events(): readonly ProxyEvent[] {
    return this.#events.slice(-MAX_EVENTS)
  }

  get nowMs(): number {
    return performance.now() - this.#startedAt
  }

  add(event: Omit<ProxyEvent, 'atMs'>): void {
    const statement = event.statement?.slice(0, MAX_STATEMENT)
    this.#events.push({ atMs: this.nowMs, ...event, ...(statement === undefined ? {} : { statement }) })
    // Removing the first element at every event would be slow.
    if (this.#events.length > 2 * MAX_EVENTS) this.#events = this.#events.slice(-MAX_EVENTS)
  }
}
