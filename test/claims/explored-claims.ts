import pg from 'pg'
import { afterAll, beforeAll } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import { createTestSchema, type TestSchema } from '../../src/testing/test-schema.js'
import { directUrl, freshName, withPool } from '../database.js'

export interface ExploredClaims {
  readonly dibs: Dibs
  readonly pool: pg.Pool
  readonly schema: TestSchema
}

/** The time at the start of a schedule. Each read of the clock advances it by a millisecond. */
export const NOW = '2026-01-01T00:00:00Z'

/** Makes the clock begin anew, and puts a claim there. For `setup`. */
export const putClaim =
  (fixture: ExploredClaims, columns: Readonly<Record<string, string | number | null>> = {}) =>
  async (db: pg.Pool): Promise<void> => {
    await db.query("select setval('public.tick', 1)")
    if (Object.keys(columns).length === 0) return
    const row = { scope: 's', key: 'k', id: 'i', holder: 'gone', fence: 100, created_at: EARLIER, ...columns }
    const names = Object.keys(row).join(', ')
    const places = Object.keys(row).map((_, n) => `$${n + 1}`)
    await db.query(
      `insert into ${fixture.schema.name}.claim (${names}) values (${places})`,
      Object.values(row),
    )
  }

export const EARLIER = '2025-12-31T00:00:00Z'
export const LATER = '2026-01-02T00:00:00Z'

/**
 * A Dibs on a database of its own, since advisory locks, and with them yield points, belong to a database; with tables
 * `done (key text, by text)` for what callers write, and `other (n int)`.
 */
export function exploredClaims(): ExploredClaims {
  const database = freshName('explored')
  const target = new URL(directUrl)
  target.pathname = `/${database}`
  const fixture: { dibs?: Dibs; pool?: pg.Pool; schema?: TestSchema } = {}
  beforeAll(async () => {
    await withPool((admin) => admin.query(`create database ${database}`), { connectionString: directUrl })
    const pool = new pg.Pool({ connectionString: target.href })
    pool.on('error', () => {})
    const schema = await createTestSchema(pool)
    const dibs = await Dibs.open({
      pool,
      schema: schema.name,
      listen: false,
      maintain: false,
      prepared: false,
    })
    await schema.waits.never()
    await pool.query('create table done (key text not null, by text not null); create sequence tick')
    // Fences come from the clock, and are part of the statements: it must be the same in every run of a schedule, and go on.
    await pool.query(`
      create or replace function ${schema.name}.clock() returns timestamptz language sql volatile
      as $$ select '${NOW}'::timestamptz + nextval('public.tick') * interval '1 millisecond' $$`)
    Object.assign(fixture, { pool, schema, dibs })
  })
  afterAll(async () => {
    await fixture.dibs?.close()
    await fixture.pool?.end()
    await withPool((admin) => admin.query(`drop database ${database} with (force)`), {
      connectionString: directUrl,
    })
  })
  return fixture as ExploredClaims
}
