import pg from 'pg'
import { afterAll, afterEach, beforeAll, expect } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import { createTestSchema, type TestSchema, untilBlocked } from '../../src/testing/index.js'
import { freshName, throughPool, url, viaPgBouncer } from '../database.js'

/** Tables of a caller's own, in a schema of theirs that is not on the search path. */
export interface OpenTables {
  readonly dibs: Dibs
  readonly pool: pg.Pool
  /** That of Dibs. */
  readonly schema: TestSchema
  /** That of the tables. */
  readonly shop: string
  /** A table with its schema. */
  at(table: string): string
  rows(table: string, order?: string): Promise<pg.QueryResultRow[]>
  /** A transaction on a client of its own, rolled back at the end unless it has ended before. */
  withClient<T>(fn: (client: pg.PoolClient) => Promise<T>): Promise<T>
  /** Resolves when this client waits for a lock. */
  blocked(client: pg.PoolClient): Promise<void>
}

/** `tables` names its schema as `{shop}`; `refill` runs after each test, after all tables were emptied. */
export function openTables(tables: string, refill = ''): OpenTables {
  const shop = freshName('shop')
  const pool = new pg.Pool({ connectionString: url, application_name: 'shop' })
  pool.on('error', () => {})
  const fixture: { dibs?: Dibs; schema?: TestSchema } = {}
  const run = (sql: string) => pool.query(sql.replaceAll('{shop}', shop))

  beforeAll(async () => {
    const schema = await createTestSchema(pool)
    const dibs = await Dibs.open({ ...throughPool, pool, schema: schema.name })
    Object.assign(fixture, { schema, dibs })
    await run(`create schema {shop}; ${tables}; ${refill}`)
  })
  afterEach(async () => {
    await fixture.schema?.clock.reset()
    const { rows } = await pool.query(
      "select format('%I.%I', schemaname, tablename) as name from pg_tables where schemaname = $1",
      [shop],
    )
    if (rows.length === 0) return
    const empty = () => run(`truncate ${rows.map(({ name }) => name).join(', ')} restart identity; ${refill}`)
    // A call that a test has not awaited may have locked one table and wait for another.
    await empty().catch((error) => (error.code === '40P01' ? empty() : Promise.reject(error)))
  })
  afterAll(async () => {
    await run('drop schema {shop} cascade')
    await fixture.dibs?.close()
    await fixture.schema?.drop()
    await pool.end()
  })

  return Object.assign(fixture as { dibs: Dibs; schema: TestSchema }, {
    pool,
    shop,
    at: (table: string) => `${shop}.${table}`,
    rows: async (table: string, order = 'id') =>
      (await pool.query(`select * from ${shop}.${table} order by ${order}`)).rows,
    async withClient<T>(fn: (client: pg.PoolClient) => Promise<T>): Promise<T> {
      const client = await pool.connect()
      try {
        await client.query('begin')
        return await fn(client)
      } finally {
        await client.query('rollback')
        client.release()
      }
    },
    async blocked(client: pg.PoolClient): Promise<void> {
      if (!viaPgBouncer) return void (await untilBlocked(client))
      const waits = `select from pg_catalog.pg_stat_activity
        where wait_event_type = 'Lock' and state = 'active' and query like '%${fixture.schema?.name}%'`
      await expect.poll(async () => (await pool.query(waits)).rowCount).toBe(1)
    },
  })
}
