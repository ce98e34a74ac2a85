import assert from 'node:assert/strict'
import { describe, it, vi } from 'vitest'
import { isDeep, itInDepth } from '../../../test/depth.js'
import { exploredTables } from '../../../test/tables/explored-tables.js'
import { ConflictError, InsufficientError, StateConflictError } from '../../errors.js'
import { retryOnConflict } from '../../postgres/retry-on-conflict.js'
import type { Isolation, Transaction } from '../../postgres/transaction-types.js'
import type { ExploreHandle } from '../../testing/explore/options.js'
import type { Outcome } from '../../testing/gate/actor.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 120_000 })

const fixture = exploredTables(
  `create table item (id int primary key, code text unique, status text not null default 'new', version int not null default 1, amount int not null default 5, by text);
   create table done (by text)`,
  ['item'],
)
const { exploreAll, value, reason } = fixture

const one = {
  setup: (db: { query(sql: string): unknown }) => db.query("insert into item (id, code) values (1, 'x')"),
}
const itemOf = async (db: { query(sql: string): Promise<{ rows: Record<string, unknown>[] }> }) =>
  (await db.query('select * from item')).rows[0]

/** In a transaction that has looked before, and writes what it has done. */
const joined = (isolation: Isolation, fn: (tx: Transaction) => Promise<unknown>, by: string) => () =>
  fixture.dibs.transaction(
    async (tx) => {
      await tx.query('select count(*) from item')
      const result = await fn(tx)
      await tx.query('insert into done values ($1)', [by])
      return result
    },
    { isolation, maxAttempts: 1 },
  )

/** In short, not every one for every piece. */
const two = ['read committed', 'repeatable read'] as const

const isConflict = (error: unknown): boolean => error instanceof ConflictError

describe('rows.update', () => {
  const write = (by: string, tx?: Transaction) =>
    fixture.dibs.rows.update('item', { id: 1, version: 1 }, { by }, { tx })

  async function oneWins(db: ExploreHandle, outcomes: Readonly<Record<string, Outcome>>): Promise<void> {
    const winners = Object.keys(outcomes).filter((name) => outcomes[name]?.status === 'fulfilled')
    assert.equal(winners.length, 1)
    const item = await itemOf(db)
    assert.deepEqual([item?.version, item?.by], [2, winners[0]])
    for (const outcome of Object.values(outcomes)) {
      const error = reason(outcome)
      if (error instanceof ConflictError && error.sqlState === undefined)
        assert.deepEqual([error.expected, error.current], [1, 2])
    }
  }

  itInDepth('of three who have read one version, one writes, and the others know the next', () =>
    exploreAll({
      ...one,
      actors: { ann: () => write('ann'), bob: () => write('bob'), eve: () => write('eve') },
      bound: { preemptions: 1 },
      mayFail: isConflict,
      invariant: oneWins,
    }),
  )

  it.each(isDeep ? [...two, 'serializable' as const] : two)(
    'of two in transactions at %s, one writes',
    (isolation) =>
      exploreAll({
        ...one,
        actors: {
          ann: joined(isolation, (tx) => write('ann', tx), 'ann'),
          bob: joined(isolation, (tx) => write('bob', tx), 'bob'),
        },
        mayFail: isConflict,
        invariant: async (db, outcomes) => {
          // At the higher levels both may be refused by PostgreSQL; never may both write.
          const winners = Object.values(outcomes).filter(({ status }) => status === 'fulfilled').length
          assert((await itemOf(db))?.version === 1 + winners && winners <= 1)
          if (isolation === 'read committed') await oneWins(db, outcomes)
        },
      }),
  )

  it('knows of a version that came between the write and the look', () =>
    exploreAll({
      ...one,
      actors: {
        // Ann passes the version that bob's write is about to create.
        ann: () => fixture.dibs.rows.update('item', { id: 1, version: 2 }, { by: 'ann' }),
        bob: () => write('bob'),
      },
      mayFail: isConflict,
      invariant: async (db, { ann, bob }) => {
        value(bob)
        const error = reason(ann)
        if (error instanceof ConflictError) assert.deepEqual([error.expected, error.current], [2, 1])
        assert.equal((await itemOf(db))?.version, error ? 2 : 3)
      },
    }))
})

