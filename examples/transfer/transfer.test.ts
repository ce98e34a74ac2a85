import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import { directUrl, freshName, withPool } from '../../test/database.js'
// @ts-expect-error: plain JavaScript, since processes of their own run it too
import { ACCOUNTS, transfer } from './transfer.mjs'

const name = freshName('transfer')
const target = new URL(directUrl)
target.pathname = `/${name}`
let pool: pg.Pool
let dibs: Dibs

beforeAll(async () => {
  await withPool((admin) => admin.query(`create database ${name}`), { connectionString: directUrl })
  pool = new pg.Pool({ connectionString: target.href })
  // A connection that is on its way out may not be gone when its database is dropped, and says so.
  pool.on('error', () => {})
  dibs = await Dibs.open({ pool, listen: false })
  await pool.query(ACCOUNTS)
})
beforeEach(() =>
  pool.query("truncate account; insert into account select 'a' || n, 100 from generate_series(0, 3) n"),
)
afterAll(async () => {
  await dibs.close()
  await pool.end()
  await withPool((admin) => admin.query(`drop database ${name} with (force)`), {
    connectionString: directUrl,
  })
})

const balances = async () =>
  (await pool.query('select balance::int from account order by id')).rows.map(({ balance }) => balance)

it('moves money, or says why not and moves nothing', async () => {
  await transfer(dibs, { from: 'a0', to: 'a1', amount: 30 })
  await dibs.transaction((tx) => transfer(dibs, { from: 'a1', to: 'a2', amount: 130n }, tx))
  expect(await balances()).toEqual([70, 0, 230, 100])
  const refused = (order: object) =>
    transfer(dibs, { from: 'a0', to: 'a1', amount: 1, ...order }).catch((error: unknown) => error)
  expect(await refused({ amount: 71 })).toMatchObject({
    rule: 'insufficient-funds',
    code: 'DIBS_BUSINESS_RULE',
  })
  expect(await refused({ from: 'nobody' })).toMatchObject({ code: 'DIBS_NOT_FOUND', id: 'nobody' })
  expect(await refused({ to: 'nobody' })).toMatchObject({ code: 'DIBS_NOT_FOUND', id: 'nobody' })
  expect(await refused({ to: 'a0' })).toMatchObject({ rule: 'same-account' })
  for (const amount of [0, -1, 0.5, Number.NaN, '5'])
    expect(await refused({ amount: amount as never })).toMatchObject({ rule: 'invalid-amount' })
  expect(await balances()).toEqual([70, 0, 230, 100])
})

it('of four processes in all directions: the sum stays, nobody is below zero, no deadlock', async () => {
  const run = async (seed: number) => {
    const { stdout } = await promisify(execFile)(
      process.execPath,
      [join(import.meta.dirname, 'storm.mjs'), '200', `${seed}`],
      { env: { ...process.env, DATABASE_URL: target.href } },
    )
    return JSON.parse(stdout)
  }
  const before = await deadlocks()
  const outcomes = await Promise.all([1, 2, 3, 4].map(run))
  for (const { moved, refused, other } of outcomes) {
    expect(other).toEqual([])
    expect(moved + refused).toBe(200)
    expect(moved).toBeGreaterThan(0)
  }
  const left = await balances()
  expect(left.reduce((sum, balance) => sum + balance, 0)).toBe(400)
  expect(Math.min(...left)).toBeGreaterThanOrEqual(0)
  expect(await deadlocks()).toBe(before)
})

/** Those of this database that the server had to end. */
async function deadlocks(): Promise<number> {
  const { rows } = await pool.query(
    'select deadlocks::int from pg_stat_database where datname = current_database()',
  )
  return rows[0].deadlocks
}
