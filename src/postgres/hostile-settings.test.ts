import pg from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { directUrl, freshName, throughPool, wayIn, withPool } from '../../test/database.js'
import { Dibs } from '../dibs.js'
import { Database } from './database.js'
import { inspectServer } from './server.js'
import { statement } from './statement.js'

// A database whose owner has set everything that our SQL must not rely on.
const name = freshName('hostile')
const admin = new pg.Pool({ connectionString: directUrl, max: 1 })

const at = (url: string): string => {
  const target = new URL(url)
  target.pathname = `/${name}`
  return target.href
}

beforeAll(async () => {
  await admin.query(`create database ${name}`)
  await withPool(
    async (pool) => {
      await pool.query(`create schema evil;
        create function evil.clock_timestamp() returns timestamptz language sql as $$ select '1999-01-01'::timestamptz $$;
        create function evil.hashtextextended(text, bigint) returns bigint language sql as $$ select 0::bigint $$;
        create function evil.jsonb_typeof(jsonb) returns text language sql as $$ select 'trap' $$;
        create table evil.kv (key text, value jsonb);
        create table evil.migration (version int, name text, checksum text, compatible_from int);
        insert into evil.migration values (7, 'trap', '', 7)`)
    },
    { connectionString: at(directUrl) },
  )
  for (const setting of [
    "default_transaction_isolation = 'serializable'",
    'default_transaction_read_only = on',
    'search_path = evil, pg_catalog',
    "timezone = 'Asia/Kathmandu'",
    "datestyle = 'SQL, DMY'",
    "intervalstyle = 'sql_standard'",
    'extra_float_digits = -5',
    "bytea_output = 'escape'",
    "statement_timeout = '20s'",
    'standard_conforming_strings = off',
  ]) {
    await admin.query(`alter database ${name} set ${setting}`)
  }
})

afterAll(async () => {
  await admin.query(`drop database ${name} with (force)`)
  await admin.end()
})

it('migrates, tells the time and commits', async () => {
  await using dibs = await Dibs.open({ ...wayIn, url: at(wayIn.url) })
  expect(Math.abs((await dibs.now()).getTime() - Date.now())).toBeLessThan(5_000)
  const seen = await dibs.transaction(async (tx) => {
    await tx.query('create table public.written (n int)')
    const { rows } = await tx.query("select pg_catalog.current_setting('transaction_isolation') as level")
    return rows[0]?.level
  })
  expect(seen).toBe('read committed')
})

it('keeps keys and values', async () => {
  await using dibs = await Dibs.open({ ...wayIn, url: at(wayIn.url) })
  const claim = await dibs.kv.setIfAbsent('a', { n: { m: 1 } }, { ttlMs: 60_000 })
  expect(claim.ok).toBe(true)
  const patched = await dibs.kv.patch('a', { n: { k: 2 } }, { remove: [['n', 'm']] })
  expect(patched?.value).toEqual({ n: { k: 2 } })
  const left = ((await dibs.kv.get('a'))?.expiresAt?.getTime() ?? 0) - Date.now()
  expect(Math.abs(left - 60_000)).toBeLessThan(5_000)
  expect((await dibs.kv.list()).items).toHaveLength(1)
  expect(await dibs.kv.delete('a')).toEqual({ ok: true })
})

it('writes, locks and claims rows of tables on that path, whatever its operators are', async () => {
  await using dibs = await Dibs.open({ ...wayIn, url: at(wayIn.url) })
  await dibs.transaction(async (tx) => {
    await tx.query(`create table evil.item (id int primary key, n int not null default 5, version int not null default 1, at timestamptz, fence bigint, raw bytea);
      insert into evil.item values (1), (2);
      create function evil.never(int, int) returns boolean language sql as $$ select false $$;
      create function evil.same(text, text) returns boolean language sql as $$ select false $$;
      create function evil.plus(int, int) returns int language sql as $$ select 0 $$;
      create operator evil.= (leftarg = int, rightarg = int, function = evil.never);
      create operator evil.= (leftarg = text, rightarg = text, function = evil.same);
      create operator evil.< (leftarg = int, rightarg = int, function = evil.never);
      create operator evil.+ (leftarg = int, rightarg = int, function = evil.plus)`)
  })
  const seen = new Date('2030-02-03T04:05:06.789Z')
  const raw = Buffer.from("\\'")
  expect(await dibs.rows.update('item', { id: 1, version: 1 }, { at: seen, raw })).toMatchObject({
    version: 2,
  })
  expect(await dibs.rows.adjust('item', 1, { n: -5 })).toMatchObject({ n: 0 })
  await expect(dibs.rows.adjust('item', 1, { n: -1 })).rejects.toMatchObject({ current: '0' })
  expect(await dibs.rows.insertOnce('item', ['id'], { id: 2 })).toMatchObject({ created: false })
  expect(await dibs.rows.transition('item', 2, { from: 5, to: 6, column: 'n' })).toMatchObject({ n: 6 })
  const lease = { leaseColumn: 'at', fenceColumn: 'fence' }
  expect(await dibs.rows.claim('item', { where: { n: [6] }, ...lease })).toMatchObject([{ id: 2 }])
  await dibs.transaction(async (tx) => {
    expect(await dibs.rows.lock('item', [2, 1], { tx })).toMatchObject([{ id: 2 }, { id: 1 }])
    await expect(dibs.rows.lock('item', [3], { tx })).rejects.toThrow('There is no row 3')
    const stored = await tx.query(
      "select extract(epoch from at)::text as at, encode(raw, 'hex') as raw from evil.item order by id",
    )
    expect(stored.rows[0]).toEqual({ at: '1896321906.789000', raw: raw.toString('hex') })
    await tx.query(
      'drop table evil.item; drop function evil.never(int, int), evil.same(text, text), evil.plus(int, int) cascade',
    )
  })
})

