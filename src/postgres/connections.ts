import type { Pool } from 'pg'
import { BusyError, ClosedError } from '../errors.js'
import { Checkout } from './checkout.js'
import { type EventOrigin, newOrigin } from './events.js'
import { translateError } from './fault.js'
import { withTimeout } from './with-timeout.js'

/** The longest wait for a connection, of the pool or to the server. */
export const CONNECT_MS = 5_000

/** The longest wait for the answer to a statement without a deadline. */
export const ANSWER_MS = 60_000

/** How long `close` waits for work that still runs. */
export const CLOSE_MS = 30_000

export interface ConnectionsOptions {
  readonly schema: string
  /** Statements get names, so that the server keeps their plans. Off behind PgBouncer in transaction mode. */
  readonly prepared: boolean
  /** The fields of the instance's events, if they exist already. */
  readonly origin?: EventOrigin | undefined
}

/** The pool of one instance, and the properties of its sessions. */
export class Connections {
  readonly pool: Pool
  readonly schema: string
  readonly prepared: boolean
  /** Fields of all events of this instance. */
  readonly origin: EventOrigin
  /** The major version of the server: 14, 15. */
  serverMajor = 0
  /** The sessions' own `statement_timeout`, 0 for none. */
  statementTimeoutMs = 0
  /** True if a statement outside of a transaction runs at READ COMMITTED and may write, as the functions of Dibs expect. */
  autocommitFits = true
  /** True if new work is refused. */
  #isClosed = false
  /** True if running work gets no more connections. */
  #isOver = false
  #running = 0
  #onIdle: (() => void) | undefined
  readonly #checkouts = new Set<Checkout>()

  constructor(pool: Pool, { schema, prepared, origin = newOrigin(schema) }: ConnectionsOptions) {
    this.pool = pool
    this.schema = schema
    this.prepared = prepared
    this.origin = origin
  }

  /**
   * Runs work that `close` waits for. After `close` was called, only `duringClose` work runs: parts of work that began
   * before.
   */
  async work<T>(fn: () => Promise<T>, duringClose = false): Promise<T> {
    this.beginWork(duringClose)
    try {
      return await fn()
    } finally {
      this.endWork()
    }
  }

  /** Begins work that `close` waits for until `endWork`. Throws `ClosedError` after `close` was called. */
  protected beginWork(duringClose = false): void {
    if (this.#isClosed && !duringClose) throw new ClosedError()
    this.#running++
  }

  protected endWork(): void {
    if (--this.#running === 0) this.#onIdle?.()
  }

  /** Makes `close` wait for work that goes on after the caller has its answer. The work must not fail. */
  finish(rest: Promise<void>): void {
    this.#running++
    void rest.finally(() => this.endWork())
  }

  /** Refuses new work and waits for running work. After `waitMs`, work that still runs loses its connection. */
  async close(waitMs = CLOSE_MS): Promise<void> {
    this.#isClosed = true
    if (this.#running === 0) return // guard: transaction.close-waits
    const idle = new Promise<void>((resolve) => {
      this.#onIdle = resolve
    })
    await withTimeout(idle, waitMs, () => {})
    if (this.#running === 0) return
    this.#isOver = true
    for (const checkout of this.#checkouts) checkout.abandon(new ClosedError())
  }

  /** Runs `fn` on a client of the pool. Afterwards, a broken client or one with an open transaction is discarded. */
  async use<T>(
    fn: (checkout: Checkout) => Promise<T>,
    answerMs = ANSWER_MS,
    waitMs = CONNECT_MS,
  ): Promise<T> {
    const checkout = await this.take(waitMs)
    checkout.bound(answerMs)
    let value: T
    try {
      value = await fn(checkout)
    } catch (error) {
      checkout.release(error)
      throw error
    }
    checkout.release()
    return value
  }

  /** Takes a client from the pool. Waits at most `waitMs`. */
  async take(waitMs: number = CONNECT_MS): Promise<Checkout> {
    const until = performance.now() + Math.min(waitMs, CONNECT_MS)
    for (;;) {
      const checkout = await this.#connect(until - performance.now())
      if (this.#isOver) {
        checkout.release()
        throw new ClosedError()
      }
      if (checkout.status === undefined) await checkout.learnStatus(until - performance.now())
      if (checkout.isIdle()) return checkout
      // Another user of the pool returned this client with an open transaction, which would undo our writes.
      checkout.discard(new Error('a transaction was left open on this connection'))
    }
  }

  async #connect(waitMs: number): Promise<Checkout> {
    const startedAt = performance.now()
    if (waitMs <= 0) throw this.busy(0)
    let isLate = false
    const connected = new Promise<Checkout>((resolve, reject) => {
      this.pool.connect((error, client) => {
        if (!client) reject(error)
        else if (isLate) client.release()
        // The checkout listens to errors at once: the same message of the server may open the session and end it.
        else resolve(new Checkout(client, this.origin, this.#checkouts))
      })
    })
    const giveUp = (cause?: unknown): never => {
      isLate = true
      throw this.busy(performance.now() - startedAt, cause)
    }
    try {
      return await withTimeout(connected, waitMs, () => giveUp())
    } catch (error) {
      if (isPoolFull(error)) return giveUp(error)
      throw isPoolEnded(error) ? new ClosedError({ cause: error }, POOL_ENDED) : translateError(error)
    }
  }

  /** True while others have all clients of the pool. */
  get isFull(): boolean {
    const { idleCount, totalCount, options } = this.pool
    return idleCount === 0 && totalCount >= options.max
  }

  /** The error for a caller that got no client in time. */
  busy(waitedMs: number, cause?: unknown): BusyError {
    const { waitingCount, options } = this.pool
    const subject =
      waitingCount > 0 || cause
        ? `a connection of the pool (max ${options.max}, all in use)`
        : 'an answer of the server'
    return new BusyError(subject, waitedMs, 100, { cause })
  }
}

const POOL_ENDED =
  'The pool of this Dibs instance was ended. Call its close() first, which stops what still uses it.'

/** `pg-pool` has this message if all clients are in use, and another one if the server does not answer. */
const isPoolFull = (error: unknown): boolean =>
  error instanceof Error && error.message === 'timeout exceeded when trying to connect'

const isPoolEnded = (error: unknown): boolean =>
  error instanceof Error && error.message.startsWith('Cannot use a pool after calling end')
