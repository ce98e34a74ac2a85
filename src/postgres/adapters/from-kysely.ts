import { NotInTransactionError } from '../../errors.js'
import { hasMethods, nameGiven } from '../../options/name-given.js'
import type { Row, Tx } from '../executor.js'
import { adaptTransaction } from '../joined-transaction.js'
import { runWhileOpen } from '../run-while-open.js'

/** A query that is a string already, as `CompiledQuery.raw` of Kysely returns it. */
interface RawQuery {
  readonly sql: string
  readonly parameters: readonly unknown[]
  readonly query: {
    readonly kind: 'RawNode'
    readonly sqlFragments: readonly string[]
    readonly parameters: readonly never[]
  }
  readonly queryId: { readonly queryId: string }
}

interface QueryRunner {
  executeQuery(query: RawQuery): Promise<{ readonly rows: unknown[]; readonly numAffectedRows?: bigint }>
}

/** A `Transaction` or `ControlledTransaction` of Kysely 0.28 or later. */
export interface KyselyTransaction {
  readonly isTransaction: true
  readonly isCommitted?: boolean
  readonly isRolledBack?: boolean
  withoutPlugins(): QueryRunner
}

const advice =
  'Pass the `trx` of db.transaction().execute(async (trx) => …) or of db.startTransaction().execute().'

/**
 * Joins an open transaction of Kysely 0.28 or later, with any PostgreSQL dialect. Plugins, such as `CamelCasePlugin`, do not
 * change what Dibs sends and reads.
 *
 * @example
 * await db.transaction().execute(async (trx) => {
 *   await trx.insertInto('orders').values({ id }).execute()
 *   await fromKysely(trx).query('select pg_notify($1, $2)', ['orders', id])
 * })
 */
export function fromKysely(trx: KyselyTransaction): Tx {
  refuseOther(trx)
  if (!isOpen(trx)) throw new NotInTransactionError('a Kysely transaction that has ended', advice)
  const runner = trx.withoutPlugins()
  const run = async (text: string, values: unknown[]) => {
    const send = () => runner.executeQuery(toRawQuery(text, values)).catch(nameEnded)
    const { rows, numAffectedRows } = await runWhileOpen('Kysely', () => isOpen(trx), send)
    return { rows: rows as Row[], rowCount: Number(numAffectedRows ?? rows.length) }
  }
  // Kysely hides the client of its pool, and does not listen to its errors.
  return adaptTransaction(run, { hasNoErrorListener: true })
}

function toRawQuery(text: string, values: readonly unknown[]): RawQuery {
  return {
    sql: text,
    parameters: values,
    query: { kind: 'RawNode', sqlFragments: [text], parameters: [] },
    // Only plugins use the id, and there are none here.
    queryId: { queryId: 'dibs' },
  }
}

function refuseOther(given: unknown): void {
  const isKysely = hasMethods(given, 'withoutPlugins', 'executeQuery')
  if (isKysely && (given as { isTransaction?: unknown }).isTransaction === true) return
  const what = isKysely ? 'a Kysely instance that is no transaction' : nameGiven(given)
  throw new NotInTransactionError(what, advice)
}

/**
 * True if the transaction is open. A controlled transaction shows its state. The transaction of a callback does not,
 * but its executor throws after the end when a stream is requested. A stream does nothing until it is read.
 */
function isOpen(trx: KyselyTransaction): boolean {
  if (trx.isCommitted || trx.isRolledBack) return false
  const { getExecutor } = trx as { getExecutor?(): { stream?(query: RawQuery, chunkSize: number): unknown } }
  try {
    getExecutor?.call(trx).stream?.(toRawQuery('', []), 1)
    return true
  } catch {
    return false
  }
}

/** Kysely refuses a statement that waited behind COMMIT with a plain Error. */
function nameEnded(error: unknown): never {
  if (!(error instanceof Error && /^Transaction is already (committed|rolled back)/.test(error.message)))
    throw error
  throw new NotInTransactionError('a Kysely transaction that has ended', advice, { cause: error })
}
