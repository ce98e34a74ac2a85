import pg from 'pg'
import { Database } from '../src/postgres/database.js'
import { quoteIdentifier } from '../src/postgres/identifier.js'
import { migrations } from '../src/postgres/migrations/generated/migrations.js'
import { migrate } from '../src/postgres/migrations/migrate.js'
import { freshName, url, viaPgBouncer } from './database.js'

export interface TestDatabase extends Database {
  /** Removes the schema and, unless it was given, ends the pool. */
  drop(): Promise<void>
}

/** A migrated schema of its own, below the public face. */
export async function openDatabase({ pool: given }: { pool?: pg.Pool } = {}): Promise<TestDatabase> {
  const pool = given ?? new pg.Pool({ connectionString: url })
  pool.on('error', () => {})
  const database = new Database(pool, { schema: freshName(), prepared: !viaPgBouncer })
  await migrate(database, migrations)
  return Object.assign(database, {
    async drop() {
      await pool.query(`drop schema ${quoteIdentifier(database.schema)} cascade`)
      if (!given) await pool.end()
    },
  })
}
