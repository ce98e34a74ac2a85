import assert from 'node:assert/strict'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { directUrl, freshName, withPool } from '../../test/database.js'
import { itInDepth } from '../../test/depth.js'
import { Dibs } from '../dibs.js'
import { Database } from '../postgres/database.js'
import { Wakeups } from '../postgres/wakeups.js'
import { crashLoop } from '../testing/crash/crash-loop.js'
import type { CrashLoopOptions } from '../testing/crash/options.js'
import { createTestSchema, type TestSchema } from '../testing/test-schema.js'
import type { SingleFlight } from './flight-spec.js'
import { LockDesk } from './lock-desk.js'
import { Flights } from './single-flight.js'

vi.setConfig({ testTimeout: process.env.SOAK_SECONDS ? 3_600_000 : 60_000 })
const database = freshName('crashed')
const target = new URL(directUrl)
target.pathname = `/${database}`
const pool = new pg.Pool({ connectionString: target.href })
let schema: TestSchema

beforeAll(async () => {
  pool.on('error', () => {})
  await withPool((admin) => admin.query(`create database ${database}`), { connectionString: directUrl })
  schema = await createTestSchema(pool)
  const dibs = await Dibs.open({ pool, schema: schema.name, listen: false })
  await dibs.close()
  await pool.query('create table source (n integer not null); create table loaded (n integer not null)')
})
afterAll(async () => {
  await pool.end()
  await withPool((admin) => admin.query(`drop database ${database} with (force)`), {
    connectionString: directUrl,
  })
})

const LEASE_MS = 60_000
const options = { ttlMs: 3_600_000_000, leaseMs: LEASE_MS, refreshEarly: 0, waitMs: 0 }

/** Everything of a process: memory does not survive it. */
async function asProcess<T>(db: pg.Pool, fn: (fly: SingleFlight) => Promise<T>): Promise<T> {
  const own = new Database(db, { schema: schema.name, prepared: true })
  const wakeups = new Wakeups(own, { listen: false })
  const desk = new LockDesk(own, wakeups)
  const flights = new Flights(desk.parts)
  try {
    return await fn(flights.singleFlight)
  } finally {
    flights.stopWaiting()
    desk.close()
    await wakeups.close()
    await own.close()
  }
}

const crash = async (given: CrashLoopOptions) => {
  const report = await crashLoop({
    pool,
    setup: async (db) => {
      await schema.clock.reset()
      await db.query('insert into source values (1)')
    },
    advance: () => schema.clock.advance(20 * LEASE_MS),
    bound: { recoveries: 6 },
    ...given,
  })
  if (process.env.SHOW_SCHEDULES) console.log(`${report.points.length} points`)
  expect(report.verdict).toBe('passed')
  expect(report.modes).toEqual(['crash', 'error', 'half-open', 'zombie'])
  return report
}

const load = (db: pg.Pool) => async (): Promise<number> =>
  Number((await db.query('select n from source')).rows[0].n)
const flightRows = async (db: pg.Pool) => (await db.query(`select * from ${schema.name}.flight`)).rows
const isFree = async (db: pg.Pool): Promise<void> => {
  const { rows } = await db.query(`select from ${schema.name}.lock where expires_at > ${schema.name}.clock()`)
  assert.deepEqual(rows, [])
}

describe('whoever loads dies, sleeps or loses contact anywhere', () => {
  const cases: [string, boolean][] = [['it dies', false]]
  if (process.env.SOAK_SECONDS) cases.push(['it dies, and whoever comes after it', true])
  it.each(cases)('and the value is there in the end, and the lead is free: %s', async (_, twice) => {
    const report = await crash({
      duringRecovery: twice,
      run: (db) => asProcess(db, (fly) => fly('k', load(db), options)),
      invariant: async (db, { run, recoveries }) => {
        const rows = await flightRows(db)
        assert.deepEqual(
          rows.map(({ value }) => value),
          [1],
        )
        // A load that failed was one before.
        assert(Number(rows[0].fence) > Number(rows[0].failed_fence))
        await isFree(db)
        for (const told of [run, ...recoveries]) if (told?.status === 'fulfilled') assert.equal(told.value, 1)
      },
    })
    expect(report.points.length).toBeGreaterThan(5)
  })
})

itInDepth(
  'what is written, and then forgotten, is what the next reader has, wherever the writer dies',
  async () => {
    await crash({
      setup: async (db) => {
        await schema.clock.reset()
        await db.query('insert into source values (1)')
        await asProcess(db, (fly) => fly('k', load(db), options))
      },
      run: (db) =>
        asProcess(db, async (fly) => {
          await db.query('update source set n = 2')
          await fly.forget('k')
          return await fly('k', load(db), options)
        }),
      // Whoever forgets a key late makes others load once more, and does no harm.
      mayWriteLate: ({ table, row }) => table.endsWith('.flight') || row.expires_at === '-infinity',
      invariant: async (db, { run, recoveries }) => {
        const [row] = await flightRows(db)
        assert.equal(row?.value, 2)
        await isFree(db)
        for (const told of [run, ...recoveries]) if (told?.status === 'fulfilled') assert.equal(told.value, 2)
      },
    })
  },
)
