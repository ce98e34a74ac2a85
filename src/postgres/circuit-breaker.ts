export interface CircuitBreakerSettings {
  /** How many failures in a row open the breaker. */
  readonly maxFailures: number
  /** How long the breaker stays open. */
  readonly openMs: number
  /** How many callers at a time may try while the breaker is half-open. */
  readonly maxProbes: number
  /** A monotonic clock, for tests. */
  readonly now?: () => number
}

/** How long other callers wait while the probes of a half-open breaker run. The end of a probe may end the wait earlier. */
const PROBING_MS = 1_000

/**
 * Keeps callers from a database that is unavailable. `closed`: every caller may try. `open`: no caller may, for
 * `openMs`. `half-open`: a few may try. Success, or any other answer of the database, closes the breaker.
 */
export class CircuitBreaker {
  readonly #settings: CircuitBreakerSettings
  readonly #now: () => number
  #failures = 0
  #openUntil = 0
  #probes = 0

  constructor(settings: CircuitBreakerSettings) {
    this.#settings = settings
    this.#now = settings.now ?? (() => performance.now())
  }

  get state(): 'closed' | 'open' | 'half-open' {
    if (this.#failures < this.#settings.maxFailures) return 'closed'
    return this.#now() < this.#openUntil ? 'open' : 'half-open'
  }

  /** True if `enter` would let the caller try. */
  get isAvailable(): boolean {
    return this.#delayMs() === 0
  }

  /** Returns 0 if the caller may try; the caller then reports `succeed` or `fail`. Otherwise returns how long to wait. */
  enter(): number {
    const delayMs = this.#delayMs()
    if (delayMs === 0 && this.state === 'half-open') this.#probes++
    return delayMs
  }

  #delayMs(): number {
    const { state } = this
    if (state === 'open') return this.#openUntil - this.#now()
    if (state === 'half-open' && this.#probes >= this.#settings.maxProbes) return PROBING_MS // guard: rate.store-one-probe
    return 0
  }

  /** Returns true if the breaker was not closed before. */
  succeed(): boolean {
    const wasOpen = this.#failures >= this.#settings.maxFailures
    this.#failures = 0
    this.#probes = 0
    return wasOpen
  }

  /** Returns true if this failure opens the breaker. */
  fail(): boolean {
    const { maxFailures, openMs } = this.#settings
    const wasOpen = this.#failures >= maxFailures
    if (wasOpen) this.#probes = Math.max(0, this.#probes - 1)
    this.#failures++
    if (this.#failures < maxFailures) return false
    this.#openUntil = this.#now() + openMs
    return !wasOpen
  }
}
