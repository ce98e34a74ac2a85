import type { Pool, PoolClient } from 'pg'

/** As most code has it: BEGIN and COMMIT by hand, ROLLBACK after an error. */
export async function inTransaction(
  db: Pool,
  fn: (client: PoolClient) => Promise<unknown>,
  begin = 'begin',
): Promise<void> {
  const client = await db.connect()
  try {
    await client.query(begin)
    await fn(client)
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}
