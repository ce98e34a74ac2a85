/** Something that happened on a `PgProxy`. */
export interface ProxyEvent {
  /** Since the proxy was started. */
  readonly atMs: number
  /** `refused`: a new connection, by a fault. `fault`: one was injected. `cut`: one has struck a statement. */
  readonly event: 'opened' | 'closed' | 'refused' | 'statement' | 'fault' | 'cut'
  /** Numbered from 1 in the order in which they came. */
  readonly connection?: number | undefined
  /** The SQL that was sent at once, its beginning if it is long. */
  readonly statement?: string | undefined
  /** The kind of the fault. */
  readonly fault?: string | undefined
}

/** The newest are kept. */
const MAX_EVENTS = 10_000
const MAX_STATEMENT = 1_000

/** What happened, in order and bounded. */
export class History {
  #events: ProxyEvent[] = []
  readonly #startedAt = performance.now()

  get events(): readonly ProxyEvent[] {
    return this.#events.slice(-MAX_EVENTS)
  }

  get nowMs(): number {
    return performance.now() - this.#startedAt
  }

  note(event: Omit<ProxyEvent, 'atMs'>): void {
    const statement = event.statement?.slice(0, MAX_STATEMENT)
    this.#events.push({ atMs: this.nowMs, ...event, ...(statement === undefined ? {} : { statement }) })
    // Not at every event: removing the first of many is slow.
    if (this.#events.length > 2 * MAX_EVENTS) this.#events = this.#events.slice(-MAX_EVENTS)
  }
}
