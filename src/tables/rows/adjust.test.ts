import { describe, expect, it } from 'vitest'
import { realTime } from '../../../test/real-time.js'
import { openTables } from '../../../test/tables/open-tables.js'
import { BusyError, InsufficientError, InvalidInputError, NotFoundError } from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'
import { countTraffic } from '../../testing/index.js'

/** A scale below 0 came with PostgreSQL 15. */
const hasRound = process.env.DIBS_TEST_ON !== 'postgres-14'

const fixture = openTables(
  `create domain {shop}.money as numeric(12, 2) check (value < 1000000);
   create domain {shop}.price as {shop}.money;
   create table {shop}.stock (
     id int primary key, left_over int, small smallint default 32000, big bigint default 9007199254740993,
     exact numeric default 0.1, price numeric(6, 2) default 10, cash {shop}.money default 0, round ${hasRound ? 'numeric(4, -2)' : 'numeric'} default 0, deep {shop}.price default 0,
     nothing numeric default 'NaN', endless numeric default 'Infinity', bottomless numeric default '-Infinity',
     rough double precision default 0, twice int generated always as (left_over * 2) stored
   )`,
  'insert into {shop}.stock (id, left_over) values (1, 5), (2, null)',
)
const { at, withClient } = fixture
const adjust = (column: string, delta: unknown, options: object = {}, tx?: Tx, id = 1) =>
  fixture.dibs.rows.adjust(at('stock'), id, { [column]: delta as number }, { ...options, tx })

describe('an amount', () => {
  it.runIf(hasRound)('of whole hundreds is one', async () => {
    expect(await adjust('round', 300)).toMatchObject({ round: '300' })
    await expect(adjust('round', 1_000_000)).rejects.toMatchObject({
      code: 'DIBS_INSUFFICIENT',
      current: '300',
    })
    await expect(adjust('round', 150)).rejects.toThrow(/must be a multiple of 100/)
  })

  it.each([
    ['left_over', -5, {}, { left_over: 0 }],
    ['left_over', '7', {}, { left_over: 12 }],
    ['left_over', -6, { min: -1 }, { left_over: -1 }],
    ['left_over', -60, { min: null }, { left_over: -55 }],
    ['left_over', 5, { max: 10 }, { left_over: 10 }],
    ['big', 2n, {}, { big: '9007199254740995' }],
    ['exact', '0.2', {}, { exact: '0.3' }],
    ['exact', 0.2, {}, { exact: '0.3' }],
    ['exact', '-0.10', {}, { exact: '0.0' }],
    ['price', '-9.99', { min: '0.01' }, { price: '0.01' }],
    ['cash', '12.50', {}, { cash: '12.50' }],
    ['deep', '12.50', {}, { deep: '12.50' }],
  ])('%s changes by %s', async (column, delta, options, expected) => {
    expect(await adjust(column, delta, options)).toMatchObject(expected)
  })

  it.each([
    ['left_over', -6, {}, { current: '5', delta: '-6', min: '0', max: null }],
    ['left_over', 6, { max: '10' }, { current: '5', delta: '6', min: '0', max: '10' }],
    ['left_over', 2n ** 31n, {}, { current: '5', delta: '2147483648' }],
    ['small', 1000, {}, { current: '32000' }],
    ['big', 2n ** 63n - 1n, {}, { current: '9007199254740993' }],
    ['price', 9990, {}, { current: '10.00', delta: '9990' }],
    ['exact', '-0.11', {}, { current: '0.1', delta: '-0.11', min: '0' }],
    ['deep', 10n ** 10n, {}, { current: '0.00' }],
    ['nothing', 1, {}, { current: 'NaN' }],
    ['nothing', -1, { min: null }, { current: 'NaN' }],
    ['endless', -1, {}, { current: 'Infinity' }],
    ['endless', 1, { min: null }, { current: 'Infinity' }],
    ['bottomless', 1, { min: null, max: 5 }, { current: '-Infinity' }],
  ])('%s does not change by %s beyond its bounds', async (column, delta, options, expected) => {
    const before = await fixture.rows('stock')
    const error = await adjust(column, delta, options).catch((error) => error)
    expect(error).toBeInstanceOf(InsufficientError)
    expect(error).toMatchObject({
      ...expected,
      code: 'DIBS_INSUFFICIENT',
      status: 409,
      retryable: false,
      column,
    })
    expect(await fixture.rows('stock')).toEqual(before)
  })

  it('says what is there', async () => {
    await expect(adjust('left_over', -6, { max: 9 })).rejects.toThrow(
      `Column "left_over" of row 1 of table "${at('stock')}" is 5 and cannot change by -6. It must be at least 0 and at most 9. Nothing was changed.`,
    )
  })

  it.each([
    ['small', 1000, 'is 32000 and cannot change by 1000. The column holds -32768 to 32767. Nothing'],
    ['price', 9990, 'is 10.00 and cannot change by 9990. The column holds -9999.99 to 9999.99. Nothing'],
    [
      'nothing',
      1,
      'is NaN and cannot change by 1. Nothing can be added to a value that is not a finite number.',
    ],
  ])('says why, of %s', async (column, delta, words) => {
    await expect(adjust(column, delta)).rejects.toThrow(words)
    await expect(adjust('left_over', 1, {}, undefined, 2)).rejects.toThrow('Nothing can be added to null.')
  })

  it('that is null cannot be added to', async () => {
    const asked = adjust('left_over', 1, { min: null }, undefined, 2)
    await expect(asked).rejects.toMatchObject({ code: 'DIBS_INSUFFICIENT', current: null })
    // Without bounds, those of a type included.
    await fixture.pool.query(`update ${at('stock')} set exact = null where id = 2`)
    const exact = adjust('exact', 1, { min: null }, undefined, 2)
    await expect(exact).rejects.toMatchObject({ code: 'DIBS_INSUFFICIENT', current: null })
  })

  it('is changed one after the other', async () => {
    const takes = await Promise.allSettled(Array.from({ length: 8 }, () => adjust('left_over', -1)))
    expect(takes.filter(({ status }) => status === 'fulfilled')).toHaveLength(5)
    expect((await fixture.rows('stock'))[0]).toMatchObject({ left_over: 0 })
  })

  it('lives and dies with the transaction, which a refusal leaves alive', async () => {
    await withClient(async (tx) => {
      await adjust('left_over', -4, {}, tx)
      await expect(adjust('left_over', -4, {}, tx)).rejects.toThrow(InsufficientError)
      expect(await adjust('left_over', -1, {}, tx)).toMatchObject({ left_over: 0 })
    })
    expect((await fixture.rows('stock'))[0]).toMatchObject({ left_over: 5 })
  })

  it(
    'gives the transaction its own timeouts back, and ends before the one for a statement',
    realTime,
    async () => {
      await withClient(async (other) => {
        await adjust('left_over', -1, {}, other)
        await withClient(async (ours) => {
          await ours.query("set local lock_timeout = '7s'; set local statement_timeout = '5s'")
          const error = await adjust('left_over', -1, { waitMs: 10_000 }, ours).catch((error) => error)
          expect(error).toBeInstanceOf(BusyError)
          expect(error.waitedMs).toBeLessThan(5_500)
          await adjust('small', -1, {}, ours, 2)
          expect((await ours.query('show lock_timeout')).rows).toEqual([{ lock_timeout: '7s' }])
        })
      })
    },
  )

  it('takes one round trip', async () => {
    await adjust('left_over', -1)
    expect(await countTraffic(fixture.pool, () => adjust('left_over', -1))).toMatchObject({
      roundTrips: 1,
      commits: 1,
    })
  })
})

