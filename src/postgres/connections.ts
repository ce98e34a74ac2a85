import type { Pool, PoolClient } from 'pg'
import { BusyError, ClosedError, StatementTimeoutError } from '../errors.js'
import { type EventOrigin, emit, newOrigin } from './events.js'
import { isUnusable, translateError } from './fault.js'
import { transactionStatus } from './pg-client-state.js'

/** The longest wait for a connection, of the pool or to the server. */
export const CONNECT_MS = 5_000

/** The longest wait for the answer to a statement that has no deadline of its own. */
export const ANSWER_MS = 60_000

/** How long `close` waits for work that still runs. */
export const CLOSE_MS = 30_000

export interface ConnectionsOptions {
  readonly schema: string
  /** Statements get names, so that the server keeps their plans. Off behind PgBouncer in transaction mode. */
  readonly prepared: boolean
  /** Who it is in events, if that was decided before. */
  readonly origin?: EventOrigin | undefined
}

/** The pool, and what is known about the sessions it hands out. */
export class Connections {
  readonly pool: Pool
  readonly schema: string
  readonly prepared: boolean
  /** Says in each event where it comes from. */
  readonly origin: EventOrigin
  /** Of the server: 14, 15. */
  serverMajor = 0
  /** The sessions' own `statement_timeout`, 0 for none. */
  statementTimeoutMs = 0
  /** A statement sent by itself runs at READ COMMITTED and may write, as our functions expect. */
  autocommitFits = true
  /** No new work. */
  #isClosed = false
  /** No work at all. */
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
   * Runs what `close` must wait for, and nothing once it was called. `isPart`: of work that was let in before.
   */
  async work<T>(fn: () => Promise<T>, isPart = false): Promise<T> {
    if (this.#isClosed && !isPart) throw new ClosedError()
    this.#running++
    try {
      return await fn()
    } finally {
      if (--this.#running === 0) this.#onIdle?.()
    }
  }

  /** What is left to do after the caller has got its answer; `close` waits for it too. It must not fail. */
  finish(rest: Promise<void>): void {
    this.#running++
    void rest.finally(() => {
      if (--this.#running === 0) this.#onIdle?.()
    })
  }

  /** Refuses new work and waits for what runs; what still runs after `waitMs` loses its connection. */
  async close(waitMs = CLOSE_MS): Promise<void> {
    this.#isClosed = true
    if (this.#running === 0) return
    let timer: NodeJS.Timeout | undefined
    await new Promise<void>((resolve) => {
      this.#onIdle = resolve
      timer = setTimeout(resolve, waitMs)
    })
    clearTimeout(timer)
    if (this.#running === 0) return
    this.#isOver = true
    for (const checkout of this.#checkouts) checkout.abandon(new ClosedError())
  }

  /** Runs `fn` on a client of the pool; whatever state `fn` leaves it in, a client that is not whole does not go back. */
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

  /** A client of the pool for one piece of work; waits at most `waitMs`. */
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
      // Someone else gave it back to a shared pool with a transaction open: what we wrote would go under in it.
      checkout.discard(new Error('a transaction was left open on this connection'))
    }
  }

  #connect(waitMs: number): Promise<Checkout> {
    const startedAt = performance.now()
    return new Promise((resolve, reject) => {
      let state: 'waiting' | 'had' | 'late' = 'waiting'
      const expire = (): void => {
        if (state !== 'waiting') return
        state = 'late'
        reject(this.busy(performance.now() - startedAt))
      }
      if (waitMs <= 0) return expire()
      // In a process that stood still the answer may be there, and timers come before it is read.
      const timer = setTimeout(() => setImmediate(expire), waitMs)
      const fail = (error: unknown): void => {
        clearTimeout(timer)
        if (isPoolFull(error)) reject(this.busy(performance.now() - startedAt, error))
        else
          reject(isPoolEnded(error) ? new ClosedError({ cause: error }, POOL_ENDED) : translateError(error))
      }
      try {
        this.pool.connect((error, client) => {
          clearTimeout(timer)
          if (state === 'late') return client?.release() // nobody waits for it any more
          state = 'had'
          // At once: the server may have ended the session in the very message that made it, which is read on before anybody who awaits this.
          if (client) resolve(new Checkout(client, this.origin, this.#checkouts))
          else fail(error)
        })
      } catch (error) {
        fail(error)
      }
    })
  }

  /** What is said to whoever has waited in vain for a client. */
  busy(waitedMs: number, cause?: unknown): BusyError {
    const { waitingCount, options } = this.pool
    const subject =
      waitingCount > 0 || cause
        ? `a connection of the pool (max ${options.max}, all in use)`
        : 'an answer of the server'
    return new BusyError(subject, waitedMs, 100, { cause })
  }
}

/** `pg-pool` says this when every client is out, and another sentence when the server does not answer. */
const POOL_ENDED =
  'The pool of this Dibs instance was ended. Call its close() first, which stops what still uses it.'

const isPoolFull = (error: unknown): boolean =>
  error instanceof Error && error.message === 'timeout exceeded when trying to connect'

const isPoolEnded = (error: unknown): boolean =>
  error instanceof Error && error.message.startsWith('Cannot use a pool after calling end')

/** A client outside its pool. It goes back only when it is whole and idle; anything else is thrown away. */
export class Checkout {
  readonly client: PoolClient
  readonly #origin: Connections['origin']
  readonly #all: Set<Checkout>
  /** Of this checkout: a pool makes a new one each time it hands the client out. */
  readonly #release: PoolClient['release']
  #timer: NodeJS.Timeout | undefined
  #giveUp: ((error: unknown) => void) | undefined
  /** It is `bound` that has ended the connection. */
  wasCut = false
  /** Why the connection is gone, from the moment that is noticed, also while nothing runs on it. */
  broken: unknown
  readonly #onError = (error: Error): void => {
    this.broken ??= error
  }

  constructor(client: PoolClient, origin: Connections['origin'], all: Set<Checkout>) {
    this.client = client
    this.#origin = origin
    this.#all = all.add(this)
    this.#release = client.release
    // Without a listener, a connection that dies between two statements would end the process.
    client.on('error', this.#onError)
  }

  /**
   * Cuts the connection after `ms`: on a network that has gone silent no answer, and no error, ever comes. Replaces
   * what was set before.
   */
  bound(ms: number): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (ms > 2 ** 31 - 1) return
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
    // In a process that stood still the answer may be there, and timers come before it is read.
    const timer = setTimeout(() => setImmediate(cut), ms)
    this.#timer = timer
  }

  /** Waits for `work`, which may be waiting for something else; rejects when the connection is cut or taken away. */
  unlessCut<T>(work: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#giveUp = reject
      work.then(resolve, reject)
    })
  }

  /** Takes the connection from work that does not end. */
  abandon(error: unknown): void {
    this.broken ??= error
    this.#giveUp?.(error)
    this.discard(error)
  }

  /** Gives the client back after its work, or after the error that ended it. */
  release(error?: unknown): void {
    if (error !== undefined && isUnusable(error)) this.broken ??= error
    if (this.broken !== undefined) this.discard(this.broken)
    else if (!this.isIdle()) {
      this.discard(new Error('a transaction was left open on this connection'))
    } else {
      this.#give()
      this.client.off('error', this.#onError)
    }
  }

  /** Undefined on a client of an older pg until its first answer, and always on a native one, which `open` refuses. */
  get status(): ReturnType<typeof transactionStatus> {
    return transactionStatus(this.client)
  }

  /** Asks a client whose status is not known whether a transaction is open on it. */
  async learnStatus(ms: number): Promise<void> {
    this.bound(ms)
    try {
      await this.client.query('select 1')
    } catch {
      // The next statement fails as well, and says why.
    }
    this.bound(Number.POSITIVE_INFINITY)
  }

  isIdle(): boolean {
    return this.status === 'I' || this.status === undefined
  }

  discard(error: unknown): void {
    emit('dibs:connection.discarded', { ...this.#origin, error })
    // The listener stays: a socket that is being closed may still report an error.
    this.#give(true)
  }

  #give(destroy?: true): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (!this.#all.delete(this)) return // given up at close()
    try {
      this.#release.call(this.client, destroy)
    } catch (error) {
      // Released before by someone who was handed `tx.client`. What was done is done; it must not fail for that.
      emit('dibs:connection.discarded', { ...this.#origin, error })
    }
  }

  /** Ends the transaction, as far as the connection allows, and gives the client back. */
  async rollback(): Promise<void> {
    if (await this.answers('rollback')) this.release()
    else this.discard(this.broken)
  }

  /** Sends a statement that cannot fail, to learn whether the connection still lives. */
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
