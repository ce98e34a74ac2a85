import pg from 'pg'
import { afterAll, afterEach, beforeAll } from 'vitest'
import { Dibs } from '../src/dibs.js'
import { createTestSchema, type TestSchema } from '../src/testing/index.js'
import { throughPool, url } from './database.js'

/** Set by `openRates`. */
export let pool: pg.Pool
export let schema: TestSchema
export let dibs: Dibs

/** The time at the beginning of a test, where windows of a second, a minute and an hour begin. */
export const START_US = BigInt(Date.parse('2030-01-01T00:00:00Z')) * 1_000n
let nowUs = START_US

/** Moves the clock, also for a function that has begun. */
export async function setClock(us: bigint, db: Pick<pg.Pool, 'query'> = pool): Promise<void> {
  nowUs = us
  await db.query(`update ${schema.name}.test_time set us = $1`, [String(us)])
}
export const advanceUs = (us: number): Promise<void> => setClock(nowUs + BigInt(us))
export const advanceMs = (ms: number): Promise<void> => advanceUs(ms * 1_000)

/** The stored row of one subject. */
export async function rowsOf(subject: string): Promise<{ rule: string; level: string }[]> {
  const { rows } = await pool.query(
    `select rule, at_us, level, previous, xmin::text as version from ${schema.name}.rate where subject = $1 order by rule`,
    [subject],
  )
  return rows
}

/** Opens an instance for the calling test file, with a clock that stands still. Its table is empty again after each test. */
export function openRates(): void {
  beforeAll(async () => {
    pool = new pg.Pool({ connectionString: url })
    pool.on('error', () => {})
    nowUs = START_US
    schema = await createTestSchema(pool)
    dibs = await Dibs.open({ ...throughPool, pool, schema: schema.name })
    await pool.query(`
    create table ${schema.name}.test_time (us bigint not null);
    insert into ${schema.name}.test_time values (${START_US});
    create or replace function ${schema.name}.clock() returns timestamptz language plpgsql volatile as $$
      begin return (select timestamptz 'epoch' + us * interval '1 microsecond' from ${schema.name}.test_time); end $$`)
  })
  afterEach(async () => {
    await schema.waits.reset()
    await setClock(START_US)
    await pool.query(`delete from ${schema.name}.rate`)
  })
  afterAll(async () => {
    await dibs.close()
    await schema.drop()
    await pool.end()
  })
}
