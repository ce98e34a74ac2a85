import { CommitOutcomeUnknownError } from '../errors.js'
import { Connections } from './connections.js'
import { emit } from './events.js'
import type { Tx } from './executor.js'
import { readFault, translateError } from './fault.js'
import { joinTransaction } from './join.js'
import { toQueryConfig } from './session.js'
import { type RenderedStatement, renderStatement, type Statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'
import {
  repeatTransaction,
  runTransaction,
  type Transaction,
  type TransactionOptions,
} from './transaction.js'

/** One schema in one database: what every part of Dibs sends its statements through. */
export class Database extends Connections {
  readonly #rendered = new Map<Statement, RenderedStatement>()

  /** Sends one of our statements: in the caller's transaction if one is given, else alone. */
  async send(statement: Statement, values: readonly TextValue[], tx?: Tx): Promise<TextRow[]> {
    const rendered = this.#render(statement)
    if (tx !== undefined) return (await joinTransaction(tx, this)).send(rendered, values)
    if (this.autocommitFits) return this.#sendAlone(rendered, values)
    return repeatTransaction(this, (own) => own.send(rendered, values))
  }

  /** Runs `fn` in a transaction, again from its start when it meets a conflict. */
  transaction<T>(fn: (tx: Transaction) => Promise<T>, options?: TransactionOptions): Promise<T> {
    return runTransaction(this, fn, options)
  }

  #render(statement: Statement): RenderedStatement {
    let rendered = this.#rendered.get(statement)
    if (!rendered) {
      rendered = renderStatement(statement, this.schema)
      this.#rendered.set(statement, rendered)
    }
    return rendered
  }

  async #sendAlone(statement: RenderedStatement, values: readonly TextValue[]): Promise<TextRow[]> {
    const checkout = await this.take()
    try {
      const { rows } = await checkout.client.query<TextRow>(toQueryConfig(statement, values, this.prepared))
      checkout.release()
      return rows
    } catch (error) {
      const fault = readFault(error)
      if (fault?.fatal || checkout.broken) checkout.discard(error)
      else checkout.release()
      if (fault?.fatal && !statement.readOnly) {
        // It commits by itself, so its lost answer is a lost COMMIT.
        emit('dibs:commit.unknown', { schema: this.schema, error })
        throw new CommitOutcomeUnknownError('a statement', { cause: error })
      }
      throw translateError(error)
    }
  }
}
