import type { Pool, PoolClient } from 'pg'
import { BusyError, ClosedError, StatementTimeoutError } from '../errors.js'
import { emit } from './events.js'
import { readFault, translateError } from './fault.js'

/** How long a call without a deadline of its own waits for a connection. */
export const CHECKOUT_MS = 10_000

export interface ConnectionsOptions {
  readonly schema: string
  /** Statements get names, so that the server keeps their plans. Off behind PgBouncer in transaction mode. */
  readonly prepared: boolean
}

/** The pool, and what is known about the sessions it hands out. */
export class Connections {
  readonly pool: Pool
  readonly schema: string
  readonly prepared: boolean
  /** The sessions' own `statement_timeout`, 0 for none. */
  statementTimeoutMs = 0
  /** A statement sent by itself runs at READ COMMITTED and may write, as our functions expect. */
  autocommitFits = true
  #isClosed = false

  constructor(pool: Pool, { schema, prepared }: ConnectionsOptions) {
    this.pool = pool
    this.schema = schema
    this.prepared = prepared
  }

  close(): void {
    this.#isClosed = true
  }

  /** A client of the pool for one piece of work; waits at most `waitMs`. */
  async take(waitMs: number = CHECKOUT_MS): Promise<Checkout> {
    if (this.#isClosed) throw new ClosedError()
    const startedAt = performance.now()
    const busy = (cause?: unknown): BusyError => {
      const { max } = this.pool.options
      const waitedMs = performance.now() - startedAt
      return new BusyError(`a connection of the pool (max ${max ?? 10}, all in use)`, waitedMs, 100, {
        cause,
      })
    }
    if (waitMs <= 0) throw busy()

    // With a client at hand there is nothing to wait for, and a timer would cost a short call about 7 % of its rate.
    const isAtHand = this.pool.idleCount > this.pool.waitingCount
    const connecting = this.pool.connect()
    let timer: NodeJS.Timeout | undefined
    const expire = (): Promise<undefined> =>
      new Promise((resolve) => {
        timer = setTimeout(() => resolve(undefined), Math.min(waitMs, CHECKOUT_MS))
      })
    try {
      const client = await (isAtHand ? connecting : Promise.race([connecting, expire()]))
      if (client) return new Checkout(client, this.schema)
    } catch (error) {
      throw isPoolFull(error) ? busy(error) : translateError(error)
    } finally {
      clearTimeout(timer)
    }
    // The client may still come; it goes back unused.
    connecting.then(
      (client) => client.release(),
      () => {},
    )
    throw busy()
  }
}

/** `pg-pool` says this when every client is out, and another sentence when the server does not answer. */
const isPoolFull = (error: unknown): boolean =>
  error instanceof Error && error.message === 'timeout exceeded when trying to connect'

/** A client outside its pool. It goes back only when it is whole and idle; anything else is thrown away. */
export class Checkout {
  readonly client: PoolClient
  readonly #schema: string
  /** Why the connection is gone, from the moment that is noticed, also while nothing runs on it. */
  broken: Error | undefined
  readonly #onError = (error: Error): void => {
    this.broken ??= error
  }

  constructor(client: PoolClient, schema: string) {
    this.client = client
    this.#schema = schema
    // Without a listener, a connection that dies between two statements would end the process.
    client.on('error', this.#onError)
  }

  release(): void {
    const isIdle = this.client.getTransactionStatus() === 'I'
    if (this.broken || !isIdle) {
      this.discard(this.broken ?? new Error('a transaction was left open on this connection'))
    } else {
      this.client.release()
      this.client.off('error', this.#onError)
    }
  }

  discard(error: unknown): void {
    emit('dibs:connection.discarded', { schema: this.#schema, error })
    this.client.release(true)
    // The listener stays: a socket that is being closed may still report an error.
  }

  /** Ends the transaction after `reason`, as far as the connection allows, and gives the client back. */
  async rollback(reason: unknown): Promise<void> {
    const lost = this.broken ?? (leavesNoAnswer(reason) ? reason : undefined)
    if (lost) return this.discard(lost)
    try {
      if (this.client.getTransactionStatus() !== 'I') await this.client.query('rollback')
    } catch (error) {
      return this.discard(error)
    }
    this.release()
  }

  expired(): StatementTimeoutError {
    return new StatementTimeoutError(
      'The deadline of this transaction has passed; the statement was not sent.',
    )
  }
}

/** After such an error the connection is dead, or an answer nobody waits for may still arrive on it. */
function leavesNoAnswer(reason: unknown): boolean {
  return readFault(reason)?.fatal === true
}
