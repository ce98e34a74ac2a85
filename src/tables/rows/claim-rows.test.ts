import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { BusyError, DatabaseError, InvalidInputError, NotInTransactionError } from '../../errors.js'
import { countTraffic } from '../../testing/index.js'
import type { ClaimRowsOptions } from './claim-rows.js'

const fixture = openTables(
  `create table {shop}.mail (
     id int primary key, kind text not null default 'a', priority int, sent_at timestamptz, code uuid, tags text[], size numeric,
     lease_until timestamptz, fence bigint, holder text, tries int, plain timestamp, small int, coarse timestamptz(0)
   );
   create table {shop}.part (tenant int, id int, state text, primary key (tenant, id));
   create table {shop}.bare (n int)`,
  `insert into {shop}.mail (id, kind, priority) values (1, 'a', 3), (2, 'b', 1), (3, 'a', null), (4, 'a', 2), (5, 'c', 2);
   insert into {shop}.part values (1, 1, 'new'), (1, 2, 'new'), (2, 1, 'old')`,
)
const { at, withClient } = fixture
type Mail = { id: number; fence: string; lease_until: Date; holder: string; tries: number; sent_at: Date }
const claim = (options: ClaimRowsOptions) => fixture.dibs.rows.claim<Mail>(at('mail'), options)
const ids = (rows: readonly { id: number }[]) => rows.map(({ id }) => id)
const sent = { sent_at: new Date('2030-01-01') }
const leased = { leaseColumn: 'lease_until', fenceColumn: 'fence' } as const

describe('which rows', () => {
  it.each(['dibs_l', 'dibs_p', 'dibs_w'])(
    'of a table that is called as a part of the statement: %s',
    async (name) => {
      await withClient(async (tx) => {
        await tx.query(
          `set local search_path = ${fixture.shop}; create table ${name} (id int primary key, by text); insert into ${name} values (7)`,
        )
        expect(await fixture.dibs.rows.claim(name, { tx, set: { by: 'ann' } })).toEqual([
          { id: 7, by: 'ann' },
        ])
      })
    },
  )

  it.each([
    ['one, by the key', {}, [1]],
    ['as many as asked for, by the key', { limit: 3 }, [1, 2, 3]],
    ['in an order', { order: 'priority', limit: 10 }, [2, 4, 5, 1, 3]],
    [
      'in another order',
      { order: [{ column: 'priority', descending: true, nulls: 'last' } as const], limit: 10 },
      [1, 4, 5, 2, 3],
    ],
    [
      'by several columns',
      { order: ['kind', { column: 'id', descending: true }], limit: 10 },
      [4, 3, 1, 2, 5],
    ],
    ['with a value', { where: { kind: 'a' }, limit: 10 }, [1, 3, 4]],
    ['with one of several', { where: { kind: ['b', 'c'] }, limit: 10 }, [2, 5]],
    ['without a value', { where: { priority: null }, limit: 10 }, [3]],
    ['by several columns at once', { where: { kind: 'a', priority: 2 }, limit: 10 }, [4]],
    ['none', { where: { kind: [] }, limit: 10 }, []],
    ['by SQL', { where: { sql: 'priority < $1 or kind = $2', values: [2, 'c'] }, limit: 10 }, [2, 5]],
    ['by SQL with a name of the table', { where: { sql: 'mail.priority = 3 -- the first' } }, [1]],
    [
      'by SQL with a list',
      { where: { sql: 'kind = any ($1) and id <> $2', values: [['a'], 1n] }, limit: 9 },
      [3, 4],
    ],
    [
      'by SQL with casts',
      { where: { sql: 'id = $1::int and code is not distinct from $2::uuid', values: ['2', null] } },
      [2],
    ],
    [
      'by SQL that holds a dollar',
      {
        where: {
          sql: `'$1' = $2 and $$$1$$ = $2 and $a$$1$a$ = $2 and E'\\'$1' = $3 and "kind" <> '' /* $9 */ and id = $1 -- $8`,
          values: [3, '$1', "'$1"],
        },
      },
      [3],
    ],
    [
      'by SQL with every kind of value',
      {
        where: {
          sql: 'id > $1 and (size is null or size > $2) and ($3 or sent_at > $4) and id < $5',
          values: [0, 1.5, true, new Date(), 2n ** 70n],
        },
      },
      [1],
    ],
  ])('%s', async (_, options, expected) => {
    expect(ids(await claim({ set: sent, ...options }))).toEqual(expected)
    const written = (await fixture.rows('mail')).filter(({ sent_at }) => sent_at !== null)
    expect(ids(written as Mail[])).toEqual([...expected].sort((one, other) => one - other))
  })

  it('by a key of several columns', async () => {
    const set = { state: 'taken' }
    const rows = await fixture.dibs.rows.claim(at('part'), { where: { state: 'new' }, set, limit: 10 })
    expect(rows).toEqual([
      { tenant: 1, id: 1, state: 'taken' },
      { tenant: 1, id: 2, state: 'taken' },
    ])
    expect((await fixture.rows('part', 'tenant, id'))[2]).toMatchObject({ state: 'old' })
  })

  it('never what another has locked, and nobody is waited for', async () => {
    await withClient(async (other) => {
      await other.query(`select from ${at('mail')} where id in (1, 3) for no key update`)
      expect(ids(await claim({ set: sent, limit: 3 }))).toEqual([2, 4, 5])
    })
  })

  it('never what has changed since so that it is not wanted any more', async () => {
    const all = await Promise.all(
      Array.from({ length: 8 }, () => claim({ where: { sent_at: null }, set: sent, limit: 1 })),
    )
    expect(ids(all.flat()).toSorted()).toEqual([1, 2, 3, 4, 5])
  })
})

