import type { PoolClient } from 'pg'
import { StatementTimeoutError } from '../errors.js'
import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import { type EventOrigin, emit } from './events.js'
import { isUnusable } from './fault.js'
import { transactionStatus } from './pg-client-state.js'

/**
 * A client that was taken from its pool. Only an intact client without a transaction returns to the pool; any other is
 * discarded.
 */
export class Checkout {
  readonly client: PoolClient
  readonly #origin: EventOrigin
  readonly #all: Set<Checkout>
  /** The `release` of this checkout: a pool makes a new one each time. */
  readonly #release: PoolClient['release']
  #timer: NodeJS.Timeout | undefined
  #giveUp: ((error: unknown) => void) | undefined
  /** True if `bound` has ended the connection. */
  wasCut = false
  /** Why the connection is lost. Set as soon as the loss is noticed, even while no statement runs. */
  broken: unknown
  readonly #onError = (error: Error): void => {
    this.broken ??= error
  }

  constructor(client: PoolClient, origin: EventOrigin, all: Set<Checkout>) {
    this.client = client
    this.#origin = origin
    this.#all = all.add(this)
    this.#release = client.release
    // Without a listener, a connection that dies between two statements would end the process.
    client.on('error', this.#onError)
  }

  /**
   * Cuts the connection after `ms`, because a silent network brings neither an answer nor an error. Replaces the
   * previous bound.
   */
  bound(ms: number): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (ms > MAX_TIMER_MS) return
    const cut = (): void => {
      if (this.#timer !== timer) return
      const error = new StatementTimeoutError(
        `Nothing came within ${Math.round(ms)} ms; the connection was cut.`,
      )
      this.wasCut = true
      this.broken ??= error
      Reflect.get(this.client, 'connection')?.stream?.destroy()
      this.#giveUp?.(error)
    }
    // Timers run before sockets are read: after the process was suspended, the answer may be there unread.
    const timer = setTimeout(() => setImmediate(cut), ms)
    this.#timer = timer
  }

  /** Waits for `work`. Rejects when the connection is cut or abandoned, since `work` may wait for something else. */
  unlessCut<T>(work: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#giveUp = reject
      work.then(resolve, reject)
    })
  }

  /** Discards the connection of work that does not end. */
  abandon(error: unknown): void {
    this.broken ??= error
    this.#giveUp?.(error)
    this.discard(error)
  }

  /** Returns the client to the pool after its work, or after the error that ended it. */
  release(error?: unknown): void {
    if (error !== undefined && isUnusable(error)) this.broken ??= error
    if (this.broken !== undefined) this.discard(this.broken)
    else if (!this.isIdle()) {
      this.discard(new Error('a transaction was left open on this connection'))
    } else {
      this.#return()
      this.client.off('error', this.#onError)
    }
  }

  /** Undefined on a client of an older pg until its first answer. Always undefined on a native client, which `open` refuses. */
  get status(): ReturnType<typeof transactionStatus> {
    return transactionStatus(this.client)
  }

  /** Reads the transaction status of a client of an older pg. */
  async learnStatus(ms: number): Promise<void> {
    this.bound(ms)
    try {
      await this.client.query('select 1')
    } catch {
      // The next statement also fails, and its error has the reason.
    }
    this.bound(Number.POSITIVE_INFINITY)
  }

  isIdle(): boolean {
    return this.status === 'I' || this.status === undefined
  }

  discard(error: unknown): void {
    emit('dibs:connection.discarded', { ...this.#origin, error })
    // The listener stays: a socket that is being closed may still report an error.
    this.#return(true) // guard: transaction.broken-connection
  }

  #return(destroy?: true): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (!this.#all.delete(this)) return // abandoned by close()
    try {
      this.#release.call(this.client, destroy)
    } catch (error) {
      // A user of `tx.client` has released it. The work is done and must not fail for that.
      emit('dibs:connection.discarded', { ...this.#origin, error })
    }
  }

  /** Rolls back if the connection still works, and returns the client to the pool. */
  async rollback(): Promise<void> {
    if (await this.answers('rollback')) this.release()
    else this.discard(this.broken)
  }

  /** True if the server answers a statement that cannot fail. */
  async answers(text: 'rollback' | 'select 1'): Promise<boolean> {
    if (this.broken !== undefined) return false
    try {
      await this.client.query(text)
    } catch (error) {
      this.broken ??= error
    }
    return this.broken === undefined
  }
}
