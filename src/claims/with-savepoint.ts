import type { Database } from '../postgres/database.js'
import type { Tx } from '../postgres/executor.js'
import { joinTransaction } from '../postgres/join.js'

let count = 0

/**
 * Runs a part of a caller's transaction so that nothing is left of it if it fails, also if the caller goes on. Its name is its own, so that
 * parts within parts do not end each other.
 */
export async function withSavepoint<T>(database: Database, tx: Tx, fn: () => Promise<T>): Promise<T> {
  const session = await joinTransaction(tx, database)
  const name = `dibs_part_${++count}`
  await session.query(`savepoint ${name}`)
  // Released either way: within each other, hundreds of them would slow down every later statement.
  const release = `release savepoint ${name}`
  try {
    const value = await fn()
    // Fails if a statement has failed that nobody told of.
    await session.query(release)
    return value
  } catch (error) {
    // If that fails too, the transaction is at its end, and nothing is left in any case.
    await session
      .query(`rollback to savepoint ${name}`)
      .then(() => session.query(release))
      .catch(() => {})
    throw error
  }
}
