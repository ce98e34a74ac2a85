import assert from 'node:assert/strict'
import pg from 'pg'
import { afterAll, beforeAll, expect, it, vi } from 'vitest'
// @ts-expect-error: plain JavaScript, since processes of their own run it too
import { ACCOUNTS, transfer } from '../../../examples/transfer/transfer.mjs'
import { exploredSchema } from '../../../test/explored-schema.js'
import { Dibs } from '../../dibs.js'
import { ConflictError, StateConflictError } from '../../errors.js'
import { retryOnConflict } from '../../postgres/retry-on-conflict.js'
import { crashLoop, createTestSchema, type TestSchema } from '../../testing/index.js'

vi.setConfig({ testTimeout: 120_000 })

const { url } = exploredSchema(
  `create table task (id int primary key, state text not null, lease_until timestamptz, fence bigint, by text);
   create table orders (id int primary key, status text not null, sku text not null);
   create table stock (sku text primary key, left_over int not null);
   create table payment (id int generated always as identity primary key, order_id int unique, by text not null);
   create table page (id int primary key, hits int not null, version int not null);
   ${ACCOUNTS}`,
)
const pool = new pg.Pool({ connectionString: url })
pool.on('error', () => {})
let schema: TestSchema
let dibs: Dibs
const LEASE_MS = 60_000

beforeAll(async () => {
  schema = await createTestSchema(pool, 'crashed_rows')
  dibs = await Dibs.open({ pool, schema: schema.name, listen: false })
  // Each table is read once; what is crashed is what comes after.
  for (const table of ['task', 'orders', 'stock', 'page', 'account'])
    await dibs.transaction((tx) => dibs.rows.claim(table, { tx }))
  await dibs.rows.insertOnce('payment', ['order_id'], { order_id: 0, by: 'nobody' })
  await pool.query('truncate payment')
})
// No `dibs.close()`: it would wait for the calls of those that were killed, which never end.
afterAll(() => pool.end())

const allModes = ['crash', 'error', 'half-open', 'zombie']

it("a killed claimer's rows come again, and whoever wakes up late finishes nothing", async () => {
  let late = 0
  const report = await crashLoop({
    pool,
    setup: async (db) => {
      await schema.clock.reset()
      await db.query("insert into task (id, state) values (1, 'ready')")
    },
    run: async (db, { number }) => {
      const [task] = await dibs.rows.claim<{ id: number; fence: string }>('task', {
        ...{ where: { state: 'ready' }, leaseColumn: 'lease_until', leaseMs: LEASE_MS, fenceColumn: 'fence' },
      })
      if (!task) return 'nothing to do'
      const { rowCount } = await db.query(
        "update task set state = 'done', by = $3 where id = $1 and fence = $2 and state = 'ready'",
        [task.id, task.fence, `instance ${number}`],
      )
      if (rowCount === 0) late++
      return rowCount === 1 ? 'done' : 'too late'
    },
    advance: () => schema.clock.advance(2 * LEASE_MS),
    progress: async (db) => (await db.query("select from task where state = 'done'")).rowCount === 1,
    invariant: async (db, { run, recoveries }) => {
      const { rows } = await db.query('select state, by from task')
      assert.equal(rows[0].state, 'done')
      const told = [run, ...recoveries].filter((one) => one?.status === 'fulfilled' && one.value === 'done')
      assert(told.length <= 1)
    },
  })
  expect(report.modes).toEqual(allModes)
  expect(report.statements).toBe(2)
  expect(late).toBeGreaterThan(0)
})

/** A payment, once for its order, with what belongs to it: all or nothing, whoever calls again. */
const pay = (by: string): Promise<string> =>
  dibs.transaction(async (tx) => {
    const { row, created } = await dibs.rows.insertOnce<{ by: string }>(
      'payment',
      ['order_id'],
      {
        order_id: 7,
        by,
      },
      { tx },
    )
    if (!created) return row.by
    const order = await dibs.rows.transition<{ sku: string }>(
      'orders',
      7,
      { from: 'new', to: 'paid' },
      { tx },
    )
    await dibs.rows.adjust('stock', order.sku, { left_over: -1 }, { tx })
    return by
  })

it('insertOnce, transition and adjust stand or fall with their transaction', async () => {
  const report = await crashLoop({
    pool,
    setup: async (db) => {
      await db.query("insert into orders values (7, 'new', 'apple'); insert into stock values ('apple', 3)")
    },
    run: (_, { number }) => pay(`instance ${number}`),
    invariant: async (db, { run, recoveries }) => {
      const { rows } = await db.query('select by from payment')
      assert.equal(rows.length, 1)
      assert.deepEqual((await db.query('select status from orders')).rows, [{ status: 'paid' }])
      assert.deepEqual((await db.query('select left_over from stock')).rows, [{ left_over: 2 }])
      for (const told of [run, ...recoveries])
        if (told?.status === 'fulfilled') assert.equal(told.value, rows[0].by)
    },
  })
  expect(report.modes).toEqual(allModes)
  expect(report.statements).toBe(4)
})

