import pg from 'pg'
import { afterAll, afterEach, beforeAll, expect } from 'vitest'
import type { Kv } from '../src/claims/kv/kv.js'
import type { KvClaim } from '../src/claims/kv/kv-types.js'
import { Dibs } from '../src/dibs.js'
import { createTestSchema, type TestSchema, untilBlocked } from '../src/testing/index.js'
import { throughPool, url, viaPgBouncer } from './database.js'

/** Set by `openKv`. */
export let pool: pg.Pool
export let schema: TestSchema
export let dibs: Dibs
export let kv: Kv

/** Opens an instance for the calling test file. Its table is empty again after each test. */
export function openKv(): void {
  beforeAll(async () => {
    pool = new pg.Pool({ connectionString: url })
    pool.on('error', () => {})
    schema = await createTestSchema(pool)
    dibs = await Dibs.open({ ...throughPool, pool, schema: schema.name })
    kv = dibs.kv
  })
  afterEach(async () => {
    await schema.clock.reset()
    await pool.query(`delete from ${schema.name}.kv`)
  })
  afterAll(async () => {
    await dibs.close()
    await schema.drop()
    await pool.end()
  })
}

/** A version that no key has had. */
export const OTHER = 7

/** Through PgBouncer a client does not know its backend. */
export async function blocked(client: pg.PoolClient): Promise<void> {
  if (!viaPgBouncer) return void (await untilBlocked(client))
  const waits = `select from pg_catalog.pg_stat_activity
    where wait_event_type = 'Lock' and state = 'active' and query like '%${schema.name}%'`
  await expect.poll(async () => (await pool.query(waits)).rowCount).toBe(1)
}

/** The version that a write has given to a key. */
export function versionOf(written: KvClaim<unknown> | { readonly version: number } | undefined): number {
  if (!written || !('version' in written)) throw new Error('the call did not write')
  return written.version
}
