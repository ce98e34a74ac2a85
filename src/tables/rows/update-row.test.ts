import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import {
  BusyError,
  ConflictError,
  InvalidInputError,
  NotFoundError,
  NotInTransactionError,
} from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'
import { countTraffic } from '../../testing/index.js'

const fixture = openTables(
  `create table {shop}.orders (id int primary key, note text, tag text, version int not null default 1, twice int generated always as (version * 2) stored);
   create table {shop}.doc (tenant int, id int, body jsonb, rev bigint, primary key (tenant, id));
   create table {shop}.loose (id int primary key, version numeric)`,
  `insert into {shop}.orders (id, note, tag) values (1, 'first', 'a'), (2, 'second', 'b');
   insert into {shop}.doc values (1, 1, '{}', 9007199254740993), (1, 2, '{}', null)`,
)
const { at, withClient } = fixture
const update = (
  tx: Tx | undefined,
  version: unknown,
  patch: object = { note: 'new' },
  options: object = {},
) =>
  fixture.dibs.rows.update(
    at('orders'),
    { id: 1, version: version as number },
    { ...patch },
    { ...options, tx },
  )

describe('a row with the version that was read', () => {
  it('is written, and its version grows', async () => {
    expect(await update(undefined, 1)).toEqual({ id: 1, note: 'new', tag: 'a', version: 2, twice: 4 })
    expect(await update(undefined, 2, { note: null })).toMatchObject({ note: null, version: 3 })
    expect((await fixture.rows('orders'))[1]).toMatchObject({ note: 'second', version: 1 })
  })

  it('lives and dies with the transaction', async () => {
    await withClient(async (tx) => {
      expect(await update(tx, 1)).toMatchObject({ version: 2 })
      expect(await update(tx, 2)).toMatchObject({ version: 3 })
    })
    expect((await fixture.rows('orders'))[0]).toMatchObject({ note: 'first', version: 1 })
  })

  it('may have a key of several columns, and a version of any size', async () => {
    const id = { id: 1, tenant: 1 }
    const written = await fixture.dibs.rows.update(
      at('doc'),
      { id, version: 9007199254740993n },
      { body: { deep: ['"', null] } },
      { versionColumn: 'rev' },
    )
    expect(written).toEqual({ tenant: 1, id: 1, body: { deep: ['"', null] }, rev: '9007199254740994' })
    expect((await fixture.rows('doc'))[1]).toMatchObject({ body: {}, rev: null })
  })
})

describe('a row with another version', () => {
  it('is ConflictError, which says which', async () => {
    const error = await update(undefined, 7).catch((error) => error)
    expect(error).toBeInstanceOf(ConflictError)
    expect(error).toMatchObject({
      expected: 7,
      current: 1,
      retryable: true,
      subject: `row 1 of table "${at('orders')}"`,
    })
    expect((await fixture.rows('orders'))[0]).toMatchObject({ note: 'first', version: 1 })
  })

  it('is ConflictError where it has none', async () => {
    const asked = fixture.dibs.rows.update(
      at('doc'),
      { id: { tenant: 1, id: 2 }, version: 1 },
      { body: 1 },
      { versionColumn: 'rev' },
    )
    await expect(asked).rejects.toThrow('Expected version 1, found none. (column "rev" is null)')
  })

  it('is told exactly where it is more than a number can say', async () => {
    await fixture.pool.query(
      `create table ${at('counted')} (id int primary key, version bigint, n int); insert into ${at('counted')} values (1, 9007199254740995)`,
    )
    const asked = fixture.dibs.rows.update(at('counted'), { id: 1, version: '9007199254740993' }, { n: 1 })
    await expect(asked).rejects.toThrow('(exactly: 9007199254740993 and 9007199254740995)')
    await fixture.pool.query(`drop table ${at('counted')}`)
  })

  it('makes dibs.transaction run again, which reads it anew', async () => {
    let runs = 0
    const written = await fixture.dibs.transaction(async (tx) => {
      const { rows } = await tx.query<{ version: number }>(`select version from ${at('orders')} where id = 1`)
      if (++runs === 1) await fixture.pool.query(`update ${at('orders')} set version = 5 where id = 1`)
      return await update(tx, rows[0]?.version)
    })
    expect([runs, written]).toMatchObject([2, { version: 6 }])
  })

  it('leaves the transaction alive, and the row to others', async () => {
    await withClient(async (other) => {
      await other.query(`update ${at('orders')} set version = 5 where id = 1`)
      await withClient(async (ours) => {
        const waiting = update(ours, 1).catch((error) => error)
        await fixture.blocked(ours)
        await other.query('commit')
        expect(await waiting).toMatchObject({ code: 'DIBS_CONFLICT', expected: 1, current: 5 })
        await withClient(async (third) => {
          const free = await third.query(`select from ${at('orders')} where id = 1 for update skip locked`)
          expect(free.rowCount).toBe(1)
        })
        expect(await update(ours, 5)).toMatchObject({ version: 6 })
      })
    })
  })

  it('is the conflict of PostgreSQL at repeatable read', async () => {
    const asked = fixture.dibs.transaction(
      async (tx) => {
        await tx.query(`select from ${at('orders')}`)
        await fixture.pool.query(`update ${at('orders')} set version = 5 where id = 1`)
        return await update(tx, 1)
      },
      { isolation: 'repeatable read', maxAttempts: 1 },
    )
    await expect(asked).rejects.toMatchObject({ code: 'DIBS_CONFLICT', sqlState: '40001' })
  })
})

