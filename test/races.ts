import assert from 'node:assert/strict'
import type { Pool, PoolClient } from 'pg'
import { inTransaction } from '../examples/races/in-transaction.js'
import type { ExploreOptions } from '../src/testing/explore/options.js'

/** Typical code, right or wrong, and the verdict that the explorer must reach. */
export interface Case {
  readonly name: string
  /** The explorer must find a schedule that goes wrong. */
  readonly isWrong: boolean
  readonly setup: (db: Pool) => unknown
  /** The function of each actor; `n` is 0, 1, 2 … */
  readonly act: (db: Pool, n: number) => unknown
  /** `actors`: how many there were. */
  readonly invariant?: (db: Pool, actors: number) => unknown
  readonly isolation?: ExploreOptions['isolation']
  /** Three actors have too many orders. */
  readonly isLarge?: true
}

export const tables = `
  create table counter (id int primary key, n int not null, version int not null default 0);
  create table lock_row (name text not null);
  create table account (name text primary key, amount int not null);
  create table orders (id int generated always as identity, buyer int not null);
  create table doctor (name text primary key, on_call boolean not null);
  create table job (id int primary key, taken_by int);
  create table run (id int generated always as identity, job int not null, by int not null);
  create table token (key text primary key, by int not null);
`

type Queryable = Pick<PoolClient, 'query'>

const number = async (db: Queryable, sql: string, values: unknown[] = []): Promise<number> =>
  Number(Object.values((await db.query(sql, values)).rows[0] ?? { none: Number.NaN })[0])

const counter = (db: Pool) => db.query('insert into counter values (1, 0)')
const counted = async (db: Pool, actors: number) =>
  assert.equal(await number(db, 'select n from counter'), actors)

async function addOne(db: Queryable, lock = ''): Promise<void> {
  const n = await number(db, `select n from counter where id = 1 ${lock}`)
  await db.query('update counter set n = $1 where id = 1', [n + 1])
}

const stock = (db: Pool) => db.query(`insert into account values ('lamp', 1)`)
const soldOnce = async (db: Pool) => assert.ok((await number(db, 'select count(*) from orders')) <= 1)

async function buy(db: Queryable, buyer: number): Promise<void> {
  const left = await number(db, `select amount from account where name = 'lamp'`)
  if (left < 1) return
  await db.query('insert into orders (buyer) values ($1)', [buyer])
  await db.query(`update account set amount = amount - 1 where name = 'lamp'`)
}

const someoneOnCall = async (db: Pool) =>
  assert.ok((await number(db, 'select count(*) from doctor where on_call')) >= 1)
async function goOffCall(db: Queryable, n: number): Promise<void> {
  const others = await number(db, 'select count(*) from doctor where on_call')
  if (others > 1) await db.query('update doctor set on_call = false where name = $1', [`doctor ${n}`])
}
const twoDoctors = (db: Pool) =>
  db.query(`insert into doctor values ('doctor 0', true), ('doctor 1', true), ('doctor 2', false)`)

const job = (db: Pool) => db.query('insert into job values (1)')
const ranOnce = async (db: Pool) => assert.ok((await number(db, 'select count(*) from run')) <= 1)

async function retrying(fn: () => Promise<unknown>): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      await fn()
      return
    } catch (error) {
      if ((error as { code?: string }).code !== '40001' || attempt === 5) throw error
    }
  }
}

const transfer = (from: string, to: string) => async (client: PoolClient) => {
  await client.query('update account set amount = amount - 1 where name = $1', [from])
  await client.query('update account set amount = amount + 1 where name = $1', [to])
}
const accounts = (db: Pool) => db.query(`insert into account values ('a', 10), ('b', 10)`)

