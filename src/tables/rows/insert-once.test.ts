import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import {
  BusyError,
  ConflictError,
  ConstraintViolationError,
  InvalidInputError,
  NotWrittenError,
} from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'
import { countTraffic } from '../../testing/index.js'

const fixture = openTables(
  `create table {shop}.users (
     id int generated always as identity primary key, email text unique, name text default 'nobody', tenant int, code text,
     shout text generated always as (upper(email)) stored, unique (tenant, code), nick text unique deferrable
   );
   create unique index on {shop}.users (name) where tenant > 100;
   create unique index on {shop}.users (lower(email));
   create table {shop}.plain (n int)`,
)
const { at, withClient } = fixture
const insert = (tx: Tx | undefined, row: object = {}, columns: unknown = ['email'], options?: object) =>
  fixture.dibs.rows.insertOnce(at('users'), columns as string[], { email: 'ann', ...row }, { ...options, tx })

describe('the first', () => {
  it('makes the row, and the others are given it', async () => {
    const first = await insert(undefined, { name: 'Ann' })
    expect(first).toEqual({
      created: true,
      row: { id: 1, email: 'ann', name: 'Ann', tenant: null, code: null, nick: null, shout: 'ANN' },
    })
    expect(await insert(undefined, { name: 'Other' })).toEqual({ created: false, row: first.row })
    expect(await fixture.rows('users')).toEqual([first.row])
  })

  it('is the first by several columns, in any order', async () => {
    const columns = ['code', 'tenant']
    expect(await insert(undefined, { tenant: 1, code: 'x' }, columns)).toMatchObject({ created: true })
    expect(await insert(undefined, { email: 'b', tenant: 1, code: 'x' }, columns)).toMatchObject({
      created: false,
      row: { email: 'ann' },
    })
    expect(await insert(undefined, { email: 'b', tenant: 2, code: 'x' }, columns)).toMatchObject({
      created: true,
    })
  })

  it('lives and dies with the transaction', async () => {
    await withClient(async (tx) => {
      expect(await insert(tx)).toMatchObject({ created: true })
      expect(await insert(tx)).toMatchObject({ created: false })
    })
    expect(await fixture.rows('users')).toEqual([])
  })

  it('takes one round trip', async () => {
    await insert(undefined)
    expect(await countTraffic(fixture.pool, () => insert(undefined))).toMatchObject({
      ...{ value: { created: false }, roundTrips: 1, commits: 1 },
    })
  })
})

it.each([
  ['timestamptz(0)', new Date('2030-01-01T00:00:00.700Z')],
  ['timestamptz(0)', '2030-01-01 00:00:00.7+00'],
  ['timestamp(0)', '2030-01-01 00:00:00.7'],
  ['time(1)', '12:00:00.77'],
  ['interval second(0)', '1.7 seconds'],
  ['numeric(5,2)', '1.239'],
  ['numeric(5,2)[]', ['1.239']],
  ['varchar(3)', 'ann'],
  ['char(3)', 'a'],
  ['bit(3)', '101'],
  ['{shop}.price', '1.239'],
])('a key that its column rounds, %s, is found as it was rounded', async (type, id) => {
  await withClient(async (tx) => {
    await tx.query(
      `create domain {shop}.cents as numeric(5, 2); create domain {shop}.price as {shop}.cents;
       create table {shop}.rounded (id ${type} primary key, n int)`.replaceAll('{shop}', fixture.shop),
    )
    const first = await fixture.dibs.rows.insertOnce(at('rounded'), ['id'], { id, n: 1 }, { tx })
    expect(first.created).toBe(true)
    expect(await fixture.dibs.rows.insertOnce(at('rounded'), ['id'], { id, n: 2 }, { tx })).toEqual({
      created: false,
      row: first.row,
    })
  })
})

it('a key that a trigger changes is not found, and the error does not say why for sure', async () => {
  await withClient(async (tx) => {
    await tx.query(
      `create table {shop}.lowered (id text primary key);
       create function {shop}.lower_it() returns trigger language plpgsql as $$ begin new.id := lower(new.id); return new; end $$;
       create trigger t before insert on {shop}.lowered for each row execute function {shop}.lower_it()`.replaceAll(
        '{shop}',
        fixture.shop,
      ),
    )
    const ask = (id: string) => fixture.dibs.rows.insertOnce(at('lowered'), ['id'], { id }, { tx })
    expect(await ask('Ann')).toEqual({ created: true, row: { id: 'ann' } })
    const error = await ask('Ann').catch((error) => error)
    expect(error).toBeInstanceOf(NotWrittenError)
    expect(error.message).toContain('It may be that a trigger')
    expect(await ask('ann')).toMatchObject({ created: false })
  })
})

