import { randomBytes } from 'node:crypto'
import type { PoolClient } from 'pg'
import { describe, expect, it, vi } from 'vitest'
import { until } from '../../../test/database.js'
import { realTime } from '../../../test/real-time.js'
import { openTables } from '../../../test/tables/open-tables.js'
import {
  BusyError,
  ConflictError,
  DatabaseError,
  InsufficientError,
  InvalidInputError,
  NotFoundError,
} from '../../errors.js'

vi.setConfig({ testTimeout: 60_000 })

const fixture = openTables(
  `create table {shop}.stock (id int primary key, n int not null, extra text);
   create table {shop}.task (id int, part int, tries int2, doubled int generated always as (part * 2) stored, primary key (id, part)) partition by list (part);
   create table {shop}.task_1 partition of {shop}.task for values in (1);
   create table {shop}.task_2 partition of {shop}.task for values in (2);
   create table {shop}.typed (id int primary key, path jsonpath, words tsquery, at timestamptz, title text unique);
   create sequence {shop}.counter`,
  `insert into {shop}.stock values (1, 5), (2, 5); insert into {shop}.task (id, part) values (1, 1), (2, 1);
   insert into {shop}.typed values (1)`,
)
const { at, withClient } = fixture
const isAlive = async (tx: PoolClient) => (await tx.query('select 1 as n')).rows

/** The one in front of a call, which changes the row so that the call is refused; and a migration that comes before the call can look why. */
async function migrateBeforeTheRead(
  change: string,
  holdMs: number,
  call: (tx: PoolClient) => Promise<unknown>,
): Promise<{ error: unknown; tookMs: number }> {
  const [front, migration, tx] = await Promise.all([
    fixture.pool.connect(),
    fixture.pool.connect(),
    fixture.pool.connect(),
  ])
  try {
    await front.query('begin')
    await front.query(`update ${at('stock')} set n = 0 where id = 1`)
    await tx.query('begin')
    const startedAt = performance.now()
    const told = call(tx).catch((error: unknown) => error)
    await fixture.blocked(tx)
    await migration.query('begin')
    const changed = migration.query(`alter table ${at('stock')} ${change}`)
    await fixture.blocked(migration)
    await front.query('commit')
    await changed
    const ended = new Promise((resolve) => setTimeout(resolve, holdMs)).then(() => migration.query('commit'))
    const error = await told
    const tookMs = performance.now() - startedAt
    await ended
    return { error, tookMs }
  } finally {
    for (const client of [front, migration, tx]) client.release(true)
    await fixture.pool.query(`alter table ${at('stock')} drop column if exists more`)
  }
}

describe('a migration between a write that is refused and the look why', () => {
  it('is waited for no longer than any other', realTime, async () => {
    const { error, tookMs } = await migrateBeforeTheRead('add column more int', 4_000, (tx) =>
      fixture.dibs.rows.adjust(at('stock'), 1, { n: -1 }, { tx, waitMs: 800 }),
    )
    expect(error).toBeInstanceOf(BusyError)
    expect(tookMs).toBeLessThan(3_500)
  })

  it('that is over soon is read again, and the transaction goes on', async () => {
    let alive: unknown
    const { error } = await migrateBeforeTheRead('drop column extra', 0, async (tx) => {
      const told = await fixture.dibs.rows
        .adjust(at('stock'), 1, { n: -1 }, { tx })
        .catch((reason: unknown) => reason)
      alive = await isAlive(tx)
      throw told
    })
    await fixture.pool.query(`alter table ${at('stock')} add column extra text`)
    expect(error).toBeInstanceOf(InsufficientError)
    expect(alive).toEqual([{ n: 1 }])
  })
})

it('all waits of a statement end before its statement_timeout', async () => {
  await withClient(async (first) => {
    await first.query(`update ${at('stock')} set n = 4 where id = 1`)
    await withClient(async (second) => {
      await second.query(`update ${at('stock')} set n = 4 where id = 2`)
      await withClient(async (tx) => {
        await tx.query("set local statement_timeout = '5s'")
        const waiting = fixture.dibs.rows.lock(at('stock'), [1, 2], { tx, waitMs: 10_000 })
        setTimeout(() => void first.query('commit'), 2_500)
        await expect(waiting).rejects.toThrow(BusyError)
        expect(await isAlive(tx)).toEqual([{ n: 1 }])
      })
    })
  })
})

it('rows that may be left out are there if they were made anew while they were waited for', async () => {
  await withClient(async (other) => {
    await other.query(`delete from ${at('stock')} where id = 1; insert into ${at('stock')} values (1, 45)`)
    await withClient(async (tx) => {
      const waiting = fixture.dibs.rows.lock(at('stock'), [1, 9], { tx, ifMissing: 'skip' })
      await fixture.blocked(tx)
      await other.query('commit')
      expect(await waiting).toMatchObject([{ id: 1, n: 45 }])
    })
  })
})