it('monitors a table on that path, whose keys are written in its own way', async () => {
  await using dibs = await Dibs.open({ ...wayIn, url: at(wayIn.url) })
  await dibs.transaction(async (tx) => {
    await tx.query(`create table evil.dibs_l (day date, at timestamptz, raw bytea, span interval, status text, n float8, primary key (day, at, raw, span, n));
      insert into evil.dibs_l select '2031-02-01'::date + n, '2031-02-03 04:05:06.789+00', convert_to('a' || n, 'utf8'), n * interval '1 day 2 hours -3 minutes', E'it''s \\\\ on', n + 0.1::float8
        from pg_catalog.generate_series(1, 5) n;
      create function evil.sooner(timestamptz, timestamptz) returns boolean language sql as $$ select false $$;
      create operator evil.< (leftarg = timestamptz, rightarg = timestamptz, function = evil.sooner)`)
    await tx.query("update evil.dibs_l set at = '2021-02-03 04:05:06.789+00'")
  })
  const task = { table: 'dibs_l', stuck: "it's \\ on", timeColumn: 'at', olderThanMs: 1, batch: 2 } as const
  const left = dibs.monitor('left', { ...task, action: async () => 'leave' })
  expect(await left.run()).toMatchObject({ left: 5, errors: 0, isMore: false })
  expect(await left.checkIndexes()).toMatchObject({ ok: false })
  const requeue = dibs.monitor('requeue', { ...task, action: 'requeue', requeueTo: 'again' })
  expect(await requeue.run()).toMatchObject({ requeued: 5, errors: 0, isMore: false })
  await dibs.transaction((tx) =>
    tx.query('drop table evil.dibs_l; drop function evil.sooner(timestamptz, timestamptz) cascade'),
  )
})

it('lowers the timeout of the session to its deadline and never raises it', async () => {
  await using dibs = await Dibs.open({ ...wayIn, url: at(wayIn.url) })
  const timeout = (deadlineMs: number) =>
    dibs.transaction(async (tx) => (await tx.query('show statement_timeout')).rows[0]?.statement_timeout, {
      deadlineMs,
    })
  expect(await timeout(60_000)).toBe('20s')
  expect(await timeout(Number.POSITIVE_INFINITY)).toBe('20s')
  expect(await timeout(5_000)).toMatch(/^(5s|4\d{3}ms)$/)
})

it('sends its own statements at READ COMMITTED and may write', async () => {
  await withPool(
    async (pool) => {
      const database = new Database(pool, { schema: 'dibs', prepared: throughPool.prepared ?? true })
      await inspectServer(database, 'here')
      expect(database.autocommitFits).toBe(false)
      expect(database.statementTimeoutMs).toBe(20_000)
      const look = statement(`select pg_catalog.current_setting('transaction_isolation')::text as "level",
                                     pg_catalog.current_setting('transaction_read_only')::text as "readonly"`)
      const expected = [{ level: 'read committed', readonly: 'off' }]
      expect(await database.send(look, [])).toEqual(expected)
      // Apart from the transaction that surrounds it, as a statement of its own would be.
      expect(await database.transaction(() => database.send(look, []))).toEqual(expected)
    },
    { connectionString: at(wayIn.url) },
  )
})

it('does not mind the type parsers of the user', async () => {
  const shout = () => 'shouted'
  const types: pg.CustomTypesConfig = { getTypeParser: () => shout }
  await withPool(
    async (pool) => {
      await using dibs = await Dibs.open({ ...throughPool, pool })
      expect(Math.abs((await dibs.now()).getTime() - Date.now())).toBeLessThan(5_000)
    },
    { connectionString: at(wayIn.url), types },
  )
})