it('a row that is not there is NotFoundError', async () => {
  const asked = fixture.dibs.rows.update(at('orders'), { id: 9, version: 1 }, { note: '' })
  await expect(asked).rejects.toThrow(NotFoundError)
})

it('a wait that ends is BusyError', async () => {
  await withClient(async (other) => {
    await other.query(`update ${at('orders')} set note = '' where id = 1`)
    const error = await update(undefined, 1, {}, { waitMs: 10 }).catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    const busy = await update(undefined, 1, { note: 'x' }, { waitMs: 10 }).catch((error) => error)
    expect(busy).toBeInstanceOf(BusyError)
    expect(busy.blockers).toMatchObject([{ isSure: true }])
  })
})

it('takes one round trip', async () => {
  await update(undefined, 1)
  expect(await countTraffic(fixture.pool, () => update(undefined, 2))).toMatchObject({
    roundTrips: 1,
    commits: 1,
  })
  expect(await countTraffic(fixture.pool, () => update(undefined, 1).catch(() => 'refused'))).toMatchObject({
    roundTrips: 1,
  })
})

describe('refused before it is sent', () => {
  it.each([
    ['patch', 1, {}, {}, 'must not be empty'],
    ['patch.nte', 1, { nte: 'x' }, {}, 'Did you mean note? Expected one of: id, note, tag, version, twice'],
    ['patch.note', 1, { note: undefined }, {}, 'must not be undefined'],
    ['patch.note', 1, { note: 5 }, {}, 'must be a text, not 5'],
    ['patch.id', 1, { id: 5 }, {}, 'it identifies the row'],
    ['patch.version', 1, { version: 5 }, {}, 'it is the version, which grows by itself'],
    ['patch.twice', 1, { twice: 5 }, {}, 'the database makes it'],
    ['version', undefined, { note: '' }, {}, 'must not be undefined'],
    ['version', 'one', { note: '' }, {}, 'must be a whole number from'],
    ['version', Number.NaN, { note: '' }, {}, 'must be a whole number from'],
    ['versionColumn', 1, { note: '' }, { versionColumn: 'revision' }, 'names the column "revision"'],
    ['versionColumn', 1, { note: '' }, { versionColumn: 'tag' }, 'must be a column of whole numbers'],
    ['waitMs', 1, { note: '' }, { waitMs: -1 }, 'must be a whole number of milliseconds from 0'],
    ['wait', 1, { note: '' }, { wait: 1 }, 'Unknown option'],
  ])('%s', async (field, version, patch, options, problem) => {
    const error = await update(undefined, version, patch, options).catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.field).toBe(field)
    expect(error.message).toContain(problem)
  })

  it('with 400 for a value that a client may have sent, and with 500 for a mistake in the call', async () => {
    const statusOf = async (version: unknown, patch: object, options: object = {}) =>
      (await update(undefined, version as never, patch, options).catch((error) => error)).status
    expect(await statusOf('one', { note: '' })).toBe(400)
    expect(await statusOf(1, { note: 5 })).toBe(400)
    expect(await statusOf(1, { note: 'a\0' })).toBe(400)
    expect(await statusOf(1, {})).toBe(500)
    expect(await statusOf(1, { nte: 'x' })).toBe(500)
    expect(await statusOf(1, { note: undefined })).toBe(500)
    expect(await statusOf(1, { note: '' }, { wait: 1 })).toBe(500)
  })

  it('what is no object, no id, or no transaction', async () => {
    const { update: updateRow } = fixture.dibs.rows
    await expect(updateRow(at('orders'), 1 as never, {})).rejects.toThrow('`at` must be { id, version }')
    await expect(
      updateRow(at('doc'), { id: 1, version: 1 }, { body: 1 }, { versionColumn: 'rev' }),
    ).rejects.toThrow('has 2 columns. Unique indexes: ')
    await expect(update(undefined, 1, [] as never)).rejects.toThrow(InvalidInputError)
    await expect(update(fixture.pool as never, 1)).rejects.toThrow(NotInTransactionError)
    await expect(updateRow(at('loose'), { id: 1, version: 1 }, { version: 1 })).rejects.toThrow(
      'must be a column of whole numbers',
    )
  })
})