describe('a lease', () => {
  it('keeps a row until it has run out, by the clock of the database', async () => {
    const NOW = new Date('2030-01-01T00:00:00Z')
    await fixture.schema.clock.freeze(NOW)
    const [first] = await claim({ ...leased, leaseMs: 1_000, where: { kind: 'b' } })
    expect(first).toMatchObject({ id: 2, lease_until: new Date('2030-01-01T00:00:01Z') })
    expect(Number(first?.fence)).toBe(NOW.getTime() * 1000)
    expect(await claim({ ...leased, where: { kind: 'b' } })).toEqual([])
    await fixture.schema.clock.advance(999)
    expect(await claim({ ...leased, where: { kind: 'b' } })).toEqual([])
    await fixture.schema.clock.advance(1)
    const [second] = await claim({ ...leased, where: { kind: 'b' } })
    expect(second).toMatchObject({ lease_until: new Date('2030-01-01T00:01:01Z') })
    expect(Number(second?.fence)).toBeGreaterThan(Number(first?.fence))
  })

  it('grows its fence also where the clock has gone back', async () => {
    await fixture.schema.clock.freeze(new Date('2030-01-01'))
    const [first] = await claim({ fenceColumn: 'fence' })
    await fixture.schema.clock.freeze(new Date('2029-01-01'))
    const [second] = await claim({ fenceColumn: 'fence' })
    expect([first?.id, second?.id]).toEqual([1, 1])
    expect(Number(second?.fence)).toBe(Number(first?.fence) + 1)
  })

  it('notes who has it, and how often it was taken', async () => {
    const options = { holderColumn: 'holder', holder: 'pod-1', attemptsColumn: 'tries' }
    expect(await claim(options)).toMatchObject([{ id: 1, holder: 'pod-1', tries: 1 }])
    expect(await claim({ ...options, holder: 'pod-2', set: { kind: 'x' } })).toMatchObject([
      { id: 1, holder: 'pod-2', tries: 2, kind: 'x' },
    ])
  })
})

describe('in a transaction', () => {
  it('lives and dies with it, and others do not see the rows meanwhile', async () => {
    await withClient(async (tx) => {
      expect(ids(await claim({ ...leased, tx, limit: 2 }))).toEqual([1, 2])
      expect(ids(await claim({ set: sent, limit: 2 }))).toEqual([3, 4])
    })
    expect(ids(await claim({ ...leased, limit: 2 }))).toEqual([1, 2])
  })

  it('may write nothing: its rows are locked until it ends', async () => {
    await withClient(async (tx) => {
      const where = { kind: ['a', 'b'] }
      const options = {
        tx,
        where,
        order: { column: 'priority', descending: true, nulls: 'last' } as const,
        limit: 2,
      }
      expect(ids(await claim(options))).toEqual([1, 4])
      expect(ids(await claim({ set: sent, where, limit: 9 }))).toEqual([2, 3])
    })
  })

  it('sees what was committed while it looked', async () => {
    await withClient(async (tx) => {
      const [row] = await claim({ tx, where: { id: 1 } })
      expect(row).toMatchObject({ id: 1, priority: 3 })
      await tx.query('savepoint s')
      await expect(claim({ tx, where: { sql: 'nope = 1' } })).rejects.toThrow(DatabaseError)
      expect(await claim({ tx, where: { id: 2 } })).toMatchObject([{ id: 2 }])
    })
  })
})