it('a transition alone is done once, also by whoever did not hear of it', async () => {
  const report = await crashLoop({
    pool,
    setup: (db) => db.query("insert into orders values (7, 'new', 'apple')"),
    run: () =>
      dibs.rows.transition('orders', 7, { from: 'new', to: 'paid' }).catch((error) => {
        // An earlier run of this program made the transition.
        if (error instanceof StateConflictError && error.current === 'paid') return 'it is paid'
        throw error
      }),
    invariant: async (db) =>
      assert.deepEqual((await db.query('select status from orders')).rows, [{ status: 'paid' }]),
  })
  expect(report.modes).toEqual(allModes)
})

it('rows.update under a lock of the row counts once, and whoever has read before is refused', async () => {
  let refused = 0
  const report = await crashLoop({
    pool,
    setup: (db) => db.query('insert into page values (1, 0, 1)'),
    run: async (db) => {
      const { rows } = await db.query('select version from page')
      const [{ version }] = rows
      // An earlier run of this program made the update.
      if (version > 1) return 'done before'
      return dibs
        .transaction(
          async (tx) => {
            const [page] = await dibs.rows.lock<{ hits: number }>('page', [1], { tx })
            await dibs.rows.update('page', { id: 1, version }, { hits: (page?.hits ?? 0) + 1 }, { tx })
          },
          { maxAttempts: 1 },
        )
        .catch((error) => {
          if (!(error instanceof ConflictError)) throw error
          refused++
        })
    },
    invariant: async (db) =>
      assert.deepEqual((await db.query('select hits, version from page')).rows, [{ hits: 1, version: 2 }]),
  })
  expect(report.modes).toEqual(allModes)
  // The read; the lock, to which BEGIN belongs, the write, COMMIT.
  expect(report.statements).toBe(4)
  expect(refused).toBeGreaterThan(0)
})

it('lastWriteWins alone is what it was to be, whoever dies and wakes up', async () => {
  const report = await crashLoop({
    pool,
    setup: (db) => db.query('insert into page values (1, 0, 1)'),
    run: () => dibs.rows.lastWriteWins('page', 1, { hits: 7 }, { versionColumn: 'version' }),
    invariant: async (db) => {
      const { rows } = await db.query('select hits, version from page')
      assert.equal(rows[0].hits, 7)
      assert(rows[0].version >= 2)
    },
  })
  expect(report.modes).toEqual(allModes)
})

it('retryOnConflict around a read and a write counts once for each call that was answered', async () => {
  const report = await crashLoop({
    pool,
    setup: (db) => db.query('insert into page values (1, 0, 1)'),
    run: (db) =>
      retryOnConflict(async () => {
        const { rows } = await db.query('select hits, version from page')
        const [{ hits, version }] = rows
        return dibs.rows.update('page', { id: 1, version }, { hits: hits + 1 })
      }),
    invariant: async (db, { run, recoveries }) => {
      const { rows } = await db.query('select hits, version from page')
      const told = [run, ...recoveries].filter((one) => one?.status === 'fulfilled').length
      const tried = 1 + recoveries.length
      assert(rows[0].hits >= told && rows[0].hits <= tried, `${rows[0].hits} of ${told} and ${tried}`)
      assert.equal(rows[0].version, rows[0].hits + 1)
    },
  })
  expect(report.modes).toEqual(allModes)
})

it('a transfer moves all or nothing: the sum stays, and an order that was heard of is not made again', async () => {
  const report = await crashLoop({
    pool,
    setup: (db) => db.query("insert into account values ('a', 10), ('b', 10)"),
    run: () =>
      dibs.transaction(async (tx) => {
        const { created } = await dibs.rows.insertOnce(
          'payment',
          ['order_id'],
          { order_id: 7, by: 'a' },
          { tx },
        )
        if (created) await transfer(dibs, { from: 'a', to: 'b', amount: 3 }, tx)
      }),
    invariant: async (db) =>
      assert.deepEqual((await db.query('select id, balance::int from account order by id')).rows, [
        { id: 'a', balance: 7 },
        { id: 'b', balance: 13 },
      ]),
  })
  expect(report.modes).toEqual(allModes)
  // The order, the locks, both sides, COMMIT.
  expect(report.statements).toBe(5)
})

it('a transfer alone, without an order that tells it from the last one, still keeps the sum', async () => {
  await crashLoop({
    pool,
    setup: (db) => db.query("insert into account values ('a', 10), ('b', 10)"),
    run: () => transfer(dibs, { from: 'a', to: 'b', amount: 3 }),
    invariant: async (db, { run, recoveries }) => {
      const { rows } = await db.query('select balance::int from account order by id')
      const [{ balance: a }, { balance: b }] = rows
      assert.equal(a + b, 20)
      assert.equal((10 - a) % 3, 0)
      const told = [run, ...recoveries].filter((one) => one?.status === 'fulfilled').length
      assert(10 - a >= 3 * told)
    },
  })
})
