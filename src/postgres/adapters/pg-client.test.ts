import type pg from 'pg'
import { describeConformance } from '../../../test/conformance/describe-conformance.js'
import type { Library, OpenTransaction } from '../../../test/conformance/harness.js'
import { url } from '../../../test/database.js'
import { type PgVersion, pgVersions } from '../../../test/pg-versions.js'

for (const { version, pg } of pgVersions)
  describeConformance(`a client of pg ${version} after BEGIN`, { open: (schema) => openLibrary(pg, schema) })

async function openLibrary(pg: PgVersion['pg'], schema: string): Promise<Library> {
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