const wrong: Omit<Case, 'isWrong'>[] = [
  { name: 'lost update, autocommit', setup: counter, act: (db) => addOne(db), invariant: counted },
  {
    name: 'lost update in a transaction',
    setup: counter,
    act: (db) => inTransaction(db, (client) => addOne(client)),
    invariant: counted,
  },
  {
    name: 'insert … select … where not exists',
    setup: () => {},
    act: (db) =>
      db.query(`insert into lock_row select 'x' where not exists (select from lock_row where name = 'x')`),
    invariant: async (db) => assert.equal(await number(db, 'select count(*) from lock_row'), 1),
  },
  {
    name: 'check, then insert, without a unique index',
    setup: () => {},
    act: (db) =>
      inTransaction(db, async (client) => {
        if ((await number(client, `select count(*) from lock_row where name = 'x'`)) === 0)
          await client.query(`insert into lock_row values ('x')`)
      }),
    invariant: async (db) => assert.equal(await number(db, 'select count(*) from lock_row'), 1),
  },
  {
    name: 'write skew at READ COMMITTED',
    setup: twoDoctors,
    act: (db, n) => inTransaction(db, (client) => goOffCall(client, n)),
    invariant: someoneOnCall,
  },
  {
    name: 'write skew at REPEATABLE READ',
    setup: twoDoctors,
    act: (db, n) => inTransaction(db, (client) => goOffCall(client, n)),
    invariant: someoneOnCall,
    isolation: 'repeatable read',
  },
  {
    name: 'last item in stock',
    setup: stock,
    act: (db, n) => inTransaction(db, (client) => buy(client, n)),
    invariant: soldOnce,
  },
  {
    name: 'claim by select, then update',
    setup: job,
    act: (db, n) =>
      inTransaction(db, async (client) => {
        if ((await number(client, 'select count(*) from job where id = 1 and taken_by is null')) === 0) return
        await client.query('update job set taken_by = $1 where id = 1', [n])
        await client.query('insert into run (job, by) values (1, $1)', [n])
      }),
    invariant: ranOnce,
  },
  {
    name: 'advisory lock released before COMMIT',
    setup: counter,
    act: (db) =>
      inTransaction(db, async (client) => {
        await client.query('select pg_advisory_lock(41)')
        await addOne(client)
        await client.query('select pg_advisory_unlock(41)')
      }),
    invariant: counted,
  },
  {
    name: 'FOR UPDATE in autocommit',
    setup: counter,
    act: (db) => addOne(db, 'for update'),
    invariant: counted,
  },
  {
    name: 'read skew in a report of two selects',
    setup: accounts,
    act: async (db, n) => {
      if (n > 0) return inTransaction(db, transfer('a', 'b'))
      const client = await db.connect()
      await client.query('begin')
      const a = await number(client, `select amount from account where name = 'a'`)
      const b = await number(client, `select amount from account where name = 'b'`)
      await client.query('commit')
      client.release()
      assert.equal(a + b, 20, 'the report is wrong')
    },
  },
  {
    name: 'deadlock by opposite order',
    setup: accounts,
    act: (db, n) => inTransaction(db, n % 2 === 0 ? transfer('a', 'b') : transfer('b', 'a')),
  },
]

const right: Omit<Case, 'isWrong'>[] = [
  {
    name: 'set n = n + 1',
    setup: counter,
    act: (db) => db.query('update counter set n = n + 1 where id = 1'),
    invariant: counted,
  },
  {
    name: 'FOR UPDATE in a transaction',
    setup: counter,
    act: (db) => inTransaction(db, (client) => addOne(client, 'for update')),
    invariant: counted,
  },
  {
    name: 'insert … on conflict do nothing',
    setup: () => {},
    act: (db, n) =>
      inTransaction(db, async (client) => {
        const { rowCount } = await client.query(`insert into token values ('x', $1) on conflict do nothing`, [
          n,
        ])
        if (rowCount === 1) await client.query('insert into run (job, by) values (1, $1)', [n])
      }),
    invariant: async (db) => assert.equal(await number(db, 'select count(*) from run'), 1),
  },
  {
    name: 'claim with SKIP LOCKED',
    setup: job,
    act: (db, n) =>
      inTransaction(db, async (client) => {
        const { rowCount } = await client.query(
          `update job set taken_by = $1 where id = (
             select id from job where taken_by is null limit 1 for update skip locked)`,
          [n],
        )
        if (rowCount === 1) await client.query('insert into run (job, by) values (1, $1)', [n])
      }),
    invariant: ranOnce,
  },
  {
    name: 'update … where version = $1',
    isLarge: true,
    setup: counter,
    act: async (db) => {
      for (let attempt = 0; attempt < 5; attempt++) {
        const { rows } = await db.query('select n, version from counter where id = 1')
        const { rowCount } = await db.query(
          'update counter set n = $1, version = version + 1 where id = 1 and version = $2',
          [rows[0].n + 1, rows[0].version],
        )
        if (rowCount === 1) return
      }
    },
    invariant: counted,
  },
  {
    name: 'advisory lock around the read',
    setup: counter,
    act: (db) =>
      inTransaction(db, async (client) => {
        await client.query('select pg_advisory_xact_lock(42)')
        await addOne(client)
      }),
    invariant: counted,
  },
  {
    name: 'write skew at SERIALIZABLE, with retry',
    setup: twoDoctors,
    act: (db, n) => retrying(() => inTransaction(db, (client) => goOffCall(client, n))),
    invariant: someoneOnCall,
    isolation: 'serializable',
  },
]

export const cases: readonly Case[] = [
  ...wrong.map((one) => ({ ...one, isWrong: true })),
  ...right.map((one) => ({ ...one, isWrong: false })),
]

const names = ['alice', 'bob', 'carol']

/** The options to explore a case with so many actors. */
export function optionsOf(one: Case, actors: number): Omit<ExploreOptions, 'pool' | 'url'> {
  const { setup, act, invariant, isolation } = one
  return {
    setup,
    actors: Object.fromEntries(names.slice(0, actors).map((name, n) => [name, (db: Pool) => act(db, n)])),
    ...(invariant ? { invariant: (db: Pool) => invariant(db, actors) } : {}),
    isolation,
  }
}
