import { NotInTransactionError } from '../../errors.js'
import type { Executor, Tx } from '../executor.js'
import { hasMethods, nameGiven } from '../name-given.js'
import { runWhileOpen } from '../run-while-open.js'
import { adaptSession } from '../session.js'

/** A `Knex.Transaction`. */
export interface KnexTransaction {
  isCompleted(): boolean
  readonly client: { acquireConnection(): Promise<unknown> }
}

const advice = 'Pass the `trx` of knex.transaction(async (trx) => …) or of await knex.transaction().'

/**
 * Joins an open transaction, or a savepoint, of Knex with its `pg` driver.
 *
 * Statements go to the transaction's own `pg` connection, since `trx.raw` reads every `?` as a parameter, also
 * where it is an operator of jsonb. So `postProcessResponse` and `wrapIdentifier` do not touch them, and the
 * `query` event of Knex does not show them.
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
  return adaptSession(async (text, values) => {
    // Knex hands out the connection of an ended transaction too, by then perhaps in use by another.
    refuseEnded(trx)
    // Nothing to release: the client of a transaction answers every time with the one connection it holds.
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
