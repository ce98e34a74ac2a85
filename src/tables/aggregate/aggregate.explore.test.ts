import assert from 'node:assert/strict'
import { beforeAll, describe, it, vi } from 'vitest'
import { inShort, isDeep, itInDepth } from '../../../test/depth.js'
import { exploredTables } from '../../../test/tables/explored-tables.js'
import { BusyError, ConflictError, StateConflictError } from '../../errors.js'
import type { Isolation, Transaction } from '../../postgres/transaction-types.js'
import type { ExploreHandle } from '../../testing/explore/options.js'
import type { Aggregate } from './aggregate.js'
import type { AggregateReport } from './verify-aggregate.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 120_000 })

const fixture = exploredTables(
  `create table parent (id int primary key, total int not null default 1, done int not null default 0);
   create table child (id int primary key, parent_id int not null references parent, status text not null default 'new')`,
  ['parent', 'child'],
)
const { exploreAll, value } = fixture
let totals: Aggregate

beforeAll(async () => {
  totals = fixture.dibs.aggregate('totals', {
    parent: 'parent',
    child: 'child',
    foreignKey: 'parent_id',
    columns: { total: 'count(*)', done: "count(*) filter (where status = 'done')" },
  })
  // `verify()` fills the caches of the process, so that the explorer does not see the statements that do so.
  await totals.verify()
})

/** Two parents; the first has one child, and says so. */
const setup = async (db: ExploreHandle): Promise<void> => {
  await db.query('insert into parent values (1, 1), (2, 0)')
  await db.query('insert into child values (1, 1)')
}

const marks = async (db: ExploreHandle): Promise<string[]> =>
  (await db.query(`select id from ${fixture.schema.name}.aggregate_mark`)).rows.map(({ id }) => `${id}`)

/** The parents that are not what their children say. */
const wrong = async (db: ExploreHandle): Promise<unknown[]> =>
  (
    await db.query(
      `select p.id, p.total, p.done, c.total as counted, c.done as counted_done from parent p cross join lateral (
         select count(*)::int as total, (count(*) filter (where status = 'done'))::int as done from child where parent_id = p.id) c
       where (p.total, p.done) is distinct from (c.total, c.done) order by p.id`,
    )
  ).rows

const allRight = async (db: ExploreHandle): Promise<void> => assert.deepEqual(await wrong(db), [])
/** Asserts that each wrong parent is marked. */
const wrongIsMarked = async (db: ExploreHandle): Promise<void> => {
  const known = await marks(db)
  for (const row of (await wrong(db)) as { id: number }[])
    assert(known.includes(`["${row.id}"]`), JSON.stringify(row))
}

const write = {
  insert: 'insert into child values (2, 1)',
  another: 'insert into child values (3, 1)',
  update: "update child set status = 'done' where id = 1",
  delete: 'delete from child where id = 1',
}
type Write = keyof typeof write

/** A write of a child, and the count of its parent, in one transaction. */
const joined =
  (what: Write, isolation: Isolation = 'read committed') =>
  () =>
    fixture.dibs.transaction(
      async (tx) => {
        await tx.query(write[what])
        await totals.recompute(1, { tx })
      },
      { isolation, maxAttempts: 1 },
    )
const isConflict = (error: unknown): boolean => error instanceof ConflictError

describe('recompute', () => {
  const pairs: [Write, Write][] = [
    ['insert', 'another'],
    ['insert', 'update'],
    ['insert', 'delete'],
  ]
  it.each(pairs)('has counted everything after an %s and an %s', (one, other) =>
    exploreAll({
      setup,
      actors: { ann: joined(one), bob: joined(other) },
      invariant: allRight,
      bound: inShort(3),
    }),
  )

  it.each(['insert', 'update', 'delete'] as const)('sees what an %s has committed, alone', (what) =>
    exploreAll({
      setup,
      actors: {
        ann: async (db) => {
          await db.query(write[what])
          await totals.recompute(1)
        },
        bob: async () => value({ status: 'fulfilled', value: await totals.recompute(1) }),
      },
      invariant: allRight,
      bound: inShort(3),
    }),
  )

  const levels = isDeep ? (['repeatable read', 'serializable'] as const) : (['repeatable read'] as const)
  it.each(levels)('refuses at %s what would be counted from the past', (isolation) =>
    exploreAll({
      setup,
      actors: { ann: joined('insert', isolation), bob: joined('another') },
      mayFail: isConflict,
      invariant: allRight,
      bound: inShort(3),
    }),
  )

  it('of several parents meets no other in a circle', () =>
    exploreAll({
      setup,
      actors: { ann: () => totals.recompute([1, 2]), bob: () => totals.recompute([2, 1]) },
      invariant: allRight,
      bound: inShort(3),
    }))

  itInDepth('has counted everything after three writes', () =>
    exploreAll({
      setup,
      actors: { ann: joined('insert'), bob: joined('another'), eve: joined('delete') },
      invariant: allRight,
      bound: { preemptions: 1 },
    }),
  )
})

