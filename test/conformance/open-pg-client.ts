import type pg from 'pg'
import { url } from '../database.js'
import type { PgVersion } from '../pg-versions.js'
import type { Library, OpenTransaction } from './harness.js'

/** Transactions of a client of `pg`, for `describeConformance`. */
export async function openPgClient(pg: PgVersion['pg'], schema: string): Promise<Library> {
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  pool.on('connect', (client) => client.on('error', () => {}))
  return {
    async transaction(fn, isolation = undefined) {
      const client = await pool.connect()
      await client.query(`begin isolation level ${isolation ?? 'read committed'}`)
      try {
        await fn(open(client, schema))
        await client.query('commit')
      } catch (error) {
        await client.query('rollback').catch(() => {})
        throw error
      } finally {
        client.release()
      }
    },
    close: () => pool.end(),
  }
}

function open(client: pg.PoolClient, schema: string): OpenTransaction {
  return {
    tx: client,
    insert: (id, label) => client.query(`insert into ${schema}.items values ($1, $2)`, [id, label]),
    async savepoint(fn) {
      await client.query('savepoint s')
      try {
        await fn(client)
        await client.query('release savepoint s')
      } catch (error) {
        await client.query('rollback to savepoint s')
        throw error
      }
    },
  }
}
