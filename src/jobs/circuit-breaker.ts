/** So many failures in a row open it. */
const FAILURES = 5
/** It stays open for so long. */
const OPEN_MS = 30_000
/** Then so many may try at a time. */
const PROBES = 3

/**
 * Keeps workers from asking a database that is away: after five failures in a row nobody asks for 30 seconds, and then three at most at a time, until one of them is answered.
 * Whatever else is answered meanwhile closes it as well: the database is there.
 */
export class CircuitBreaker {
  readonly #now: () => number
  #failures = 0
  #openUntil = 0
  #probes = 0

  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  get state(): 'closed' | 'open' | 'half-open' {
    if (this.#failures < FAILURES) return 'closed'
    return this.#now() < this.#openUntil ? 'open' : 'half-open'
  }

  /** How long nobody may ask; 0: one may, and has to say how it went. */
  enter(): number {
    const { state } = this
    if (state === 'open') return this.#openUntil - this.#now()
    if (state === 'half-open') {
      if (this.#probes >= PROBES) return 1_000
      this.#probes++
    }
    return 0
  }

  /** True if it was not closed before. */
  succeed(): boolean {
    const wasOpen = this.#failures >= FAILURES
    this.#failures = 0
    this.#probes = 0
    return wasOpen
  }

  /** True if it is open from now on. */
  fail(): boolean {
    const wasOpen = this.#failures >= FAILURES
    if (wasOpen) this.#probes = Math.max(0, this.#probes - 1)
    this.#failures++
    if (this.#failures < FAILURES) return false
    this.#openUntil = this.#now() + OPEN_MS
    return !wasOpen
  }
}