describe('while another inserts it', () => {
  it('waits, and is given what the other has made', async () => {
    await withClient(async (other) => {
      await insert(other, { name: 'theirs' })
      await withClient(async (ours) => {
        const waiting = insert(ours, { name: 'ours' })
        await fixture.blocked(ours)
        await other.query('commit')
        expect(await waiting).toMatchObject({ created: false, row: { name: 'theirs' } })
      })
    })
  })

  it('waits, and makes it where the other has not', async () => {
    await withClient(async (other) => {
      await insert(other, { name: 'theirs' })
      await withClient(async (ours) => {
        const waiting = insert(ours, { name: 'ours' })
        await fixture.blocked(ours)
        await other.query('rollback')
        expect(await waiting).toMatchObject({ created: true, row: { name: 'ours' } })
      })
    })
  })

  it('waits no longer than it may, and says who may be in the way', async () => {
    await withClient(async (other) => {
      await insert(other)
      const { rows } = await other.query('select pg_backend_pid() as pid')
      await withClient(async (ours) => {
        const error = await insert(ours, {}, ['email'], { waitMs: 10 }).catch((error) => error)
        expect(error).toBeInstanceOf(BusyError)
        expect(error.blockers).toMatchObject([{ pid: rows[0].pid, isSure: false }])
        expect(await insert(ours, { email: 'bob' })).toMatchObject({ created: true })
      })
    })
  })

  it('is a conflict at repeatable read, where it cannot be seen', async () => {
    const asked = fixture.dibs.transaction(
      async (tx) => {
        await tx.query(`select from ${at('users')}`)
        await insert(undefined)
        return await insert(tx)
      },
      { isolation: 'repeatable read', maxAttempts: 1 },
    )
    await expect(asked).rejects.toThrow(ConflictError)
    const again = fixture.dibs.transaction((tx) => insert(tx), { isolation: 'repeatable read' })
    expect(await again).toMatchObject({ created: false })
  })
})

it('another unique index that forbids the row is an error of its own', async () => {
  await insert(undefined, { tenant: 1, code: 'x' })
  const asked = insert(undefined, { tenant: 1, code: 'x', email: 'bob' })
  await expect(asked).rejects.toThrow(ConstraintViolationError)
})

describe('refused before it is sent', () => {
  it.each([
    ['conflictColumns', ['name'], {}, 'not (name). Unique indexes: (id), (email), (tenant, code)'],
    ['conflictColumns', ['tenant'], { tenant: 1 }, 'must be all columns of a unique index'],
    ['conflictColumns', ['nick'], { nick: 'x' }, 'is not deferrable, not (nick)'],
    ['conflictColumns', [], {}, 'not an empty list'],
    ['conflictColumns', 'email', {}, 'not a string'],
    ['conflictColumns', ['mail'], {}, 'Did you mean email?'],
    ['row.email', ['email'], { email: null }, 'this column identifies the row'],
    ['row.tenant', ['tenant', 'code'], { code: 'x' }, 'must be given, and not null'],
    ['row.id', ['email'], { id: 5 }, 'the database makes it'],
    ['row.shout', ['email'], { shout: 'X' }, 'the database makes it'],
    ['row.tenant', ['email'], { tenant: 'x' }, 'must be a whole number'],
    ['row.emil', ['email'], { emil: 'x' }, 'Did you mean email?'],
  ])('%s', async (field, columns, row, problem) => {
    const error = await insert(undefined, row, columns).catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.field).toBe(field)
    expect(error.message).toContain(problem)
  })

  it('a table without a unique index', async () => {
    const asked = fixture.dibs.rows.insertOnce(at('plain'), ['n'], { n: 1 })
    await expect(asked).rejects.toThrow('not (n). Unique indexes: none')
    await expect(fixture.dibs.rows.insertOnce(at('plain'), ['n'], 1 as never)).rejects.toThrow(
      '`row` must be an object',
    )
  })
})
