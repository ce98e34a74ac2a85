import { NotInTransactionError } from '../../errors.js'
import type { QueryResult, Row, Tx } from '../executor.js'
import { hasMethods, nameGiven } from '../name-given.js'
import { endedMeanwhile, runWhileOpen } from '../run-while-open.js'
import { adaptSession, type Session } from '../session.js'
import { restoreColumnNames } from './postgres-js-columns.js'
import { watchConnection } from './postgres-js-connection.js'
import type { PostgresJsAnswer, PostgresJsRows, PostgresJsTransaction } from './postgres-js-transaction.js'

export const isPostgresJsTransaction = (value: unknown): value is PostgresJsTransaction =>
  typeof value === 'function' && hasMethods(value, 'unsafe', 'savepoint')

/**
 * Joins an open transaction, or a savepoint, of postgres.js. Columns keep the names that PostgreSQL gives them,
 * whatever `transform` says.
 *
 * postgres.js rolls a transaction back when any of its statements failed, even if the error was caught: put what
 * may fail inside `sql.savepoint`. And 3.4 throws an uncaught TypeError, which ends the process, when a connection
 * breaks inside a transaction: `sql.begin` then writes ROLLBACK to a socket that is gone.
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
  // When the server ends its connection while nothing runs, 3.4 throws what nobody can catch.
  const session = adaptSession((text, values) => run(text, () => sql.unsafe(text, values).values()), {
    isDeaf: true,
  })
  // Raw, past the user's parsers and transforms of values. Prepared, if the user's options allow it: postgres.js
  // waits for a description of every other statement that has parameters, a round trip each.
  const { send } = adaptSession(async (text, values) => {
    const { rows, rowCount } = await run(text, () => sql.unsafe(text, values, { prepare: true }).raw())
    return { rows: rows.map(decode), rowCount }
  })
  const joined: Session = { ...session, send }
  return joined
}

const ADVICE = 'Await all its work before its function returns.'

/** How often a statement without an answer looks whether its transaction has ended. */
const LOOK_MS = 200

/**
 * A statement that comes behind a COMMIT under way may stay in the queue of postgres.js, which sends it much later, on any
 * connection, or never. So it is canceled once its transaction has ended, and its answer is not waited for.
 */
function cancelAtEnd(isOpen: () => boolean, query: PostgresJsRows): Promise<PostgresJsAnswer> {
  return new Promise((resolve, reject) => {
    const timer = setInterval(() => {
      if (!hasEnded(isOpen)) return
      clearInterval(timer)
      reject(new NotInTransactionError('a postgres.js transaction that has ended', ADVICE))
      void Promise.resolve(query.cancel?.()).catch(() => {})
    }, LOOK_MS)
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
