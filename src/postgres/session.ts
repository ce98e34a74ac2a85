import type { ClientBase, CustomTypesConfig, QueryConfig } from 'pg'
import { InvalidInputError } from '../errors.js'
import type { Executor, QueryResult } from './executor.js'
import { readFault, translateError } from './fault.js'
import { nameGiven } from './name-given.js'
import type { RenderedStatement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

/** Found on what the adapters and `dibs.transaction` return, also across two copies of this package. */
export const SESSION: unique symbol = Symbol.for('dibs.session') as never

/** An open transaction that Dibs can send its own statements to. */
export interface Session extends Executor {
  readonly [SESSION]: true
  send(statement: RenderedStatement, values: readonly TextValue[]): Promise<TextRow[]>
  /** Nobody listens on its client, nor can we: if the server ended its connection while nothing runs, that would end the process. */
  readonly isDeaf?: boolean
  /** COMMIT is ours, and is refused while a joined call is open. Where it is missing, another library sends COMMIT. */
  readonly refusesOpenCalls?: true
  /** Whatever its function does, this transaction is not to commit. */
  refuseCommit?(reason: unknown): void
  /** Something of this transaction that a savepoint would undo with its rollback, and that is then to be done again outside of it. */
  repeatOutside?(fn: (outer: Session) => Promise<void>): void
}

export const isSession = (value: unknown): value is Session =>
  typeof value === 'object' && value !== null && SESSION in value

/** Column values as the server wrote them, whatever parsers the user has set; text is text in binary too. */
export const untouched: CustomTypesConfig = {
  getTypeParser: () => (value: unknown) => (Buffer.isBuffer(value) ? value.toString() : value),
}

/**
 * After DISCARD ALL or DEALLOCATE ALL by whoever shares the connection, the server does not know the names any more that `pg`
 * remembers. Ours are forgotten here as well, so that each statement is parsed again.
 *
 * @returns whether that was it: then the statement has not run, and may be sent again
 */
export function forgetNames(client: ClientBase, error: unknown): boolean {
  const parsed: Record<string, string> | undefined = Reflect.get(client, 'connection')?.parsedStatements
  if (parsed === undefined || readFault(error)?.sqlState !== '26000') return false
  for (const name of Object.keys(parsed)) if (name.startsWith('dibs_')) delete parsed[name]
  return true
}

export function toQueryConfig(
  { name, text }: RenderedStatement,
  values: readonly TextValue[],
  prepared: boolean,
): QueryConfig {
  const sent = [...values]
  return prepared ? { name, text, values: sent, types: untouched } : { text, values: sent, types: untouched }
}

/** The same for a statement that is sent once in a while and needs no name. */
export async function queryText(
  client: ClientBase,
  text: string,
  values: readonly TextValue[] = [],
): Promise<TextRow[]> {
  return (await client.query<TextRow>({ text, values: [...values], types: untouched })).rows
}

/** A `pg` client inside a transaction. */
export class PgSession implements Session {
  readonly [SESSION] = true as const
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
      forgetNames(this.#client, error) // this transaction has failed; the next must not
      throw translateError(error)
    }
  }
}

/** Refuses what a library would ignore or crash on: a callback, values that are no array. */
export function checkQuery(text: unknown, values: unknown, callback: unknown): void {
  if (typeof text !== 'string')
    throw new InvalidInputError('text', `must be a string, not ${nameGiven(text)}`)
  if (typeof values === 'function' || callback !== undefined)
    throw new InvalidInputError('callback', 'is not supported by query; await the promise that it returns')
  if (values !== undefined && !Array.isArray(values))
    throw new InvalidInputError('values', `must be an array, not ${nameGiven(values)}`)
}

/** An open transaction of another library, reduced to one function. */
export function adaptSession(
  run: (text: string, values: unknown[]) => Promise<QueryResult>,
  { isDeaf = false } = {},
): Session {
  const query = async (text: string, values: unknown[] = [], callback?: never): Promise<QueryResult> => {
    checkQuery(text, values, callback)
    try {
      return await run(text, values)
    } catch (error) {
      throw translateError(error)
    }
  }
  return {
    [SESSION]: true,
    isDeaf,
    query,
    send: async ({ text }, values) => (await query(text, [...values])).rows as TextRow[],
  }
}
