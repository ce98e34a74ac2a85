import assert from 'node:assert/strict'
import type pg from 'pg'
import { describe, expect, it } from 'vitest'
import { crashedDatabase } from '../../test/crashed-database.js'
import { itInDepth } from '../../test/depth.js'
import { LockManager } from '../locks/lock-manager.js'
import { Database } from '../postgres/database.js'
import { Wakeups } from '../postgres/wakeups.js'
import { crashLoop } from '../testing/crash/crash-loop.js'
import type { CrashLoopOptions } from '../testing/crash/options.js'
import type { SingleFlight } from './flight-spec.js'
import { SingleFlightManager } from './single-flight-manager.js'

const crashed = crashedDatabase(
  'create table source (n integer not null); create table loaded (n integer not null)',
)
const { pool } = crashed

const LEASE_MS = 60_000
const options = { ttlMs: 3_600_000_000, leaseMs: LEASE_MS, refreshEarly: 0, waitMs: 0 }

/** Everything of a process: memory does not survive it. */
async function asProcess<T>(db: pg.Pool, fn: (fly: SingleFlight) => Promise<T>): Promise<T> {
  const own = new Database(db, { schema: crashed.schema.name, prepared: true })
  const wakeups = new Wakeups(own, { listen: false })
  const manager = new LockManager(own, wakeups)
  const flights = new SingleFlightManager(manager.context)
  try {
    return await fn(flights.singleFlight)
  } finally {
    flights.stopWaiting()
    manager.close()
    await wakeups.close()
    await own.close()
  }
}

const crash = async (given: CrashLoopOptions) => {
  const report = await crashLoop({
    pool,
    setup: async (db) => {
      await crashed.schema.clock.reset()
      await db.query('insert into source values (1)')
    },
    advance: () => crashed.schema.clock.advance(20 * LEASE_MS),
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
const flightRows = async (db: pg.Pool) => (await db.query(`select * from ${crashed.schema.name}.flight`)).rows
const isFree = async (db: pg.Pool): Promise<void> => {
  const { rows } = await db.query(
    `select from ${crashed.schema.name}.lock where expires_at > ${crashed.schema.name}.clock()`,
  )
  assert.deepEqual(rows, [])
}

describe('whoever loads dies, sleeps or loses contact anywhere', () => {
  const cases: [string, boolean][] = [['it dies', false]]
  if (process.env.SOAK_SECONDS) cases.push(['it dies, and whoever comes after it', true])
  it.each(cases)('and the value is there in the end, and the lead is free: %s', async (_, twice) => {
    const report = await crash({
      duringRecovery: twice,
      run: (db) => asProcess(db, (fly) => fly('k', options, load(db))),
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
        await crashed.schema.clock.reset()
        await db.query('insert into source values (1)')
        await asProcess(db, (fly) => fly('k', options, load(db)))
      },
      run: (db) =>
        asProcess(db, async (fly) => {
          await db.query('update source set n = 2')
          await fly.forget('k')
          return await fly('k', options, load(db))
        }),
      // A zombie that forgets the key late causes one more load, and no harm.
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