describe('transition', () => {
  const go = (from: string, to: string, by: string, tx?: Transaction) =>
    fixture.dibs.rows.transition('item', 1, { from, to, set: { by } }, { tx })
  const isStateConflict = (error: unknown): boolean => error instanceof StateConflictError

  itInDepth('of three, one does it, and the others know what it is', () =>
    exploreAll({
      ...one,
      actors: {
        ann: () => go('new', 'ann', 'ann'),
        bob: () => go('new', 'bob', 'bob'),
        eve: () => go('new', 'eve', 'eve'),
      },
      bound: { preemptions: 1 },
      mayFail: isStateConflict,
      invariant: async (db, outcomes) => {
        const item = await itemOf(db)
        assert.equal(item?.status, item?.by)
        for (const [name, outcome] of Object.entries(outcomes))
          if (name === item?.by) value(outcome)
          else assert.equal((reason(outcome) as StateConflictError).current, item?.by)
      },
    }),
  )

  it('against the one before it: refused only where that has not come', () =>
    exploreAll({
      ...one,
      actors: { pay: () => go('new', 'paid', 'pay'), send: () => go('paid', 'sent', 'send') },
      mayFail: isStateConflict,
      invariant: async (db, { pay, send }) => {
        value(pay)
        const error = reason(send)
        if (error instanceof StateConflictError) assert.equal(error.current, 'new')
        assert.equal((await itemOf(db))?.status, error ? 'paid' : 'sent')
      },
    }))

  it.each(isDeep ? two : (['read committed'] as const))(
    'of two in transactions at %s, one does it',
    (isolation) =>
      exploreAll({
        ...one,
        actors: {
          ann: joined(isolation, (tx) => go('new', 'ann', 'ann', tx), 'ann'),
          bob: joined(isolation, (tx) => go('new', 'bob', 'bob', tx), 'bob'),
        },
        mayFail: (error) => isStateConflict(error) || isConflict(error),
        invariant: async (db) => {
          const item = await itemOf(db)
          assert.deepEqual((await db.query('select by from done')).rows, [{ by: item?.by }])
        },
      }),
  )
})

describe('insertOnce', () => {
  const insert = (id: number, by: string, tx?: Transaction) =>
    fixture.dibs.rows.insertOnce<{ id: number; by: string }>('item', ['code'], { id, code: 'x', by }, { tx })
  type InsertResult = { created: boolean; row: { id: number; by: string } }

  itInDepth('of three, one makes it, and all are given it', () =>
    exploreAll({
      actors: { ann: () => insert(1, 'ann'), bob: () => insert(2, 'bob'), eve: () => insert(3, 'eve') },
      bound: { preemptions: 1 },
      invariant: async (db, outcomes) => {
        const item = await itemOf(db)
        for (const [name, outcome] of Object.entries(outcomes)) {
          const result = value(outcome) as unknown as InsertResult
          assert.deepEqual(
            [result.created, result.row.by, result.row.id],
            [name === item?.by, item?.by, item?.id],
          )
        }
      },
    }),
  )

  it('against two who delete it: made, or found as it was', () =>
    exploreAll({
      setup: (db) => db.query("insert into item (id, code, by) values (9, 'x', 'old')"),
      actors: {
        ann: () => insert(1, 'ann'),
        bob: () => insert(2, 'bob'),
        drop: (db) => db.query("delete from item where by = 'old'"),
      },
      bound: { preemptions: 1 },
      invariant: async (db, { ann, bob }) => {
        const item = await itemOf(db)
        const result = [ann, bob].map((outcome) => value(outcome) as unknown as InsertResult)
        for (const { row } of result) assert(row.by === 'old' || row.by === item?.by)
        assert.equal(result.filter(({ created }) => created).length, item === undefined ? 0 : 1)
      },
    }))

  it.each(isDeep ? two : (['read committed'] as const))(
    'of two in transactions at %s, one makes it',
    (isolation) =>
      exploreAll({
        actors: {
          ann: joined(isolation, (tx) => insert(1, 'ann', tx), 'ann'),
          bob: joined(isolation, (tx) => insert(2, 'bob', tx), 'bob'),
        },
        mayFail: isConflict,
        invariant: async (db, outcomes) => {
          const item = await itemOf(db)
          for (const [name, outcome] of Object.entries(outcomes)) {
            if (isolation === 'read committed') value(outcome)
            if (outcome.status !== 'fulfilled') continue
            const result = outcome.value as InsertResult
            assert.deepEqual([result.created, result.row.by], [name === item?.by, item?.by])
          }
          assert(item)
        },
      }),
  )
})

