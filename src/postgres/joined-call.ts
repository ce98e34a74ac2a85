import { ConstraintViolationError, DatabaseError, NotInTransactionError } from '../errors.js'
import type { Database } from './database.js'
import type { Tx } from './executor.js'
import { joinTransaction } from './join.js'
import { isJoinedTransaction, type JoinedTransaction } from './joined-transaction.js'
import { type Statement, statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

const MAX_NAME = 200

/** Raised by `joined_call_check`. */
const ENDED = 'DIB03'
/** The constraint that refuses COMMIT while a call is open. */
const OPEN_CALL_CONSTRAINT = 'await_joined_calls_before_commit'

const openCall = statement(`select {schema}.joined_call_open($1::text::text, null)::text as call`)
const closeCall = statement(`select {schema}.joined_call_close($1::text::text)::text as closed`)

/**
 * A joined call of several statements. If another library commits the transaction, a mark in the database makes COMMIT
 * fail from the first statement to the last: see sql/0003_joined_call.sql. The mark travels with those two statements
 * and costs no round trip. `dibs.transaction` needs no mark, because it refuses COMMIT itself.
 */
export class JoinedCall {
  readonly #database: Database
  readonly #tx: Tx
  readonly #name: string
  readonly #isMarked: boolean
  #transaction: JoinedTransaction | undefined
  #mark: string | null = null

  /** `name` appears in the error of a refused COMMIT. */
  constructor(database: Database, tx: Tx, name: string) {
    this.#database = database
    this.#tx = tx
    this.#name = name.slice(0, MAX_NAME)
    this.#isMarked = !(isJoinedTransaction(tx) && tx.refusesOpenCalls)
  }

  /** Opens the call without a separate statement. */
  async open(): Promise<void> {
    if (!this.#isMarked) return
    this.#readMark(await this.#sendFirst(openCall, [this.#name]))
  }

  /** Sends the first statement, whose column `result` says whether the call goes on. */
  async first(source: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    if (!this.#isMarked) return this.#send(source, values)
    const rows = await this.#sendFirst(opening(source, values.length), [...values, this.#name])
    this.#readMark(rows)
    return rows
  }

  /** After COMMIT, this statement would run as a separate transaction. The mark makes it fail, and nothing is written. */
  async #sendFirst(source: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    try {
      return await this.#send(source, values)
    } catch (error) {
      if (!(error instanceof ConstraintViolationError && error.constraint === OPEN_CALL_CONSTRAINT))
        throw error
      throw this.#ended(error)
    }
  }

  #ended(cause: unknown): NotInTransactionError {
    return new NotInTransactionError('a transaction that has ended', `Await ${this.#name} before COMMIT.`, {
      cause,
    })
  }

  /** Sends a statement between the first and the last. */
  async next(source: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    if (this.#mark === null) return this.#send(source, values)
    try {
      return await this.#send(checking(source, values.length), [...values, this.#mark])
    } catch (error) {
      if (!(error instanceof DatabaseError && error.sqlState === ENDED)) throw error
      throw this.#ended(error)
    }
  }

  /** Sends the last statement. */
  async last(source: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    if (this.#mark === null) return this.#send(source, values)
    return this.#send(closing(source, values.length), [...values, this.#mark])
  }

  /** Closes the call if it has no last statement. */
  async close(): Promise<void> {
    if (this.#mark !== null) await this.#send(closeCall, [this.#mark])
  }

  /** The transaction is the same for the whole call, so that no statement gets into the next transaction of the same client. */
  async #send(source: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    this.#transaction ??= await joinTransaction(this.#tx, this.#database)
    return this.#database.send(source, values, { tx: this.#transaction })
  }

  #readMark([row]: TextRow[]): void {
    this.#mark = row?.call ?? null
  }
}

/** Each statement object is rendered once, so each source must have one marked statement. */
const openings = new WeakMap<Statement, Statement>()
const checks = new WeakMap<Statement, Statement>()
const closings = new WeakMap<Statement, Statement>()

function opening(source: Statement, count: number): Statement {
  const place = `$${count + 1}::text::text`
  return remember(
    openings,
    source,
    `{schema}.joined_call_open(${place}, f.result::pg_catalog.json)::text as call`,
  )
}

function checking(source: Statement, count: number): Statement {
  return remember(checks, source, `{schema}.joined_call_check($${count + 1}::text::text)::text as checked`)
}

function closing(source: Statement, count: number): Statement {
  return remember(closings, source, `{schema}.joined_call_close($${count + 1}::text::text)::text as closed`)
}

/** `offset 0`: the inner statement runs once, and before the mark. */
function remember(known: WeakMap<Statement, Statement>, source: Statement, column: string): Statement {
  const marked = known.get(source) ?? statement(`select f.*, ${column} from (${source.text} offset 0) f`)
  known.set(source, marked)
  return marked
}
