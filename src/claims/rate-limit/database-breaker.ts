import {
  BusyError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  StatementTimeoutError,
} from '../../errors.js'
import { CircuitBreaker } from '../../postgres/circuit-breaker.js'
import { withTimeout } from '../../postgres/with-timeout.js'

/** How long no call tries the database after a failure. */
const COOLDOWN_MS = 1_000

/** Thrown instead of a call while the database is down. Callers of this folder catch it. */
export class DatabaseUnavailable extends Error {}

/**
 * Calls a database that may be unavailable, for callers that can decide without it. After a failure, and after `COOLDOWN_MS`, one call tries the database,
 * while the others still get `DatabaseUnavailable`.
 */
export class DatabaseBreaker {
  readonly #downAfterMs: number
  readonly #breaker: CircuitBreaker
  /** The last failure. */
  #cause: unknown

  constructor(downAfterMs: number, cooldownMs = COOLDOWN_MS) {
    this.#downAfterMs = downAfterMs
    this.#breaker = new CircuitBreaker({ maxFailures: 1, openMs: cooldownMs, maxProbes: 1 })
  }

  /** Throws `DatabaseUnavailable` during the cooldown, and while another call tries the database. */
  assertAvailable(): void {
    if (!this.#breaker.isAvailable) throw new DatabaseUnavailable('left alone', { cause: this.#cause })
  }

  /** Calls `fn`. Throws `DatabaseUnavailable` as `assertAvailable` does, and if the database cannot be reached or does not answer in time. */
  async run<T>(fn: () => Promise<T>): Promise<T> {
    this.assertAvailable()
    this.#breaker.enter()
    const fail = (): never => {
      throw new ConnectionLostError(`No answer came within ${this.#downAfterMs} ms.`)
    }
    try {
      const answer = await withTimeout(fn(), this.#downAfterMs, fail)
      this.#breaker.succeed()
      return answer
    } catch (error) {
      if (!isUnavailable(error)) {
        // The database has answered.
        this.#breaker.succeed()
        throw error
      }
      this.#cause = error
      this.#breaker.fail()
      throw new DatabaseUnavailable('down', { cause: error })
    }
  }
}

/** True if there was no connection, none in time, or if it was lost. False for the server's own answer about the statement. */
function isUnavailable(error: unknown): boolean {
  return (
    error instanceof ConnectionLostError ||
    error instanceof CommitOutcomeUnknownError ||
    error instanceof BusyError ||
    (error instanceof StatementTimeoutError && error.sqlState === undefined)
  )
}
