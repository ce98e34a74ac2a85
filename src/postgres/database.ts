import type { QueryConfig } from 'pg'
import { CommitOutcomeUnknownError, ConnectionLostError } from '../errors.js'
import { ANSWER_MS, type Checkout, Connections } from './connections.js'
import { emit } from './events.js'
import type { Row, Tx } from './executor.js'
import { readFault, translateError } from './fault.js'
import { joinTransaction } from './join.js'
import { forgetNames, toQueryConfig } from './session.js'
import { type RenderedStatement, renderStatement, type Statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'
import { type BoundStatement, queryThen } from './together.js'
import { repeatTransaction, runTransaction, type TransactionOptions } from './transaction.js'
import type { FramedTransaction } from './transaction-handle.js'
import type { Transaction } from './transaction-types.js'

/** How a statement runs by itself. */
interface Alone {
  readonly statement: Pick<Statement, 'readOnly'>
  readonly isPart: boolean
  readonly deadlineMs: number | undefined
  readonly onClient?: (() => void) | undefined
}

/** How long a statement may take that does more than ours do. */
export interface StatementLimit {
  /** After that the server cancels it, and has let go of everything when the answer comes. */
  readonly ms: number
  /** It changes nothing, so a lost reply leaves nothing unknown. */
  readonly readOnly: boolean
}

/** What ends just at its limit is answered, or cancelled, and not taken for silence. */
const SPARE_MS = 1_000

/** How long a statement that waits for nobody may take. Far more than any of ours does, and far less than `ANSWER_MS`. */
const SILENT_MS = 10_000

/** How long the second of two statements may take that nobody waits for, how many may be under way, and for how long none is sent after one that has taken too long: they are not to use up the pool. */
const SECOND_MS = 2_000
const MOST_SECONDS = 2
const SECONDS_PAUSE_MS = 30_000

/** More is no timer to Node.js. */
const MAX_TIMER_MS = 2 ** 31 - 1

/** One schema in one database: what every part of Dibs sends its statements through. */
export class Database extends Connections {
  readonly #rendered = new Map<Statement, RenderedStatement>()
  #seconds = 0
  #secondsFrom = 0

  /** Sends one of our statements: in the caller's transaction if one is given, else alone. */
  async send(statement: Statement, values: readonly TextValue[], tx?: Tx): Promise<TextRow[]> {
    if (tx === undefined) return this.#sendAlone(statement, values, false)
    return (await joinTransaction(tx, this)).send(this.render(statement), values)
  }

  /** Sends one of our statements alone, and cuts the connection if its answer has not come after `ms`. */
  sendWithin(ms: number, statement: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    return this.#sendAlone(statement, values, false, ms)
  }

  /**
   * Sends one of our statements alone that waits for `waitMs` at most behind each of those in front of it. A server that has not answered long after that is
   * behind a network that is silent, and nobody should have to wait a minute to learn that.
   */
  sendWaiting(waitMs: number, statement: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    return this.sendWithin(Math.min(2 * waitMs + SILENT_MS, MAX_TIMER_MS), statement, values)
  }

  /**
   * Sends a statement about tables of the caller's own, whose rows come as the caller's driver gives them: in the caller's transaction if one is
   * given, else alone. It has no name: what it answers changes with the table. With a `limit` it is alone in a transaction.
   */
  async query(
    text: string,
    values: readonly TextValue[],
    { tx, waitMs, limit }: { tx: Tx | undefined; waitMs: number; limit?: StatementLimit | undefined },
  ): Promise<Row[]> {
    if (tx !== undefined) return (await (await joinTransaction(tx, this)).query(text, [...values])).rows
    const deadlineMs = Math.min(2 * waitMs + SILENT_MS, MAX_TIMER_MS)
    const sent = [...values]
    if (limit) {
      const ask = async (own: FramedTransaction): Promise<Row[]> => {
        const { rows } = await own.query(text, sent)
        if (limit.readOnly) own.leave()
        return rows
      }
      const ms = Math.min(limit.ms, this.statementTimeoutMs || limit.ms)
      const opening = () => [`set local statement_timeout = ${ms}`]
      return repeatTransaction(this, ask, { maxAttempts: 1, deadlineMs: ms + SPARE_MS }, { opening })
    }
    return this.#runAlone<Row>(
      { statement: { readOnly: false }, isPart: false, deadlineMs },
      { text, values: sent },
      async (own) => (await own.query(text, sent)).rows,
    )
  }

  /**
   * Sends one of our statements alone, as a part of work that was let in before: also while `close` waits for that. With `withinMs` its connection is cut if
   * no answer has come by then. `onClient` is called when a client of the pool is had, just before it is sent; if it throws, nothing is.
   */
  sendPart(
    statement: Statement,
    values: readonly TextValue[],
    withinMs?: number,
    onClient?: () => void,
  ): Promise<TextRow[]> {
    return this.#sendAlone(statement, values, true, withinMs, onClient)
  }

  /**
   * Sends one of our statements alone, and with it a second one that begins when the first is over, at no cost in time: nobody waits for its answer. `orElse` is called if the first is done and the second is
   * not: two transactions cannot share a message everywhere, and few may be under way.
   */
  async sendThen(
    statement: Statement,
    values: readonly TextValue[],
    second: BoundStatement,
    orElse: () => void,
  ): Promise<TextRow[]> {
    const sendFirst = async (isPart: boolean): Promise<TextRow[]> => {
      const rows = await this.#sendAlone(statement, values, isPart)
      orElse()
      return rows
    }
    if (!this.autocommitFits || !this.prepared || !this.#mayFollow) return sendFirst(false)
    return this.work(async () => {
      const first = this.bind(statement, values)
      const checkout = await this.take()
      checkout.bound(ANSWER_MS)
      let sent: ReturnType<typeof queryThen>
      try {
        // Others may have sent theirs while this one waited for a client.
        if (this.#mayFollow) sent = queryThen(checkout.client, first, second)
      } catch (error) {
        checkout.release(error)
        throw error
      }
      if (!sent) {
        checkout.release()
        return sendFirst(true)
      }
      this.#seconds++
      try {
        const { rows } = await sent.first
        this.finish(this.#endSecond(checkout, sent.second, orElse))
        return [...rows]
      } catch (error) {
        checkout.bound(SECOND_MS)
        const isForgotten = forgetNames(checkout.client, error)
        // It may ask the connection, which answers the second before.
        const judged = isForgotten ? undefined : await this.#judge(error, first.statement, checkout)
        this.finish(this.#endSecond(checkout, sent.second, () => {}))
        if (isForgotten) return sendFirst(true)
        throw judged
      }
    })
  }

  get #mayFollow(): boolean {
    return this.#seconds < MOST_SECONDS && performance.now() >= this.#secondsFrom
  }

  /** The first is answered; the connection is the second's until that is. */
  async #endSecond(checkout: Checkout, second: Promise<unknown>, orElse: () => void): Promise<void> {
    checkout.bound(SECOND_MS)
    try {
      await second
      checkout.release()
    } catch (error) {
      // Whoever waits there for something may wait for long, also when we do not any more.
      if (checkout.wasCut) this.#secondsFrom = performance.now() + SECONDS_PAUSE_MS
      forgetNames(checkout.client, error)
      checkout.release(error)
      orElse()
    } finally {
      this.#seconds--
    }
  }

  /** One of our statements with its values, to be sent in one message with BEGIN or COMMIT. */
  bind(statement: Statement, values: readonly TextValue[]): BoundStatement {
    return { statement: this.render(statement), values }
  }

  /** Runs `fn` in a transaction, again from its start when it meets a conflict. */
  transaction<T>(fn: (tx: Transaction) => Promise<T>, options?: TransactionOptions): Promise<T> {
    return runTransaction(this, fn, options)
  }

  /** A wait that ends before the server's own limit for a statement, which would fail in another way. */
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

  #sendAlone(
    statement: Statement,
    values: readonly TextValue[],
    isPart: boolean,
    deadlineMs?: number,
    onClient?: () => void,
  ): Promise<TextRow[]> {
    const rendered = this.render(statement)
    const config = toQueryConfig(rendered, values, this.prepared)
    return this.#runAlone({ statement: rendered, isPart, deadlineMs, onClient }, config, (own) =>
      own.send(rendered, values),
    )
  }

  /** `config` by itself, or what `joined` does in a transaction of its own where a statement by itself would run at another level. */
  #runAlone<R extends object>(
    { statement, isPart, deadlineMs, onClient }: Alone,
    config: QueryConfig,
    joined: (own: FramedTransaction) => Promise<R[]>,
  ): Promise<R[]> {
    const inOwn = async (own: FramedTransaction): Promise<R[]> => {
      onClient?.()
      return await joined(own)
    }
    if (!this.autocommitFits)
      return repeatTransaction(this, inOwn, { maxAttempts: 1, deadlineMs }, { isPart })
    return this.work(
      () =>
        this.use(
          async (checkout) => {
            onClient?.()
            const ask = async () => (await checkout.client.query<R>(config)).rows
            try {
              return await ask().catch((error) =>
                forgetNames(checkout.client, error) ? ask() : Promise.reject(error),
              )
            } catch (error) {
              throw await this.#judge(error, statement, checkout)
            }
          },
          deadlineMs,
          deadlineMs,
        ),
      isPart,
    )
  }

  /** It commits by itself, so a lost answer is a lost COMMIT. */
  async #judge(
    error: unknown,
    { readOnly }: Pick<Statement, 'readOnly'>,
    checkout: Checkout,
  ): Promise<unknown> {
    const fault = readFault(error)
    if (fault?.sqlState === undefined || fault.fatal) checkout.broken ??= error
    // What is neither conflict, constraint nor timeout may be the last word of a server that dies.
    else if (fault.kind === 'other' || fault.kind === 'retryable') await checkout.answers('select 1')
    if (checkout.broken === undefined) return translateError(error)
    if (readOnly)
      return new ConnectionLostError('The connection was lost while a statement ran.', { cause: error })
    emit('dibs:commit.unknown', { ...this.origin, error })
    return new CommitOutcomeUnknownError('a statement', { cause: error })
  }
}
