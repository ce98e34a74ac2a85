import assert from 'node:assert/strict'
import { describe, it, vi } from 'vitest'
import { itInDepth } from '../../../test/depth.js'
import { exploredTables } from '../../../test/tables/explored-tables.js'
import { ConflictError } from '../../errors.js'
import type { Isolation } from '../../postgres/transaction-types.js'
import type { ExploreHandle } from '../../testing/explore/options.js'
import type { Outcome } from '../../testing/gate/actor.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 120_000 })

const fixture = exploredTables(
  'create table task (id int primary key, state text not null, lease_until timestamptz, fence bigint, holder text); create table done (id int, by text)',
  ['task'],
)
const { exploreAll } = fixture

type Task = { id: number; fence: string }
const options = {
  where: { state: 'ready' },
  leaseColumn: 'lease_until',
  fenceColumn: 'fence',
  holderColumn: 'holder',
} as const
const claim = (holder: string, limit = 1) =>
  fixture.dibs.rows.claim<Task>('task', { ...options, holder, limit })
const finish = (db: ExploreHandle, { id, fence }: Task, by: string) =>
  db.query(
    `with ended as (update task set state = 'done', lease_until = null where id = $1 and fence = $2 returning id)
     insert into done select id, $3 from ended`,
    [id, fence, by],
  )
const put =
  (rows: string) =>
  (db: ExploreHandle): Promise<unknown> =>
    db.query(`insert into task values ${rows}`)
const rowsOf = async (db: ExploreHandle, sql: string) => (await db.query(sql)).rows
const idsOf = (outcome: Outcome | undefined): number[] => {
  assert.equal(outcome?.status, 'fulfilled', String((outcome as { reason?: unknown })?.reason))
  return (outcome.value as Task[]).map(({ id }) => id)
}

describe('a lease', () => {
  it('of two, no row is taken twice, and none is left that both could have', () =>
    exploreAll({
      setup: put(
        "(1, 'ready', null, null, null), (2, 'ready', '2029-01-01', 7, 'gone'), (3, 'ready', '2031-01-01', 8, 'busy')",
      ),
      actors: { ann: () => claim('ann', 2), bob: () => claim('bob', 2) },
      invariant: async (db, { ann, bob }) => {
        const [ours, theirs] = [idsOf(ann), idsOf(bob)]
        assert.deepEqual([...ours, ...theirs].toSorted(), [1, 2])
        const rows = await rowsOf(db, 'select id, holder from task order by id')
        for (const id of ours) assert.equal(rows[id - 1]?.holder, 'ann')
        for (const id of theirs) assert.equal(rows[id - 1]?.holder, 'bob')
        assert.equal(rows[2]?.holder, 'busy')
      },
    }))

  itInDepth('of three with one row, one has it', () =>
    exploreAll({
      setup: put("(1, 'ready', '2029-01-01', 7, 'gone')"),
      actors: { ann: () => claim('ann'), bob: () => claim('bob'), eve: () => claim('eve') },
      bound: { preemptions: 2 },
      invariant: async (_, outcomes) => {
        assert.deepEqual(Object.values(outcomes).flatMap(idsOf), [1])
      },
    }),
  )

  it('against one who renews it: never taken from who has it', () =>
    exploreAll({
      setup: put("(1, 'ready', '2029-01-01', 7, 'old')"),
      actors: {
        ann: () => claim('ann'),
        old: async (db) =>
          (
            await db.query(
              "update task set lease_until = '2031-01-01' where id = 1 and fence = 7 returning id",
            )
          ).rows,
      },
      invariant: async (db, { ann, old }) => {
        assert.equal(idsOf(ann).length + idsOf(old).length, 1)
        const [row] = await rowsOf(db, 'select holder from task')
        assert.equal(row?.holder, idsOf(ann).length === 1 ? 'ann' : 'old')
      },
    }))

  it('against one who finishes late with its fence: done once', () =>
    exploreAll({
      setup: put("(1, 'ready', '2029-01-01', 7, 'old')"),
      actors: {
        ann: async (db) => {
          const [task] = await claim('ann')
          if (task) await finish(db, task, 'ann')
        },
        bob: async (db) => {
          const [task] = await claim('bob')
          if (task) await finish(db, task, 'bob')
        },
        old: (db) => finish(db, { id: 1, fence: '7' }, 'old'),
      },
      bound: { preemptions: 1 },
      invariant: async (db) => {
        assert.equal((await rowsOf(db, 'select from done')).length, 1)
        assert.deepEqual(await rowsOf(db, 'select state from task'), [{ state: 'done' }])
      },
    }))
})

describe('without a lease', () => {
  it('of two, no row is taken twice', () =>
    exploreAll({
      setup: put("(1, 'ready'), (2, 'ready')"),
      actors: Object.fromEntries(
        ['ann', 'bob'].map((holder) => [
          holder,
          () =>
            fixture.dibs.rows.claim('task', {
              where: { state: 'ready' },
              set: { state: 'taken', holder },
              limit: 2,
            }),
        ]),
      ),
      invariant: async (_, { ann, bob }) =>
        assert.deepEqual([...idsOf(ann), ...idsOf(bob)].toSorted(), [1, 2]),
    }))
})

it.each(['read committed', 'repeatable read'] as const)(
  'in transactions at %s, no row is taken twice',
  (isolation: Isolation) => {
    const inTransaction = (holder: string) => () =>
      fixture.dibs.transaction(
        async (tx) => {
          const [task] = await fixture.dibs.rows.claim<Task>('task', { ...options, holder, tx })
          if (task) await tx.query('insert into done values ($1, $2)', [task.id, holder])
        },
        { isolation, maxAttempts: 1 },
      )
    return exploreAll({
      setup: put("(1, 'ready')"),
      actors: { ann: inTransaction('ann'), bob: inTransaction('bob') },
      mayFail: (error) => error instanceof ConflictError,
      invariant: async (db) => {
        const done = await rowsOf(db, 'select by from done')
        assert.deepEqual(await rowsOf(db, 'select holder as by from task'), done)
        assert.equal(done.length, 1)
      },
    })
  },
)
