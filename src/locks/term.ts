import { FenceLostError, type LossReason } from '../errors.js'
import type { Executor, QueryResult, Row, Tx } from '../postgres/executor.js'
import type { FencedWrite } from './fenced-write.js'
import type { GuardOptions, Lock, TookOver } from './lock.js'

/**
 * A period in which this process leads: from its election until `signal` fires.
 *
 * @example
 * const election = dibs.elect('scheduler', {
 *   onElected: async (term) => {
 *     while (!term.signal.aborted) await dibs.transaction(async (tx) => {
 *       await term.guard(tx)
 *       await tx.query('update tick set n = n + 1')
 *     })
 *   },
 * })
 */
export interface Term {
  /** A number that is higher for each later leader. Use it as the fence for writes to other systems. */
  readonly epoch: number
  /** When this process was elected, by the database's clock. */
  readonly electedAt: Date
  /** Set if the previous leader did not resign. Work that it began may be half done. */
  readonly tookOver: TookOver | undefined
  /** Fires when this process no longer leads, and before another process may lead. Its reason is a `FenceLostError` that has the `reason`. */
  readonly signal: AbortSignal
  /** Throws a `FenceLostError` if this process no longer leads, even before `signal` fires, as after this process was suspended. */
  assertLeading(): void
  /** Ties an open transaction to this term. Once another process leads, the transaction cannot commit. Until the transaction ends, no other process leads. */
  guard(tx: Tx, options?: GuardOptions): Promise<void>
  /** Writes a row in another store, unless a later leader has written that row before. */
  writeFenced<R extends object = Row>(store: Executor, write: FencedWrite): Promise<QueryResult<R>>
}

/** A term that this process can also end by itself. */
export class OpenTerm implements Term {
  readonly epoch: number
  readonly electedAt: Date
  readonly tookOver: TookOver | undefined
  readonly #lock: Lock
  readonly #name: string
  readonly #controller = new AbortController()
  /** Resolves when the term is over. */
  readonly ended: Promise<void>

  constructor(lock: Lock, name: string) {
    this.#lock = lock
    this.#name = name
    this.epoch = lock.fence
    this.electedAt = lock.acquiredAt
    this.tookOver = lock.tookOver
    const lose = (): void => this.#controller.abort(lock.signal.reason)
    lock.signal.addEventListener('abort', lose, { once: true }) // guard: election.lost-signal
    if (lock.signal.aborted) lose()
    this.ended = this.signal.aborted
      ? Promise.resolve()
      : new Promise((resolve) => this.signal.addEventListener('abort', () => resolve(), { once: true }))
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  get reason(): LossReason {
    return this.signal.reason?.reason ?? 'stolen'
  }

  get isLeading(): boolean {
    try {
      this.assertLeading()
      return true
    } catch {
      return false
    }
  }

  end(reason: LossReason): void {
    this.#controller.abort(new FenceLostError(`leadership "${this.#name}"`, this.epoch, { reason }))
  }

  assertLeading(): void {
    this.signal.throwIfAborted() // guard: election.guard-resigned
    this.#lock.assertHeld()
  }

  guard(tx: Tx, options?: GuardOptions): Promise<void> {
    return this.#lock.guard(tx, options)
  }

  writeFenced<R extends object = Row>(store: Executor, write: FencedWrite): Promise<QueryResult<R>> {
    return this.#lock.writeFenced<R>(store, write)
  }

  /**
   * Returns whether an error of `onElected` comes from the end of this term, and so is no failure. Such an error is the abort reason itself, or an error of a
   * timer or stream that the reason caused. A write that was refused because the term was over is no failure either.
   */
  hasCaused(error: unknown): boolean {
    if (!this.signal.aborted) return false
    const causes = [error, error instanceof Error ? error.cause : undefined]
    return causes.some(
      (one) => one === this.signal.reason || (one instanceof FenceLostError && one.fence === this.epoch),
    )
  }
}