describe('adjust', () => {
  const take = (n: number, tx?: Transaction) => fixture.dibs.rows.adjust('item', 1, { amount: -n }, { tx })
  const isShort = (error: unknown): boolean => error instanceof InsufficientError

  itInDepth('of three who want more than there is, each takes it or is told what is there', () =>
    exploreAll({
      ...one,
      actors: { two: () => take(2), three: () => take(3), four: () => take(4) },
      bound: { preemptions: 1 },
      mayFail: isShort,
      invariant: async (db, outcomes) => {
        const wanted: Record<string, number> = { two: 2, three: 3, four: 4 }
        const taken = Object.keys(outcomes).filter((name) => outcomes[name]?.status === 'fulfilled')
        const left = 5 - taken.reduce((sum, name) => sum + (wanted[name] ?? 0), 0)
        assert.equal((await itemOf(db))?.amount, left)
        assert(left >= 0)
        for (const [name, outcome] of Object.entries(outcomes)) {
          const error = reason(outcome)
          if (error instanceof InsufficientError)
            assert(Number(error.current) < (wanted[name] ?? 0), `${error}`)
        }
      },
    }),
  )

  it('against one who brings some: refused only for what was there', () =>
    exploreAll({
      ...one,
      actors: { take: () => take(7), bring: () => fixture.dibs.rows.adjust('item', 1, { amount: 3 }) },
      mayFail: isShort,
      invariant: async (db, { take: taken }) => {
        const error = reason(taken)
        if (error instanceof InsufficientError) assert.equal(error.current, '5')
        assert.equal((await itemOf(db))?.amount, error ? 8 : 1)
      },
    }))

  it.each(isDeep ? two : (['read committed'] as const))(
    'of two in transactions at %s, never below the least',
    (isolation) =>
      exploreAll({
        ...one,
        actors: {
          ann: joined(isolation, (tx) => take(3, tx), 'ann'),
          bob: joined(isolation, (tx) => take(3, tx), 'bob'),
        },
        mayFail: (error) => isShort(error) || isConflict(error),
        invariant: async (db) => {
          assert.equal((await itemOf(db))?.amount, 2)
          assert.equal((await db.query('select from done')).rows.length, 1)
        },
      }),
  )
})

describe('lastWriteWins', () => {
  const write = (patch: object, versionColumn?: string) =>
    fixture.dibs.rows.lastWriteWins('item', 1, { ...patch }, { versionColumn })

  it('of two fields keeps both, of one field one of both', () =>
    exploreAll({
      ...one,
      actors: {
        ann: () => write({ status: 'seen', by: 'ann' }),
        bob: () => write({ amount: 7, by: 'bob' }),
      },
      invariant: async (db, { ann, bob }) => {
        const item = await itemOf(db)
        assert.deepEqual([item?.status, item?.amount], ['seen', 7])
        assert(item?.by === 'ann' || item?.by === 'bob')
        assert.equal(value(ann).status, 'seen')
        assert.equal(value(bob).amount, 7)
      },
    }))

  it('that counts is noticed by whoever has read before', () =>
    exploreAll({
      ...one,
      actors: {
        ann: () => write({ status: 'seen' }, 'version'),
        bob: () => fixture.dibs.rows.update('item', { id: 1, version: 1 }, { by: 'bob' }),
      },
      mayFail: isConflict,
      invariant: async (db, { bob }) => {
        const item = await itemOf(db)
        assert.deepEqual([item?.status, item?.version], ['seen', reason(bob) ? 2 : 3])
        assert.equal(item?.by, reason(bob) ? null : 'bob')
      },
    }))
})

describe('retryOnConflict', () => {
  const add = (db: ExploreHandle) =>
    retryOnConflict(async () => {
      const item = await itemOf(db)
      const { version, amount } = item as { version: number; amount: number }
      return fixture.dibs.rows.update('item', { id: 1, version }, { amount: amount + 1 })
    })

  it('of two who read, compute and write, both count', () =>
    exploreAll({
      ...one,
      actors: { ann: add, bob: add },
      invariant: async (db) => {
        const item = await itemOf(db)
        assert.deepEqual([item?.amount, item?.version], [7, 3])
      },
    }))
})
