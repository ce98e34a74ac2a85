import { NotInTransactionError } from '../../errors.js'
import { hasMethods, nameGiven } from '../../options/name-given.js'
import type { Executor, Tx } from '../executor.js'
import { adaptTransaction } from '../joined-transaction.js'
import { runWhileOpen } from '../run-while-open.js'

/** A `Knex.Transaction`. */
export interface KnexTransaction {
  isCompleted(): boolean
  readonly client: { acquireConnection(): Promise<unknown> }
}

const advice = 'Pass the `trx` of knex.transaction(async (trx) => …) or of await knex.transaction().'

/**
 * Joins an open transaction or savepoint of Knex with its `pg` driver.
 *
 * Statements go to the `pg` connection of the transaction, because `trx.raw` takes each `?` for a parameter, even the
 * jsonb operator. `postProcessResponse` and `wrapIdentifier` do not change these statements, and Knex emits no `query`
 * event for them.
 *
 * @example
 * await knex.transaction(async (trx) => {
 *   await trx('orders').insert({ id })
 *   await fromKnex(trx).query('select pg_notify($1, $2)', ['orders', id])
 * })
 */
export function fromKnex(trx: KnexTransaction): Tx {
  refuseOther(trx)
  refuseEnded(trx)
  return adaptTransaction(async (text, values) => {
    // Knex also returns the connection of an ended transaction, which another transaction may already use.
    refuseEnded(trx)
    // No release: the client of a transaction always returns its one connection.
    const connection = await trx.client.acquireConnection()
    if (!isPgConnection(connection)) {
      throw new NotInTransactionError(
        `a Knex transaction on ${nameGiven(connection)}`,
        'Use Knex with client "pg".',
      )
    }
    return runWhileOpen(
      'Knex',
      () => !trx.isCompleted(),
      () => connection.query(text, values),
      connection,
    )
  })
}

const isPgConnection = (value: unknown): value is Executor => hasMethods(value, 'query', 'escapeIdentifier')

function refuseOther(given: unknown): void {
  if (hasMethods(given, 'isCompleted', 'savepoint')) return
  const what = hasMethods(given, 'raw', 'transaction')
    ? 'a Knex instance that is no transaction'
    : nameGiven(given)
  throw new NotInTransactionError(what, advice)
}

function refuseEnded(trx: KnexTransaction): void {
  if (trx.isCompleted()) throw new NotInTransactionError('a Knex transaction that has ended', advice)
}
