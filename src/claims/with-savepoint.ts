import type { Database } from '../postgres/database.js'
import type { Tx } from '../postgres/executor.js'
import { joinTransaction } from '../postgres/join.js'

let count = 0

/**
 * Runs a part of a caller's transaction in a savepoint. If the part fails, it leaves nothing behind, even if the caller goes
 * on. Each savepoint has a unique name, so that nested parts do not end each other.
 */
export async function withSavepoint<T>(database: Database, tx: Tx, fn: () => Promise<T>): Promise<T> {
  const session = await joinTransaction(tx, database)
  const name = `dibs_part_${++count}`
  await session.query(`savepoint ${name}`)
  // Release the savepoint in both cases: hundreds of nested savepoints would slow down every later statement.
  const release = `release savepoint ${name}`
  try {
    const value = await fn()
    // RELEASE fails if the function ignored the error of a statement.
    await session.query(release)
    return value
  } catch (error) {
    // If the rollback fails too, the transaction is over, and nothing is left in any case.
    await session
      .query(`rollback to savepoint ${name}`)
      .then(() => session.query(release))
      .catch(() => {})
    throw error
  }
}
