import type { Pool, PoolClient } from 'pg'

// #region inTransaction
/** As most code has it: BEGIN and COMMIT by hand, ROLLBACK after an error. */
export async function inTransaction<T>(
  db: Pool,
  fn: (tx: PoolClient) => Promise<T>,
  begin = 'begin',
): Promise<T> {
  const tx = await db.connect()
  try {
    await tx.query(begin)
    const result = await fn(tx)
    await tx.query('commit')
    return result
  } catch (error) {
    await tx.query('rollback')
    throw error
  } finally {
    tx.release()
  }
}
// #endregion
