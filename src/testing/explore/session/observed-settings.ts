import type { GatedSession } from '../../gate/gated-session.js'

/** Collects the settings of the actors' connections and the queries of the invariant, for the reduction. */
export class ObservedSettings {
  /** The default isolation levels of connections. */
  readonly isolationLevels: Set<string>
  /** True if some connection has another search_path than the explorer's own. */
  hasOtherSearchPath = false
  readonly #searchPath: string
  readonly #seenQueries = new Set<string>()
  #newQueries: string[] = []

  constructor(isolation: string, searchPath: string) {
    this.isolationLevels = new Set([isolation])
    this.#searchPath = searchPath
  }

  /** Reads the settings of a new connection. A connection that an actor opens itself may have its own. */
  async observe(session: GatedSession): Promise<void> {
    const { rows } = await session.execute(
      `select pg_catalog.current_setting('default_transaction_isolation'), pg_catalog.current_setting('search_path')`,
    )
    const [level, path] = rows[0] ?? []
    if (level) this.isolationLevels.add(level)
    if (path !== this.#searchPath) this.hasOtherSearchPath = true
  }

  addInvariantQuery(text: string): void {
    if (this.#seenQueries.has(text)) return
    this.#seenQueries.add(text)
    this.#newQueries.push(text)
  }

  /** The queries of the invariant that are new since the last call. */
  takeInvariantQueries(): readonly string[] {
    const queries = this.#newQueries
    this.#newQueries = []
    return queries
  }
}
