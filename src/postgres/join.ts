import type { ClientBase } from 'pg'
import { NotInTransactionError } from '../errors.js'
import { hasMethods, nameGiven } from '../options/name-given.js'
import type { QueryResult, Tx } from './executor.js'
import { isJoinedTransaction, type JoinedTransaction, PgTransaction } from './joined-transaction.js'
import { transactionNumber, transactionStatus } from './pg-client-state.js'
import { runWhileOpen } from './run-while-open.js'
import type { RenderedStatement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

/** Returns the caller's `tx` as a transaction that Dibs can send statements to. Refuses one that is not open. */
export async function joinTransaction(
  tx: Tx,
  { prepared }: { prepared: boolean },
): Promise<JoinedTransaction> {
  if (isJoinedTransaction(tx)) return tx
  // guard: transaction.pool-as-tx
  if (!isPgClient(tx)) throw new NotInTransactionError(nameForeign(tx), adviseForeign(tx))
  if (!(await isInTransaction(tx))) {
    throw new NotInTransactionError('a pg client that has no open transaction', 'Send BEGIN on it first.')
  }
  return new ForeignPgTransaction(tx, prepared)
}

/** A `pg` client whose transaction another party ends. A statement outside of the transaction is noticed. */
class ForeignPgTransaction extends PgTransaction {
  readonly #client: ClientBase
  readonly #number: number

  constructor(client: ClientBase, prepared: boolean) {
    super(client, prepared)
    this.#client = client
    this.#number = transactionNumber(client)
  }

  override query(text: string, values?: unknown[]): Promise<QueryResult> {
    return runWhileOpen('pg', this.#isOpen, () => super.query(text, values), this.#client)
  }

  override send(statement: RenderedStatement, values: readonly TextValue[]): Promise<TextRow[]> {
    return runWhileOpen('pg', this.#isOpen, () => super.send(statement, values), this.#client)
  }

  readonly #isOpen = (): boolean =>
    transactionStatus(this.#client) !== 'I' && transactionNumber(this.#client) === this.#number
}

function isPgClient(value: unknown): value is ClientBase {
  return hasMethods(value, 'query', 'escapeIdentifier', 'escapeLiteral')
}

/** If the status is not known yet, sends a statement that fails outside of a transaction. */
async function isInTransaction(client: ClientBase): Promise<boolean> {
  const status = transactionStatus(client)
  if (status !== undefined) return status === 'T' || status === 'E' // guard: transaction.client-outside
  try {
    await client.query('savepoint dibs_probe; release savepoint dibs_probe')
    return true
  } catch (error) {
    if ((error as { code?: unknown }).code === '25P01') return false
    throw error
  }
}

function nameForeign(value: unknown): string {
  return isPool(value) ? 'a pg Pool, which runs each query on any connection' : nameGiven(value)
}

function adviseForeign(value: unknown): string {
  return isPool(value)
    ? 'Take a client with pool.connect(), send BEGIN, and pass that client; or leave `tx` out to run alone.'
    : 'Wrap the transaction of your library: fromKysely, fromDrizzle, fromPrisma, fromKnex, fromTypeORM or fromPostgresJs.'
}

const isPool = (value: unknown): boolean =>
  hasMethods(value, 'query', 'connect', 'end') && typeof Reflect.get(Object(value), 'totalCount') === 'number'
