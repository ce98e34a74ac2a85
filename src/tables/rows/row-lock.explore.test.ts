import assert from 'node:assert/strict'
import { expect, it, vi } from 'vitest'
// @ts-expect-error: plain JavaScript, since processes of their own run it too
import { transfer } from '../../../examples/transfer/transfer.mjs'
import { itInDepth } from '../../../test/depth.js'
import { exploredTables } from '../../../test/tables/explored-tables.js'
import { ConflictError } from '../../errors.js'
import { onEvent } from '../../postgres/events.js'
import type { Isolation } from '../../postgres/transaction-types.js'
import type { ExploreHandle } from '../../testing/explore/options.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 120_000 })

const fixture = exploredTables('create table account (id text primary key, balance bigint not null)', [
  'account',
])
const { exploreAll } = fixture
const setup = (db: ExploreHandle) => db.query("insert into account values ('a', 10), ('b', 10), ('c', 10)")

/** Locks both, reads, and writes what it has computed from that: lost if another does the same meanwhile. */
const addOne = (ids: readonly string[], isolation: Isolation) => () =>
  fixture.dibs.transaction(
    async (tx) => {
      const rows = await fixture.dibs.rows.lock<{ id: string; balance: string }>('account', ids, { tx })
      for (const { id, balance } of rows)
        await tx.query('update account set balance = $2 where id = $1', [id, Number(balance) + 1])
    },
    { isolation, maxAttempts: 1 },
  )
const balances = async (db: ExploreHandle) =>
  (await db.query('select balance::int from account order by id')).rows.map(({ balance }) => balance)

it('two who lock the same rows in opposite orders wait for each other, never in a circle', () =>
  exploreAll({
    setup,
    actors: { ann: addOne(['a', 'b'], 'read committed'), bob: addOne(['b', 'a'], 'read committed') },
    invariant: async (db) => assert.deepEqual(await balances(db), [12, 12, 10]),
  }))

itInDepth('three who lock overlapping rows', () =>
  exploreAll({
    setup,
    actors: {
      ann: addOne(['b', 'a'], 'read committed'),
      bob: addOne(['c', 'b'], 'read committed'),
      eve: addOne(['a', 'c'], 'read committed'),
    },
    bound: { preemptions: 1 },
    invariant: async (db) => assert.deepEqual(await balances(db), [12, 12, 12]),
  }),
)

it('at repeatable read one of two is a conflict, and never a deadlock', () =>
  exploreAll({
    setup,
    actors: { ann: addOne(['a', 'b'], 'repeatable read'), bob: addOne(['b', 'a'], 'repeatable read') },
    mayFail: (error) => error instanceof ConflictError && error.sqlState === '40001',
    invariant: async (db, outcomes) => {
      const done = Object.values(outcomes).filter(({ status }) => status === 'fulfilled').length
      assert.deepEqual(await balances(db), [10 + done, 10 + done, 10])
      assert(done >= 1)
    },
  }))

it('transfers both ways keep the sum, and nobody is below zero', async () => {
  let repeated = 0
  const stop = onEvent('dibs:transaction.retried', () => void repeated++)
  const move = (from: string, to: string, amount: number) => () =>
    transfer(fixture.dibs, { from, to, amount })
  await exploreAll({
    setup,
    actors: { there: move('a', 'b', 8), back: move('b', 'a', 15) },
    bound: { preemptions: 2 },
    mayFail: (error) => (error as { rule?: string }).rule === 'insufficient-funds',
    invariant: async (db, outcomes) => {
      const moved = (name: string) => (outcomes[name]?.status === 'fulfilled' ? 1 : 0)
      const [there, back] = [8 * moved('there'), 15 * moved('back')]
      assert.deepEqual(await balances(db), [10 - there + back, 10 + there - back, 10])
      assert(Math.min(...(await balances(db))) >= 0)
    },
  }).finally(stop)
  // A deadlock would be repeated, and be gone.
  expect(repeated).toBe(0)
})
