import {
  BusyError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  StatementTimeoutError,
} from '../errors.js'
import { withTimeout } from '../postgres/with-timeout.js'

/** How long a store that failed is left alone before it is tried again. */
const REST_MS = 1_000

/** The store is down; never leaves this folder. */
export class StoreDown extends Error {}

/**
 * Tells a store that is down from a call that failed, for those who can do without. One that is down is left alone for a second; then
 * one call tries it, while the others go on without.
 */
export class StoreWatch {
  readonly #downAfterMs: number
  readonly #restMs: number
  #failure: { readonly error: unknown } | undefined
  #restsUntil = 0

  constructor(downAfterMs: number, restMs = REST_MS) {
    this.#downAfterMs = downAfterMs
    this.#restMs = restMs
  }

  /** Throws `StoreDown` while the store is left alone. */
  assertUp(): void {
    if (this.#failure && performance.now() < this.#restsUntil) {
      throw new StoreDown('left alone', { cause: this.#failure.error })
    }
  }

  /** Asks the store; `StoreDown` if it is left alone, cannot be reached or does not answer in time. */
  async ask<T>(fn: () => Promise<T>): Promise<T> {
    this.assertUp()
    if (this.#failure) this.#rest()
    const fail = (): never => {
      throw new ConnectionLostError(`No answer came within ${this.#downAfterMs} ms.`)
    }
    try {
      const answer = await withTimeout(fn(), this.#downAfterMs, fail)
      this.#failure = undefined
      return answer
    } catch (error) {
      if (!isAway(error)) {
        // It has answered.
        this.#failure = undefined
        throw error
      }
      this.#failure = { error }
      this.#rest()
      throw new StoreDown('down', { cause: error })
    }
  }

  #rest(): void {
    this.#restsUntil = performance.now() + this.#restMs
  }
}

/** No connection, none in time, or one that was lost; never what the server has said about the statement. */
function isAway(error: unknown): boolean {
  return (
    error instanceof ConnectionLostError ||
    error instanceof CommitOutcomeUnknownError ||
    error instanceof BusyError ||
    (error instanceof StatementTimeoutError && error.sqlState === undefined)
  )
}
