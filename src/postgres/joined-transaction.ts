import type { ClientBase } from 'pg'
import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../options/name-given.js'
import type { Executor, QueryResult } from './executor.js'
import { translateError } from './fault.js'
import { forgetNames, toQueryConfig } from './pg-query.js'
import type { RenderedStatement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

/** Marks the results of the adapters and of `dibs.transaction`, even across two copies of this package. */
const JOINED: unique symbol = Symbol.for('dibs.transaction') as never

/** An open transaction that Dibs can send its own statements to. */
export interface JoinedTransaction extends Executor {
  readonly [JOINED]: true
  send(statement: RenderedStatement, values: readonly TextValue[]): Promise<TextRow[]>
  /** True if Dibs cannot listen to the errors of the client. The process would end if the server closed the idle connection. */
  readonly hasNoErrorListener?: boolean
  /** True if Dibs sends COMMIT, and refuses to while a joined call is open. Otherwise another library sends COMMIT. */
  readonly refusesOpenCalls?: true
  /** Refuses COMMIT with this reason, whatever the function of the transaction does. */
  markForRollback?(reason: unknown): void
  /** Registers work that a rollback to a savepoint undoes. `fn` then does it again in the outer transaction. */
  onSavepointRollback?(fn: (outer: JoinedTransaction) => Promise<void>): void
}

export const isJoinedTransaction = (value: unknown): value is JoinedTransaction =>
  typeof value === 'object' && value !== null && JOINED in value

/** A `pg` client inside a transaction. */
export class PgTransaction implements JoinedTransaction {
  readonly [JOINED] = true as const
  readonly #client: ClientBase
  readonly #prepared: boolean

  constructor(client: ClientBase, prepared: boolean) {
    this.#client = client
    this.#prepared = prepared
  }

  async query(text: string, values?: unknown[]): Promise<QueryResult> {
    try {
      return await this.#client.query(text, values)
    } catch (error) {
      throw translateError(error)
    }
  }

  async send(statement: RenderedStatement, values: readonly TextValue[]): Promise<TextRow[]> {
    try {
      const result = await this.#client.query<TextRow>(toQueryConfig(statement, values, this.#prepared))
      return result.rows
    } catch (error) {
      forgetNames(this.#client, error) // this transaction has failed; the next must not fail for the same reason
      throw translateError(error)
    }
  }
}

/** Refuses arguments that a library would ignore or crash on: a callback, or values that are not an array. */
export function checkQuery(text: unknown, values: unknown, callback: unknown): void {
  if (typeof text !== 'string')
    throw new InvalidInputError('text', `must be a string, not ${nameGiven(text)}`)
  if (typeof values === 'function' || callback !== undefined)
    throw new InvalidInputError('callback', 'is not supported by query; await the promise that it returns')
  if (values !== undefined && !Array.isArray(values))
    throw new InvalidInputError('values', `must be an array, not ${nameGiven(values)}`)
}

/** Makes a joined transaction of a function that sends statements in a transaction of another library. */
export function adaptTransaction(
  run: (text: string, values: unknown[]) => Promise<QueryResult>,
  { hasNoErrorListener = false } = {},
): JoinedTransaction {
  const query = async (text: string, values: unknown[] = [], callback?: never): Promise<QueryResult> => {
    checkQuery(text, values, callback)
    try {
      return await run(text, values)
    } catch (error) {
      throw translateError(error)
    }
  }
  return {
    [JOINED]: true,
    hasNoErrorListener,
    query,
    send: async ({ text }, values) => (await query(text, [...values])).rows as TextRow[],
  }
}