it('takes one round trip', async () => {
  await claim({ set: sent })
  expect(await countTraffic(fixture.pool, () => claim({ set: sent }))).toMatchObject({
    roundTrips: 1,
    commits: 1,
  })
})

it('waits no longer than it may for the table', async () => {
  await claim({ set: sent })
  await withClient(async (other) => {
    await other.query(`lock table ${at('mail')} in access exclusive mode`)
    const error = await claim({ set: sent, waitMs: 10 }).catch((error) => error)
    expect(error).toBeInstanceOf(BusyError)
    expect(error).toMatchObject({ subject: `table "${at('mail')}"`, blockers: [{ isSure: false }] })
  })
})

describe('refused before it is sent', () => {
  it.each([
    ['limit', { limit: 0 }, 'must be a whole number from 1 to 1000, not 0'],
    ['limit', { limit: 1001 }, 'from 1 to 1000'],
    ['limit', { limit: 1.5 }, 'from 1 to 1000'],
    ['set', {}, 'must be given, or `leaseColumn`, or `tx`'],
    ['set.id', { set: { id: 1 } }, 'it identifies the row'],
    ['set.sent', { set: { sent: null } }, 'Did you mean'],
    ['set.fence', { set: { fence: 1 }, fenceColumn: 'fence' }, '`fenceColumn` sets it'],
    ['set.lease_until', { set: { lease_until: null }, leaseColumn: 'lease_until' }, '`leaseColumn` sets it'],
    ['leaseMs', { leaseMs: 1 }, 'needs `leaseColumn`'],
    ['leaseMs', { leaseMs: 0, leaseColumn: 'lease_until' }, 'must be a whole number of milliseconds'],
    ['leaseColumn', { leaseColumn: 'plain' }, 'must be of the type timestamptz'],
    ['leaseColumn', { leaseColumn: 'coarse' }, 'keep milliseconds; "coarse" is pg_catalog.timestamptz(0)'],
    ['leaseColumn', { leaseColumn: 'lease' }, 'names the column "lease"'],
    ['fenceColumn', { fenceColumn: 'small' }, 'must be of the type bigint'],
    ['attemptsColumn', { attemptsColumn: 'kind' }, 'must be of the type smallint, integer or bigint'],
    ['holder', { holderColumn: 'holder' }, 'must be given with the other'],
    ['holderColumn', { holder: 'x' }, 'must be given with the other'],
    ['holder', { holderColumn: 'small', holder: 'x' }, 'must be a whole number'],
    ['order', { set: sent, order: 'prio' }, 'names the column "prio"'],
    ['order[0]', { set: sent, order: [1] }, 'must be a column, or { column, descending, nulls }'],
    ['order.nulls', { set: sent, order: { column: 'id', nulls: 'none' } }, "must be 'first' or 'last'"],
    ['where', { set: sent, where: 'id = 1' }, 'must be an object'],
    ['where.id', { set: sent, where: { id: 'x' } }, 'must be a whole number'],
    ['where.kind', { set: sent, where: { kind: ['a', null] } }, 'must not have null among several'],
    ['where.tags', { set: sent, where: { tags: ['a'] } }, 'is a column of arrays'],
    ['where.sql', { set: sent, where: { sql: 'id = $2', values: [1] } }, 'has $2, and there are 1 values'],
    ['where.sql', { set: sent, where: { sql: ' ' } }, 'must not be empty'],
    ['where.values[0]', { set: sent, where: { sql: 'true', values: [1] } }, 'is not used'],
    ['where.values[0]', { set: sent, where: { sql: 'id = $1', values: [{}] } }, 'must be a text'],
    ['where.value', { set: sent, where: { sql: 'true', value: [1] } }, 'is no part of'],
    ['lease', { lease: 1 }, 'Unknown option'],
  ])('%s', async (field, options, problem) => {
    const error = await claim(options as never).catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.field).toBe(field)
    expect(error.message).toContain(problem)
  })

  it('a table without a primary key, and what is no transaction', async () => {
    await expect(fixture.dibs.rows.claim(at('bare'), { set: { n: 1 } })).rejects.toThrow('has no primary key')
    await expect(claim({ set: sent, tx: fixture.pool as never })).rejects.toThrow(NotInTransactionError)
  })
})
