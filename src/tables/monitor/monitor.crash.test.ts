import assert from 'node:assert/strict'
import pg from 'pg'
import { afterAll, beforeAll, expect, it, vi } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { Dibs } from '../../dibs.js'
import { crashLoop, createTestSchema, type TestSchema } from '../../testing/index.js'
import type { Monitor } from './monitor.js'

vi.setConfig({ testTimeout: 120_000 })

const { url } = exploredSchema(
  `create table task (id int primary key, status text not null, updated_at timestamptz, attempts int not null, fence bigint);
   create table moved (id int)`,
)
const pool = new pg.Pool({ connectionString: url })
pool.on('error', () => {})
let schema: TestSchema
let requeue: Monitor
let withFunction: Monitor

beforeAll(async () => {
  schema = await createTestSchema(pool, 'crashed_monitor')
  const dibs = await Dibs.open({ pool, schema: schema.name, listen: false })
  const base = {
    ...{ table: 'task', stuck: 'PROCESSING', timeColumn: 'updated_at', olderThanMs: 60_000, batch: 2 },
    ...{ requeueTo: 'PENDING', failTo: 'FAILED', attemptsColumn: 'attempts', fenceColumn: 'fence' },
  } as const
  requeue = dibs.monitor('requeue', { ...base, action: 'requeue' })
  withFunction = dibs.monitor<{ id: number }>('withFunction', {
    ...base,
    action: async ({ id }, tx) => {
      await tx.query('insert into moved values ($1)', [id])
      return 'requeue'
    },
  })
  // The table is read once; what is crashed is what comes after.
  await requeue.run()
})
// No `dibs.close()`: it would wait for the calls of those that were killed, which never end.
afterAll(() => pool.end())

/** Three that are stuck, one of them for the last time, and one that is not. */
const setup = (db: { query(sql: string): unknown }) =>
  db.query(
    `insert into task values (1, 'PROCESSING', '2020-01-01', 0, 7), (2, 'PROCESSING', '2020-01-02', 2, 7), (3, 'PROCESSING', '2020-01-03', 1, 7),
       (4, 'PROCESSING', '2999-01-01', 0, 7)`,
  )
const ended = [
  { id: 1, status: 'PENDING', attempts: 1, raised: true },
  { id: 2, status: 'FAILED', attempts: 3, raised: true },
  { id: 3, status: 'PENDING', attempts: 2, raised: true },
  { id: 4, status: 'PROCESSING', attempts: 0, raised: false },
]
const read = 'select id, status, attempts, fence > 7 as raised from task order by id'
const allModes = ['crash', 'error', 'half-open', 'zombie']

it('each row that was stuck has one effect, at whatever statement a monitor dies: batches', async () => {
  const report = await crashLoop({
    pool,
    setup,
    run: () => requeue.run(),
    progress: async (db) => (await db.query("select from task where status = 'PROCESSING'")).rowCount === 1,
    invariant: async (db) => assert.deepEqual((await db.query(read)).rows, ended),
  })
  expect(report.modes).toEqual(allModes)
  // The look, and two batches.
  expect(report.statements).toBe(3)
})

it('each row that was stuck has one effect, and what a function wrote with it: functions', async () => {
  const report = await crashLoop({
    pool,
    setup: async (db) => {
      await setup(db)
      await db.query('delete from task where id in (1, 3)')
    },
    run: () => withFunction.run(),
    progress: async (db) => (await db.query("select from task where status = 'PROCESSING'")).rowCount === 1,
    invariant: async (db) => {
      assert.deepEqual((await db.query(read)).rows, [ended[1], ended[3]])
      assert.deepEqual((await db.query('select id from moved')).rows, [{ id: 2 }])
    },
  })
  expect(report.modes).toEqual(allModes)
  // The look; the pick, to which BEGIN belongs, what the function does, the write, COMMIT; and a pick that finds none, with its end.
  expect(report.statements).toBe(7)
})