it('a row that is not there is NotFoundError, one that is locked for too long BusyError', async () => {
  await expect(adjust('left_over', 1, {}, undefined, 9)).rejects.toThrow(NotFoundError)
  await withClient(async (other) => {
    await adjust('left_over', -1, {}, other)
    await expect(adjust('left_over', -1, { waitMs: 10 })).rejects.toThrow(BusyError)
  })
})

describe('several columns', () => {
  const change = (amounts: Record<string, number>) => fixture.dibs.rows.adjust(at('stock'), 1, amounts)

  it('change together', async () => {
    expect(await change({ left_over: -2, small: 5 })).toMatchObject({ left_over: 3, small: 32_005 })
  })

  it.each([
    [
      { left_over: -6, small: 1 },
      { column: 'left_over', current: '5', delta: '-6' },
    ],
    [
      { left_over: -1, small: 1_000 },
      { column: 'small', current: '32000', delta: '1000' },
    ],
    [
      { left_over: -1, nothing: 1 },
      { column: 'nothing', current: 'NaN' },
    ],
  ])('change all or none: %j', async (amounts, refusal) => {
    const error = await change(amounts as never).catch((thrown) => thrown)
    expect(error).toBeInstanceOf(InsufficientError)
    expect(error).toMatchObject(refusal)
    expect(await fixture.rows('stock', 'left_over, small')).toMatchObject([
      { left_over: 5, small: 32_000 },
      {},
    ])
  })

  it('are named: none is refused', async () => {
    await expect(change({})).rejects.toThrow('`change` must name at least one column')
  })
})

describe('refused before it is sent', () => {
  it.each([
    ['change.left_over', 'left_over', 0, {}, 'must not be 0'],
    ['change.left_over', 'left_over', '0.00', {}, 'must not be 0'],
    ['change.left_over', 'left_over', Number.NaN, {}, 'given exactly'],
    ['change.left_over', 'left_over', Number.POSITIVE_INFINITY, {}, 'given exactly'],
    ['change.exact', 'exact', 2 ** 53, {}, 'given exactly'],
    ['change.exact', 'exact', 1e-7, {}, 'given exactly'],
    ['change.exact', 'exact', '1e3', {}, 'given exactly'],
    ['change.left_over', 'left_over', undefined, {}, 'given exactly'],
    ['change.left_over', 'left_over', '0.5', {}, 'at most 0 digits behind the point'],
    ['change.price', 'price', '0.001', {}, 'at most 2 digits behind the point'],
    ['change.cash', 'cash', '0.001', {}, 'at most 2 digits behind the point'],
    ['change.deep', 'deep', '0.001', {}, 'at most 2 digits behind the point'],
    ['min', 'left_over', 1, { min: 5, max: 4 }, 'must not be more than `max`: 5 > 4'],
    ['min', 'left_over', 1, { min: '0.30', max: '0.3' }, undefined],
    ['max', 'left_over', 1, { max: 'much' }, 'given exactly'],
    ['change.rough', 'rough', 1, {}, 'must hold exact numbers'],
    ['change.twice', 'twice', 1, {}, 'which the database makes'],
    ['change.id', 'id', 1, {}, 'this column identifies the row'],
    ['change.left', 'left', 1, {}, 'Expected one of: id, left_over'],
    ['most', 'left_over', 1, { most: 5 }, 'Unknown option'],
  ])('%s of %s: %s', async (field, column, delta, options, problem) => {
    const error = await adjust(column, delta, options).catch((error) => error)
    if (problem === undefined) return expect(error).toBeInstanceOf(InsufficientError)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.field).toBe(field)
    expect(error.message).toContain(problem)
  })
})
