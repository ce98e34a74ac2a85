import type { ClientBase } from 'pg'
import { NotInTransactionError } from '../../errors.js'
import type { QueryResult, Row, Tx } from '../executor.js'
import { hasMethods, nameGiven } from '../name-given.js'
import { transactionStatus } from '../pg-client-state.js'
import { runWhileOpen } from '../run-while-open.js'
import { adaptSession } from '../session.js'
import { fromPostgresJs, isPostgresJsTransaction } from './from-postgres-js.js'

/** A `PgTransaction` of Drizzle. */
export interface DrizzleTransaction {
  execute(query: { getSQL(): unknown } | string): PromiseLike<unknown>
  /** What a `db` does not have. */
  rollback(): never
  readonly _: { readonly session: object }
}

const advice = 'Pass the `tx` of db.transaction(async (tx) => …).'

/**
 * Joins an open transaction, or a savepoint, of Drizzle over `pg`, postgres.js and the drivers that answer like
 * one of these. Over a single `pg.Client` one transaction looks like the next: join anew in each.
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
  // Drizzle would hand over postgres.js' rows as its `transform` made them.
  if (isPostgresJsTransaction(client)) return fromPostgresJs(client)
  const isOpen = watchClient(client)
  if (!isOpen()) throw new NotInTransactionError('a Drizzle transaction that has ended', advice)
  const run = async (text: string, values: unknown[]) =>
    readResult(await runWhileOpen('Drizzle', isOpen, () => tx.execute(finished(text, values)), client))
  return Object.assign(adaptSession(run), { client })
}

/**
 * Text and parameters for `tx.execute`, which asks what it is given for its `SQL` and that for the query. An `SQL`
 * of Drizzle numbers its parameters itself, so `$2` before `$1`, `$1` twice or `'$1'` in a literal would have to
 * be parsed out of the text first; this one answers with the text as it is.
 */
function finished(text: string, values: unknown[]) {
  return { getSQL: () => ({ toQuery: () => ({ sql: text, params: values }) }) }
}

/** `pg` and its kin answer an object, postgres.js a list of rows. */
function readResult(result: unknown): QueryResult {
  if (Array.isArray(result)) return { rows: result, rowCount: result.length }
  const { rows = [], rowCount = null } = result as { rows?: Row[]; rowCount?: number | null }
  return { rows, rowCount }
}

/**
 * Drizzle goes on using the connection of an ended transaction, by then perhaps in use by another. A `pg` client
 * knows whether it is in a transaction, and a pool gives it a new `release` each time it hands it out.
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