describe('markDirty', () => {
  const marked = (what: Write) => () =>
    fixture.dibs.transaction(
      async (tx: Transaction) => {
        await tx.query(write[what])
        await totals.markDirty(1, { tx })
      },
      { maxAttempts: 1 },
    )

  it('is never lost to a refresh that does not see the write', () =>
    exploreAll({
      setup: async (db) => {
        await setup(db)
        await db.query(
          `insert into ${fixture.schema.name}.aggregate_mark (aggregate, parent, id) values ('totals', 'parent'::regclass, '["1"]')`,
        )
      },
      actors: { ann: marked('insert'), bob: () => totals.refresh() },
      invariant: wrongIsMarked,
      bound: inShort(3),
    }))

  it('is counted once by two who refresh, or left to the next', () =>
    exploreAll({
      setup: async (db) => {
        await setup(db)
        await db.query(write.insert)
        await db.query(
          `insert into ${fixture.schema.name}.aggregate_mark (aggregate, parent, id) values ('totals', 'parent'::regclass, '["1"]'), ('totals', 'parent'::regclass, '["1"]')`,
        )
      },
      actors: { ann: () => totals.refresh(), bob: () => totals.refresh() },
      invariant: async (db, { ann, bob }) => {
        await allRight(db)
        assert.deepEqual(await marks(db), [])
        assert.equal(Number(value(ann).marks) + Number(value(bob).marks), 2)
      },
      bound: inShort(2),
    }))

  itInDepth('is kept or counted with two writers and a refresh', () =>
    exploreAll({
      setup,
      actors: { ann: marked('insert'), bob: marked('delete'), eve: () => totals.refresh() },
      invariant: wrongIsMarked,
      bound: { preemptions: 1 },
    }),
  )

  it('does not hurt a count that is made at once', () =>
    exploreAll({
      setup,
      actors: {
        ann: marked('insert'),
        bob: joined('another'),
      },
      invariant: wrongIsMarked,
      bound: inShort(3),
    }))
})

describe('verify', () => {
  const report = (outcome: Parameters<typeof value>[0]) => value(outcome) as unknown as AggregateReport

  it.each([false, true])('takes no write for a drift (repair: %s)', (repair) =>
    exploreAll({
      setup,
      actors: { ann: joined('insert'), bob: () => totals.verify({ repair }) },
      invariant: async (db, { bob }) => {
        await allRight(db)
        assert.equal(report(bob).driftedCount, 0)
      },
      bound: inShort(2),
    }),
  )

  it('repairs a drift, and takes nothing from who writes meanwhile', () =>
    exploreAll({
      setup: async (db) => {
        await setup(db)
        await db.query('update parent set total = 7 where id = 1')
      },
      actors: { ann: joined('insert'), bob: () => totals.verify({ repair: true }) },
      invariant: async (db, { bob }) => {
        await allRight(db)
        assert(report(bob).driftedCount <= 1)
      },
      bound: inShort(2),
    }))
})

describe('a transition that counts', () => {
  const finish = (id: number) => () =>
    totals.transition(id, { from: 'new', to: 'done' }, { add: { done: 1 } })

  it('adds once for a child that two want to finish', () =>
    exploreAll({
      setup,
      actors: { ann: finish(1), bob: finish(1) },
      mayFail: (error) => error instanceof StateConflictError,
      invariant: allRight,
    }))

  it('adds for each of two children of one parent', () =>
    exploreAll({
      setup: async (db) => {
        await setup(db)
        await db.query(write.insert)
        await db.query('update parent set total = 2 where id = 1')
      },
      actors: { ann: finish(1), bob: finish(2) },
      invariant: allRight,
    }))

  /** A child that goes to another parent, which is counted with the one that it leaves; `another` may be made in the same breath. */
  const move = (another: 2 | 3) => () =>
    fixture.dibs.transaction(
      async (tx) => {
        if (another === 3) await tx.query('insert into parent values (3, 0)')
        await tx.query(`update child set parent_id = ${another} where id = 1`)
        await totals.recompute([1, another], { tx })
      },
      { maxAttempts: 1 },
    )

  it.each([
    [2, 'another parent'],
    [3, 'a parent that was not there before'],
  ] as const)('adds to parent %i for a child that is moved to %s meanwhile', (another, _) =>
    exploreAll({
      setup,
      actors: { ann: finish(1), bob: move(another) },
      invariant: async (db, { ann, bob }) => {
        value(ann)
        value(bob)
        await allRight(db)
      },
      bound: inShort(3),
    }),
  )

  /** The other order: first the parents, then the child. */
  it('meets one who locks the parents first, and one of both is refused', () =>
    exploreAll({
      setup,
      actors: {
        ann: finish(1),
        bob: () =>
          fixture.dibs.transaction(
            async (tx) => {
              await fixture.dibs.rows.lock('parent', [1, 2], { tx })
              await tx.query('update child set parent_id = 2 where id = 1')
              await totals.recompute([1, 2], { tx })
            },
            { maxAttempts: 1 },
          ),
      },
      mayFail: (error) => isConflict(error) || error instanceof BusyError,
      invariant: allRight,
      bound: inShort(3),
    }))
})