describe('what only the server knows to be wrong leaves the transaction alive', () => {
  it.each([{ path: '$[' }, { words: 'a &' }, { title: randomBytes(9_000).toString('base64') }])(
    'as a value: %.20j',
    async (patch) => {
      await withClient(async (tx) => {
        await expect(fixture.dibs.rows.lastWriteWins(at('typed'), 1, patch, { tx })).rejects.toThrow(
          DatabaseError,
        )
        expect(await isAlive(tx)).toEqual([{ n: 1 }])
      })
    },
  )

  it.each([
    ['path = $1::uuid', [1]],
    ['nowhere.f(id)', []],
    ['row_number() over () = 1', []],
    ['generate_series(1, 2) = 1', []],
    ['id = (select generate_series(1, 2))', []],
    ["'a b c'::regclass is null", []],
    ['exists (select from pg_class x, pg_class x)', []],
    [`currval('${at('counter')}') > 0`, []],
  ])('as a condition: %s', async (sql, values) => {
    await withClient(async (tx) => {
      const asked = fixture.dibs.rows.claim(at('typed'), { tx, where: { sql, values } })
      await expect(asked).rejects.toThrow(DatabaseError)
      expect(await isAlive(tx)).toEqual([{ n: 1 }])
    })
  })

  it('as a row that a policy does not let through', async () => {
    const role = `${fixture.shop}_role`
    await fixture.pool.query(
      `create role ${role}; grant usage on schema ${fixture.shop}, ${fixture.schema.name} to ${role};
       grant select, insert, update on ${at('stock')} to ${role};
       alter table ${at('stock')} enable row level security;
       create policy few on ${at('stock')} using (true) with check (n < 10)`,
    )
    try {
      await withClient(async (tx) => {
        await tx.query(`set local role ${role}`)
        const asked = fixture.dibs.rows.adjust(at('stock'), 1, { n: 20 }, { tx })
        await expect(asked).rejects.toMatchObject({ sqlState: '42501' })
        expect(await isAlive(tx)).toEqual([{ n: 1 }])
      })
    } finally {
      await fixture.pool.query(
        `drop policy few on ${at('stock')}; alter table ${at('stock')} disable row level security;
         drop owned by ${role}; drop role ${role}`,
      )
    }
  })
})

describe('claims', () => {
  it('go on past a row that is moved to another partition meanwhile', async () => {
    await withClient(async (mover) => {
      await mover.query(`update ${at('task')} set part = 2 where id = 1`)
      // The claim sees the row in its old partition, and the row is gone from there when the claim locks it.
      const waits = `(select pg_advisory_xact_lock(4711)) is not null`
      await mover.query('select pg_advisory_xact_lock(4711)')
      const claiming = fixture.dibs.rows.claim<{ id: number }>(at('task'), {
        ...{ where: { sql: waits, values: [] }, attemptsColumn: 'tries', limit: 2 },
      })
      await until(
        async () =>
          (
            await fixture.pool.query(`
              select from pg_locks where locktype = 'advisory' and objid = 4711 and not granted
                and database = (select oid from pg_database where datname = current_database())`)
          ).rowCount === 1,
        'the claim to wait',
      )
      await mover.query('commit')
      expect((await claiming).map(({ id }) => id).toSorted()).toEqual([1, 2])
    })
  })

  it('of a row with as many attempts as can be counted do not stop', async () => {
    await fixture.pool.query(`update ${at('task')} set tries = 32767 where id = 1`)
    const claimed = await fixture.dibs.rows.claim(at('task'), { attemptsColumn: 'tries', limit: 2 })
    expect(claimed).toMatchObject([
      { id: 1, tries: 32767 },
      { id: 2, tries: 1 },
    ])
  })

  it('compare with a moment past the year 9999', async () => {
    const where = { sql: 'at is null or at > $1', values: [new Date(8.64e15)] }
    expect(await fixture.dibs.rows.claim(at('typed'), { where, set: { at: new Date(0) } })).toHaveLength(1)
  })
})

it('a refusal is about the table that the search path names this time', async () => {
  const tenants = ['a', 'b'].map((name) => `${fixture.shop}_${name}`)
  await fixture.pool.query(
    `create schema ${tenants[0]}; create table ${tenants[0]}.orders (id int primary key, n int);
     create schema ${tenants[1]}; create table ${tenants[1]}.orders (id uuid primary key, n int)`,
  )
  const ask = (tenant: string | undefined, id: string) =>
    withClient(async (tx) => {
      await tx.query(`set local search_path = ${tenant}`)
      return await fixture.dibs.rows.lastWriteWins('orders', id, { n: 1 }, { tx })
    })
  const id = '11111111-1111-4111-8111-111111111111'
  await expect(ask(tenants[0], id)).rejects.toThrow(InvalidInputError)
  await expect(ask(tenants[1], id)).rejects.toThrow(NotFoundError)
  await fixture.pool.query(`drop schema ${tenants[0]} cascade; drop schema ${tenants[1]} cascade`)
})

it('a state is a column that can be written, and not the key', async () => {
  const { transition } = fixture.dibs.rows
  const id = { id: 1, part: 1 }
  await expect(transition(at('task'), id, { column: 'doubled', from: 2, to: 4 })).rejects.toThrow(
    'the database makes it',
  )
  await expect(transition(at('task'), id, { column: 'id', from: 1, to: 2 })).rejects.toThrow(
    'it identifies the row',
  )
})

it('a version that the column cannot hold is another version', async () => {
  const asked = fixture.dibs.rows.update(
    at('stock'),
    { id: 1, version: 3_000_000_000 },
    { extra: 'x' },
    { versionColumn: 'n' },
  )
  await expect(asked).rejects.toMatchObject({ expected: 3_000_000_000, current: 5 })
  await expect(asked).rejects.toThrow(ConflictError)
})
