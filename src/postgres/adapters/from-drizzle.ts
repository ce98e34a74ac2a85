import type { ClientBase } from 'pg'
import { NotInTransactionError } from '../../errors.js'
import { hasMethods, nameGiven } from '../../options/name-given.js'
import type { QueryResult, Row, Tx } from '../executor.js'
import { adaptTransaction } from '../joined-transaction.js'
import { transactionStatus } from '../pg-client-state.js'
import { runWhileOpen } from '../run-while-open.js'
import { fromPostgresJs, isPostgresJsTransaction } from './from-postgres-js.js'

/** A `PgTransaction` of Drizzle. */
export interface DrizzleTransaction {
  execute(query: { getSQL(): unknown } | string): PromiseLike<unknown>
  /** A `db` does not have this method. */
  rollback(): never
  readonly _: { readonly session: object }
}

const advice = 'Pass the `tx` of db.transaction(async (tx) => …).'

/**
 * Joins an open transaction or savepoint of Drizzle. Its driver must be `pg`, postgres.js, or one with the same form of
 * results. With a single `pg.Client`, Dibs cannot tell transactions apart: join again in each.
 *
 * @example
 * await db.transaction(async (tx) => {
 *   await tx.insert(orders).values({ id })
 *   await fromDrizzle(tx).query('select pg_notify($1, $2)', ['orders', id])
 * })
 */
export function fromDrizzle(tx: DrizzleTransaction): Tx {
  refuseOther(tx)
  const client: unknown = Reflect.get(tx._.session, 'client')
  // postgres.js applies its `transform` to the rows, and Drizzle would return the changed ones.
  if (isPostgresJsTransaction(client)) return fromPostgresJs(client)
  const isOpen = watchClient(client)
  if (!isOpen()) throw new NotInTransactionError('a Drizzle transaction that has ended', advice)
  const run = async (text: string, values: unknown[]) =>
    readResult(await runWhileOpen('Drizzle', isOpen, () => tx.execute(finished(text, values)), client))
  return Object.assign(adaptTransaction(run), { client })
}

/**
 * Makes an argument for `tx.execute` that keeps the text as it is. Drizzle's `SQL` numbers its parameters itself. Dibs
 * would have to parse the text: it may have `$2` before `$1`, a second `$1`, or `'$1'` in a literal.
 */
function finished(text: string, values: unknown[]) {
  return { getSQL: () => ({ toQuery: () => ({ sql: text, params: values }) }) }
}

/** Reads the result of a driver: `pg` returns an object, postgres.js a list of rows. */
function readResult(result: unknown): QueryResult {
  if (Array.isArray(result)) return { rows: result, rowCount: result.length }
  const { rows = [], rowCount = null } = result as { rows?: Row[]; rowCount?: number | null }
  return { rows, rowCount }
}

/**
 * Returns a check whether the transaction is still open. After the end, Drizzle keeps using the connection, which may
 * by then belong to another transaction. A `pg` client knows its status, and a pool sets a new `release` at each
 * checkout.
 */
function watchClient(client: unknown): () => boolean {
  if (typeof client !== 'object' || client === null) return () => true
  const release: unknown = Reflect.get(client, 'release')
  return () => {
    if (Reflect.get(client, 'release') !== release) return false
    return transactionStatus(client as ClientBase) !== 'I'
  }
}

function refuseOther(given: unknown): void {
  const isDrizzle = hasMethods(given, 'execute', 'transaction')
  if (isDrizzle && hasMethods(given, 'rollback')) return
  throw new NotInTransactionError(
    isDrizzle ? 'a Drizzle database that is no transaction' : nameGiven(given),
    advice,
  )
}
