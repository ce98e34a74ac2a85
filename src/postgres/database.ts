import type { QueryConfig } from 'pg'
import { CommitOutcomeUnknownError, ConnectionLostError } from '../errors.js'
import type { Checkout } from './checkout.js'
import { ANSWER_MS, Connections } from './connections.js'
import { emit } from './events.js'
import type { Row, Tx } from './executor.js'
import { readFault, translateError } from './fault.js'
import { FOLLOW_UP_MS, FollowUps } from './follow-up.js'
import { joinTransaction } from './join.js'
import { forgetNames, toQueryConfig } from './pg-query.js'
import type { BoundStatement } from './pipeline.js'
import { RESEND, retry } from './retry.js'
import { deadlineFor, type FollowUp, type SendOptions } from './send-options.js'
import { type RenderedStatement, renderStatement, type Statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'
import { repeatTransaction, runTransaction, type TransactionOptions } from './transaction.js'
import type { InternalTransaction } from './transaction-handle.js'
import type { Transaction } from './transaction-types.js'

/** A statement that runs in no transaction of the caller. */
interface Autocommit<R extends object> {
  readonly config: QueryConfig
  /** Sends the same in a separate transaction, for sessions whose default isolation level does not fit. */
  readonly inTransaction: (own: InternalTransaction) => Promise<R[]>
  readonly readOnly: boolean
  readonly deadlineMs: number | undefined
  readonly connectMs?: number | undefined
  readonly duringClose?: boolean | undefined
  readonly onClient?: (() => void) | undefined
}

/** The bound on a statement about tables of the caller, which may read a lot. */
export interface StatementLimit {
  /** The server cancels the statement after this time, and holds no lock when the answer comes. */
  readonly ms: number
  /** The statement changes nothing, so a lost answer leaves nothing unknown. */
  readonly readOnly: boolean
}

/** A statement that the server cancels at its limit is answered within this time; then its connection is not cut. */
const CANCEL_MS = 1_000

/** One schema in one database. All parts of Dibs send their statements through it. */
export class Database extends Connections {
  readonly #rendered = new Map<Statement, RenderedStatement>()
  readonly #followUps = new FollowUps(this)

  /** Sends one of our statements. `values` may be a function, which is called for each time the statement is sent. */
  async send(
    statement: Statement,
    values: readonly TextValue[] | (() => readonly TextValue[]),
    options: SendOptions = {},
  ): Promise<TextRow[]> {
    if (options.retry) {
      const once = { ...options, retry: false }
      return retry(() => this.send(statement, values, once), RESEND)
    }
    const bound = typeof values === 'function' ? values() : values
    const { tx, connection, followUp } = options
    if (tx !== undefined) return (await joinTransaction(tx, this)).send(this.render(statement), bound)
    if (connection) return connection.send(statement, bound, options)
    if (followUp) return this.#sendWithFollowUp(this.bind(statement, bound), followUp)
    return this.#autocommit(this.#toAutocommit(this.bind(statement, bound), options))
  }

  /**
   * Sends a statement about tables of the caller. The statement has no name, because its columns may change. The rows
   * come as the caller's driver returns them. With a `limit`, the statement runs in a separate transaction.
   */
  async query(
    text: string,
    values: readonly TextValue[],
    { tx, waitMs, limit }: { tx: Tx | undefined; waitMs: number; limit?: StatementLimit | undefined },
  ): Promise<Row[]> {
    const sent = [...values]
    if (tx !== undefined) return (await (await joinTransaction(tx, this)).query(text, sent)).rows
    if (limit) return this.#queryWithin(limit, text, sent)
    return this.#autocommit<Row>({
      config: { text, values: sent },
      inTransaction: async (own) => (await own.query(text, sent)).rows,
      readOnly: false,
      deadlineMs: deadlineFor(waitMs),
    })
  }

  #queryWithin({ ms, readOnly }: StatementLimit, text: string, values: unknown[]): Promise<Row[]> {
    const run = async (own: InternalTransaction): Promise<Row[]> => {
      const { rows } = await own.query(text, values)
      if (readOnly) own.rollBackAtEnd()
      return rows
    }
    const limitMs = Math.min(ms, this.statementTimeoutMs || ms)
    const opening = () => [`set local statement_timeout = ${limitMs}`]
    return repeatTransaction(this, run, { maxAttempts: 1, deadlineMs: limitMs + CANCEL_MS }, { opening })
  }

  /** One of our statements with its values, to be sent in one message with BEGIN or COMMIT. */
  bind(statement: Statement, values: readonly TextValue[]): BoundStatement {
    return { statement: this.render(statement), values }
  }

  /** Runs `fn` in a transaction, again from its start when it meets a conflict. */
  transaction<T>(fn: (tx: Transaction) => Promise<T>, options?: TransactionOptions): Promise<T> {
    return runTransaction(this, fn, options)
  }

  /** A wait that ends before the server's own `statement_timeout`, which would fail in another way. */
  boundWait(waitMs: number): number {
    return Math.ceil(Math.min(waitMs, (this.statementTimeoutMs || Number.POSITIVE_INFINITY) * 0.9))
  }

  /** One of our statements for this schema. */
  render(statement: Statement): RenderedStatement {
    let rendered = this.#rendered.get(statement)
    if (!rendered) {
      rendered = renderStatement(statement, this.schema)
      this.#rendered.set(statement, rendered)
    }
    return rendered
  }

  #toAutocommit({ statement, values }: BoundStatement, options: SendOptions): Autocommit<TextRow> {
    const { waitMs, connectMs, duringClose, onClient } = options
    return {
      config: toQueryConfig(statement, values, this.prepared),
      inTransaction: (own) => own.send(statement, values),
      readOnly: statement.readOnly,
      deadlineMs: options.deadlineMs ?? (waitMs === undefined ? undefined : deadlineFor(waitMs)),
      connectMs,
      duringClose,
      onClient,
    }
  }

  async #sendWithFollowUp(first: BoundStatement, followUp: FollowUp): Promise<TextRow[]> {
    const sendFirst = async (duringClose: boolean): Promise<TextRow[]> => {
      const rows = await this.#autocommit(this.#toAutocommit(first, { duringClose }))
      followUp.ifNotSent()
      return rows
    }
    if (!this.#followUps.isPossible) return sendFirst(false)
    return this.work(async () => {
      const checkout = await this.take()
      checkout.bound(ANSWER_MS)
      let sent: ReturnType<FollowUps['start']>
      try {
        sent = this.#followUps.start(checkout, first, followUp)
      } catch (error) {
        checkout.release(error)
        throw error
      }
      if (!sent) {
        checkout.release()
        return sendFirst(true)
      }
      try {
        const rows = await sent.first
        sent.end(true)
        return [...rows]
      } catch (error) {
        checkout.bound(FOLLOW_UP_MS)
        const isForgotten = forgetNames(checkout.client, error)
        // `#explain` may send a statement on this connection, which answers the follow-up first.
        const explained = isForgotten
          ? undefined
          : await this.#explain(error, first.statement.readOnly, checkout)
        sent.end(false)
        if (isForgotten) return sendFirst(true)
        throw explained
      }
    })
  }

  async #autocommit<R extends object>(call: Autocommit<R>): Promise<R[]> {
    const { config, inTransaction, readOnly, deadlineMs, connectMs, duringClose, onClient } = call
    if (!this.autocommitFits) {
      const run = async (own: InternalTransaction): Promise<R[]> => {
        onClient?.()
        return await inTransaction(own)
      }
      return await repeatTransaction(this, run, { maxAttempts: 1, deadlineMs }, { duringClose, connectMs })
    }
    const run = async (checkout: Checkout): Promise<R[]> => {
      const { client } = checkout
      onClient?.()
      try {
        try {
          return (await client.query<R>(config)).rows
        } catch (error) {
          if (!forgetNames(client, error)) throw error
          return (await client.query<R>(config)).rows
        }
      } catch (error) {
        throw await this.#explain(error, readOnly, checkout)
      }
    }
    this.beginWork(duringClose)
    try {
      return await this.use(run, deadlineMs, connectMs ?? deadlineMs)
    } finally {
      this.endWork()
    }
  }

  /** The statement commits by itself, so a lost answer is a lost COMMIT. */
  async #explain(error: unknown, readOnly: boolean, checkout: Checkout): Promise<unknown> {
    const fault = readFault(error)
    if (fault?.sqlState === undefined || fault.fatal) checkout.broken ??= error
    // Any error but a conflict, a constraint or a timeout may be the last message of a server that dies.
    else if (fault.kind === 'other' || fault.kind === 'retryable') await checkout.answers('select 1')
    if (checkout.broken === undefined) return translateError(error)
    if (readOnly)
      return new ConnectionLostError('The connection was lost while a statement ran.', { cause: error })
    emit('dibs:commit.unknown', { ...this.origin, error })
    return new CommitOutcomeUnknownError('a statement', { cause: error })
  }
}
