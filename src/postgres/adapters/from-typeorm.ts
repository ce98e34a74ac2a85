import { ConnectionLostError, NotInTransactionError } from '../../errors.js'
import { hasMethods, nameGiven } from '../../options/name-given.js'
import type { Row, Tx } from '../executor.js'
import { adaptTransaction } from '../joined-transaction.js'
import { runWhileOpen } from '../run-while-open.js'

/** A `QueryRunner` of TypeORM 0.3 or later. */
export interface TypeORMQueryRunner {
  readonly isTransactionActive: boolean
  readonly isReleased: boolean
  query(
    text: string,
    values: unknown[],
    useStructuredResult: true,
  ): Promise<{ readonly records: unknown[]; readonly affected?: number | null }>
}

/** An `EntityManager` of TypeORM; inside a transaction it has a query runner. */
export interface TypeORMEntityManager {
  readonly queryRunner?: TypeORMQueryRunner
}

const advice =
  'Pass the manager of dataSource.transaction(async (manager) => …), or a query runner after startTransaction().'

/**
 * Joins an open transaction of TypeORM 0.3 or later: the manager of `dataSource.transaction`, or a query runner after
 * `startTransaction()`. Dibs cannot tell the transactions of one query runner apart: join again in each.
 *
 * @example
 * await dataSource.transaction(async (manager) => {
 *   await manager.insert(Order, { id })
 *   await fromTypeORM(manager).query('select pg_notify($1, $2)', ['orders', id])
 * })
 */
export function fromTypeORM(transaction: TypeORMQueryRunner | TypeORMEntityManager): Tx {
  const runner = findQueryRunner(transaction)
  const isOpen = () => runner.isTransactionActive
  if (!isOpen()) {
    throw new NotInTransactionError('a TypeORM query runner that has no open transaction', advice)
  }
  return adaptTransaction(async (text, values) => {
    const send = () => {
      // TypeORM releases a runner by itself when its connection is lost.
      if (runner.isReleased)
        throw new ConnectionLostError('The connection of this TypeORM transaction is lost.')
      // Structured, because the raw result is a pair for UPDATE and DELETE, and a list of rows for other statements.
      return runner.query(text, values, true)
    }
    const client: unknown = Reflect.get(runner, 'databaseConnection')
    const { records, affected } = await runWhileOpen('TypeORM', isOpen, send, client)
    return { rows: (records ?? []) as Row[], rowCount: affected ?? null }
  })
}

function findQueryRunner(given: unknown): TypeORMQueryRunner {
  if (isQueryRunner(given)) return given
  const runner: unknown =
    typeof given === 'object' && given !== null ? Reflect.get(given, 'queryRunner') : undefined
  if (isQueryRunner(runner)) return runner
  throw new NotInTransactionError(nameOther(given), advice)
}

function isQueryRunner(value: unknown): value is TypeORMQueryRunner {
  return hasMethods(value, 'query', 'startTransaction', 'release')
}

function nameOther(given: unknown): string {
  if (hasMethods(given, 'createQueryRunner', 'transaction')) return 'a TypeORM DataSource'
  if (hasMethods(given, 'getRepository', 'transaction'))
    return 'a TypeORM EntityManager outside of a transaction'
  return nameGiven(given)
}
