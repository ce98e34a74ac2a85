import { NotInTransactionError } from '../../errors.js'
import { hasMethods, nameGiven } from '../../options/name-given.js'
import type { QueryResult, Row, Tx } from '../executor.js'
import { adaptTransaction, type JoinedTransaction } from '../joined-transaction.js'
import { endedMeanwhile, runWhileOpen } from '../run-while-open.js'
import { restoreColumnNames } from './postgres-js-columns.js'
import { watchConnection } from './postgres-js-connection.js'
import type { PostgresJsAnswer, PostgresJsRows, PostgresJsTransaction } from './postgres-js-transaction.js'

export const isPostgresJsTransaction = (value: unknown): value is PostgresJsTransaction =>
  typeof value === 'function' && hasMethods(value, 'unsafe', 'savepoint')

/**
 * Joins an open transaction, or a savepoint, of postgres.js. Columns keep the names that PostgreSQL gives them, whatever
 * `transform` does.
 *
 * postgres.js rolls a transaction back if any of its statements failed, even if the error was caught. Put statements that may
 * fail into `sql.savepoint`. If a connection is lost inside a transaction, version 3.4 ends the process with an uncaught
 * TypeError, because `sql.begin` writes ROLLBACK to a closed socket.
 *
 * @example
 * await sql.begin(async (sql) => {
 *   await sql`insert into orders (id) values (${id})`
 *   await fromPostgresJs(sql).query('select pg_notify($1, $2)', ['orders', id])
 * })
 */
export function fromPostgresJs(sql: PostgresJsTransaction): Tx {
  if (!isPostgresJsTransaction(sql)) {
    const what = hasMethods(sql, 'unsafe', 'begin')
      ? 'an `sql` of postgres.js that is no transaction'
      : nameGiven(sql)
    throw new NotInTransactionError(what, 'Pass the `sql` of sql.begin(async (sql) => …).')
  }
  const watched = watchConnection(sql)
  const untilEnd = async (query: PostgresJsRows) => cancelAtEnd(await watched, query)
  const nameColumns = restoreColumnNames(sql, untilEnd)

  const run = async (text: string, query: () => PostgresJsRows): Promise<QueryResult> => {
    const answer = await runWhileOpen('postgres.js', await watched, () => untilEnd(query()))
    const names = await nameColumns(
      text,
      Array.from(answer.columns ?? [], ({ name }) => name),
    ).catch((error) => {
      throw error instanceof NotInTransactionError ? endedMeanwhile('postgres.js', error) : error
    })
    return { rows: Array.from(answer, (values) => toRow(names, values)), rowCount: answer.count }
  }
  // If the server closes an idle connection, version 3.4 throws an error that no code can catch.
  const session = adaptTransaction((text, values) => run(text, () => sql.unsafe(text, values).values()), {
    hasNoErrorListener: true,
  })
  // Raw: without the user's parsers and transforms. Prepared, if the user's options allow it: postgres.js waits for a
  // description of other statements with parameters, which costs one more round trip.
  const { send } = adaptTransaction(async (text, values) => {
    const { rows, rowCount } = await run(text, () => sql.unsafe(text, values, { prepare: true }).raw())
    return { rows: rows.map(decode), rowCount }
  })
  const joined: JoinedTransaction = { ...session, send }
  return joined
}

const ADVICE = 'Await all its work before its function returns.'

/** How often a statement without an answer checks whether its transaction has ended. */
const CHECK_MS = 200

/**
 * Cancels a statement whose transaction has ended. After COMMIT, a statement may stay in the queue of postgres.js,
 * which sends it much later on any connection, or never. Dibs therefore does not wait for the answer.
 */
function cancelAtEnd(isOpen: () => boolean, query: PostgresJsRows): Promise<PostgresJsAnswer> {
  return new Promise((resolve, reject) => {
    const timer = setInterval(() => {
      if (!hasEnded(isOpen)) return
      clearInterval(timer)
      reject(new NotInTransactionError('a postgres.js transaction that has ended', ADVICE))
      void Promise.resolve(query.cancel?.()).catch(() => {})
    }, CHECK_MS)
    query.then(
      (answer) => {
        clearInterval(timer)
        resolve(answer)
      },
      (error) => {
        clearInterval(timer)
        reject(error)
      },
    )
  })
}

function hasEnded(isOpen: () => boolean): boolean {
  try {
    return !isOpen()
  } catch {
    return true // the connection is lost, and postgres.js rejects the statement
  }
}

function toRow(names: readonly string[], values: ArrayLike<unknown>): Row {
  return Object.fromEntries(names.map((name, index) => [name, values[index]]))
}

function decode(row: Row): Row {
  const text = (value: unknown) => (value instanceof Uint8Array ? Buffer.from(value).toString('utf8') : value)
  return Object.fromEntries(Object.entries(row).map(([name, value]) => [name, text(value)]))
}
