import type { Pool } from 'pg'
import { describe, expect, it, vi } from 'vitest'
import { inTransaction } from '../../../../examples/races/in-transaction.js'
import { itInDepth } from '../../../../test/depth.js'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { explore } from '../explore.js'

vi.setConfig({ testTimeout: 60_000 })

const { url } = exploredSchema(`
  create table counter (id int primary key, n int not null);
  create table key (key text primary key);
  create table loose_key (key text not null);
  create table account (name text primary key, amount int not null);
  create table orders (buyer text not null);
  create table doctor (name text primary key, on_call boolean not null);
`)

const setup = (db: Pool) =>
  db.query(`
    insert into counter values (1, 0);
    insert into account values ('a', 10), ('b', 10);
    insert into doctor values ('alice', true), ('bob', true), ('carol', true)`)

/** One after the other in a transaction, with `$1` in place of the actor's name. */
const transaction =
  (...statements: string[]) =>
  (db: Pool, name: string) =>
    inTransaction(db, async (tx) => {
      for (const sql of statements) await tx.query(sql, sql.includes('$1') ? [name] : [])
    })

const READ = 'select n from counter where id = 1'
const ADD = 'update counter set n = n + 1 where id = 1'
const LESS = `update account set amount = amount - 1 where name = 'a'`
const MORE = `update account set amount = amount + 1 where name = 'b'`

/**
 * The number of distinguishable schedules according to a model of PostgreSQL's locks, snapshots and commits. Fewer would mean
 * that the explorer leaves out too much, more that it leaves out too little.
 */
const cases: { name: string; two: number; three?: number; act: (db: Pool, name: string) => unknown }[] = [
  {
    name: 'a counter, read and written, each by itself',
    two: 4,
    three: 36,
    act: async (db) => {
      await db.query(READ)
      await db.query(ADD)
    },
  },
  { name: 'a counter in a transaction', two: 4, three: 36, act: transaction(READ, ADD) },
  { name: 'a counter under a lock', two: 2, three: 6, act: transaction(`${READ} for update`, ADD) },
  { name: 'a counter in one statement', two: 2, three: 6, act: (db) => db.query(ADD) },
  {
    name: 'a command with a unique key',
    two: 4,
    // The model says 36, because in it all three commit the key. Here two of them fail on it and publish nothing: whoever
    // wins (3), each loser has looked before or after the winner's COMMIT (2 x 2), and the losers come in one order or
    // the other (2).
    three: 24,
    act: (db, name) =>
      transaction(
        `select from key where key = 'k'`,
        `insert into key values ('k')`,
        LESS,
      )(db, name).catch(({ code }) => code),
  },
  {
    name: 'a command without a unique key',
    two: 4,
    three: 36,
    act: transaction(
      `select count(*) from loose_key where key = 'k'`,
      `insert into loose_key values ('k')`,
      LESS,
    ),
  },
  {
    name: 'the last item',
    two: 4,
    three: 36,
    act: transaction(`select amount from account where name = 'a'`, 'insert into orders values ($1)', LESS),
  },
  {
    name: 'transfers in opposite order',
    two: 8,
    act: (db, name) => {
      const there = [
        `select amount from account where name = 'a'`,
        `select amount from account where name = 'b'`,
      ]
      const back = there.toReversed()
      return name === 'alice'
        ? transaction(...there, LESS, MORE)(db, name)
        : transaction(...back, MORE, LESS)(db, name)
    },
  },
  {
    name: 'transfers that lock in one order',
    two: 2,
    three: 6,
    act: transaction(
      `select amount from account where name = 'a' for update`,
      `select amount from account where name = 'b' for update`,
      LESS,
      MORE,
    ),
  },
  {
    name: 'write skew',
    two: 3,
    three: 19,
    act: transaction(
      'select count(*) from doctor where on_call',
      'update doctor set on_call = false where name = $1',
    ),
  },
]

const names = ['alice', 'bob', 'carol']

describe.each(cases)('$name', ({ two, three, act }) => {
  const count = async (actors: number, everyOrder = false) => {
    const report = await explore({
      url,
      setup,
      actors: Object.fromEntries(names.slice(0, actors).map((name) => [name, (db: Pool) => act(db, name)])),
      mayFail: (error) => (error as { code?: string }).code === '40P01',
      bound: { schedules: 5_000, random: 0 },
      everyOrder,
    })
    expect(report.isExhaustive, report.summary).toBe(true)
    expect(report.reduction.widened).toEqual([])
    return report.schedules
  }

  it(`${two} with two actors`, async () => {
    expect(await count(2)).toBe(two)
    expect(await count(2, true)).toBeGreaterThan(two)
  })

  // The model has no figure for three opposite transfers, because two of them must have the same direction.
  if (three === undefined) return
  itInDepth(`${three} with three`, async () => {
    expect(await count(3)).toBe(three)
  })
})
