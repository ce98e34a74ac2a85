import { readFileSync } from 'node:fs'
import pg from 'pg'
import { describe, expect, it } from 'vitest'
import { directUrl, freshName, throughPool, until } from '../../../test/database.js'
import { itInDepth } from '../../../test/depth.js'
import { realTime } from '../../../test/real-time.js'
import { parentsAndChildren } from '../../../test/tables/parents-and-children.js'
import { Dibs } from '../../dibs.js'
import {
  BusyError,
  ConflictError,
  ConstraintViolationError,
  InvalidInputError,
  NotFoundError,
  NotWrittenError,
  StateConflictError,
} from '../../errors.js'
import { onEvent } from '../../postgres/events.js'
import { countTraffic } from '../../testing/count-traffic.js'
import type { Aggregate } from './aggregate.js'
import type { AggregateOptions } from './aggregate-spec.js'

const {
  fixture,
  aggregate: made,
  insert,
} = parentsAndChildren({
  columns: ', code text unique, extra int',
  tables: `
    create table {shop}.branch (region text, no int, day date, lines int not null default 0, primary key (region, no, day));
    create table {shop}.line (id int primary key, r text, n int, d date);
    create table {shop}.club (id int primary key, tenant int not null, members int not null default 0);
    create table {shop}.member (club_id int);
    create table {shop}.team (id int primary key, players int not null default 0);
    create table {shop}.player (team_id int);
    create table {shop}.counted (id bigint)`,
})
const aggregate = (over?: Partial<AggregateOptions>, name?: string) => made(over, fixture.dibs, name)

describe('recompute', () => {
  it('counts the children of a parent, and answers it', async () => {
    await insert("(1, 1, 'NEW', 1.5), (2, 1, 'COMPLETED', 2.25), (3, 2, 'NEW', 7)")
    const row = await aggregate().recompute(1)
    expect(row).toMatchObject({ id: '1', total: 2, completed: 1, amount: '3.75', title: null })
    expect(await fixture.rows('parent')).toMatchObject([{ total: 2 }, { total: 0 }, { total: 0 }])
  })

  it('counts several, in the order they were asked for, each as often as that', async () => {
    await insert('(1, 1), (2, 3), (3, 3)')
    const rows = await aggregate().recompute([3n, '1', 2, 3])
    expect(rows.map(({ id, total }) => [id, total])).toEqual([
      ['3', 2],
      ['1', 1],
      ['2', 0],
      ['3', 2],
    ])
  })

  it('is one round trip, once the tables are known', async () => {
    const totals = aggregate()
    await totals.recompute(1)
    const traffic = await countTraffic(fixture.dibs.pool, () => totals.recompute(1))
    expect(traffic.roundTrips).toBe(1)
  })

  it('counts in a transaction what that has written, and goes with it', async () => {
    const totals = aggregate()
    await fixture.withClient(async (tx) => {
      await tx.query(`insert into ${fixture.at('child')} values (1, 1)`)
      expect(await totals.recompute(1, { tx })).toMatchObject({ total: 1 })
    })
    expect(await fixture.rows('parent')).toMatchObject([{ total: 0 }, {}, {}])
  })

  it('says which parents are not there, and leaves the transaction alive', async () => {
    const totals = aggregate()
    await fixture.withClient(async (tx) => {
      await expect(totals.recompute(9, { tx })).rejects.toThrow(NotFoundError)
      await expect(totals.recompute([1, 9, 10], { tx })).rejects.toMatchObject({ id: [9, 10] })
      expect(await totals.recompute(1, { tx })).toMatchObject({ total: 0 })
    })
  })

  it('waits for a parent that another has locked, and says who that is', async () => {
    const totals = aggregate()
    await totals.recompute(1)
    await fixture.withClient(async (tx) => {
      await tx.query(`update ${fixture.at('parent')} set title = 'x' where id = 1`)
      const error = await totals.recompute(1, { waitMs: 50 }).catch((reason) => reason)
      expect(error).toBeInstanceOf(BusyError)
      expect(error.blockers).toMatchObject([{ application: 'shop', isSure: true }])
      await fixture.withClient(async (other) => {
        await expect(totals.recompute(1, { tx: other, waitMs: 20 })).rejects.toThrow(BusyError)
        expect(await totals.recompute(2, { tx: other })).toMatchObject({ total: 0 })
      })
    })
  })

  it('waits for all of them together no longer than it may', realTime, async () => {
    const totals = aggregate()
    await totals.recompute(1)
    await fixture.withClient(async (first) => {
      await first.query(`select from ${fixture.at('parent')} where id = 1 for update`)
      await fixture.withClient(async (second) => {
        await second.query(`select from ${fixture.at('parent')} where id = 2 for update`)
        const startedAt = performance.now()
        const counted = totals.recompute([1, 2], { waitMs: 2_000 }).catch((reason) => reason)
        await first.query('select pg_sleep(1.5)')
        await first.query('rollback')
        expect(await counted).toBeInstanceOf(BusyError)
        expect(performance.now() - startedAt).toBeLessThan(3_200)
      })
    })
  })

  it('is for children whose foreign key is of a smaller type than the key', async () => {
    await fixture.pool.query(`insert into ${fixture.at('parent')} (id) values (3000000000)`)
    await insert('(1, 1)')
    const totals = aggregate()
    expect(await totals.recompute(3_000_000_000)).toMatchObject({ total: 0 })
    expect(await totals.recompute([1, 3_000_000_000n])).toMatchObject([{ total: 1 }, { total: 0 }])
    await totals.markDirty(3_000_000_000)
    expect(await totals.refresh()).toMatchObject({ recomputed: 1, failed: 0 })
  })

  it.each([
    ['numeric', '3e30', '7'],
    ['text', 'north', '7'],
  ])('is for children whose foreign key is a whole number, and the key %s', async (type, other, id) => {
    await fixture.pool.query(
      `create table ${fixture.at('typed')} (id ${type} primary key, total int); insert into ${fixture.at('typed')} values ('${other}'), ('${id}');
       create table ${fixture.at('typed_child')} (parent_id int); insert into ${fixture.at('typed_child')} values (7)`,
    )
    try {
      const totals = aggregate({
        ...{ parent: fixture.at('typed'), child: fixture.at('typed_child') },
        columns: { total: 'count(*)' },
      })
      expect(await totals.recompute([other, id])).toMatchObject([{ total: 0 }, { total: 1 }])
    } finally {
      await fixture.pool.query(`drop table ${fixture.at('typed')}, ${fixture.at('typed_child')}`)
    }
  })

  it('locks several in the order of their key, however the server finds them', async () => {
    const totals = aggregate()
    await totals.recompute(1)
    await fixture.withClient(async (holder) => {
      await holder.query(`select from ${fixture.at('parent')} where id = 1 for update`)
      await fixture.withClient(async (tx) => {
        await tx.query(
          'set local enable_hashjoin = off; set local enable_mergejoin = off; set local enable_seqscan = off',
        )
        const counted = totals.recompute([2, 1], { tx })
        await fixture.blocked(tx)
        const { rowCount } = await fixture.pool.query(
          `select from ${fixture.at('parent')} where id = 2 for update nowait`,
        )
        expect(rowCount).toBe(1)
        await holder.query('rollback')
        expect(await counted).toMatchObject([{ id: '2' }, { id: '1' }])
      })
    })
  })

  it('waits no longer than it may also when it looks at the tables for the first time', async () => {
    await fixture.withClient(async (tx) => {
      await tx.query(`lock table ${fixture.at('child')} in access exclusive mode`)
      const startedAt = performance.now()
      await expect(aggregate().recompute(1, { waitMs: 50 })).rejects.toThrow(BusyError)
      expect(performance.now() - startedAt).toBeLessThan(8_000)
    })
  })

  it('does not wait with waitMs: 0, also when it looks at the tables for the first time', async () => {
    await fixture.withClient(async (tx) => {
      await tx.query(`lock table ${fixture.at('child')} in access exclusive mode`)
      const counts = aggregate()
      for (const call of [
        () => counts.recompute(1, { waitMs: 0 }),
        () => counts.derived('v', { waitMs: 0 }),
      ]) {
        const error = await call().catch((thrown: unknown) => thrown)
        expect(error).toBeInstanceOf(BusyError)
        expect(error).toMatchObject({ waitedMs: 0, message: expect.stringMatching(/^Did not wait for /) })
      }
    })
  })

  it('waits for all that it asks about the tables no longer than it may', realTime, async () => {
    const columns = { total: 'count(*)', completed: 'count(*)', amount: 'count(*)', title: 'max(word)' }
    await fixture.withClient(async (tx) => {
      await tx.query(`lock table ${fixture.at('child')} in access exclusive mode`)
      const startedAt = performance.now()
      await expect(aggregate({ columns }).recompute(1)).rejects.toThrow(BusyError)
      expect(performance.now() - startedAt).toBeLessThan(3_000)
    })
  })

  it('is for keys of several columns, too', async () => {
    await fixture.pool.query(
      `insert into ${fixture.at('branch')} values ('a"b', 1, '2026-01-02'), ('a"b', 1, '2026-01-03');
       insert into ${fixture.at('line')} values (1, 'a"b', 1, '2026-01-02'), (2, 'a"b', 1, '2026-01-02'), (3, 'a"b', 2, '2026-01-02')`,
    )
    const lines = aggregate({
      parent: fixture.at('branch'),
      child: fixture.at('line'),
      foreignKey: ['r', 'n', 'd'],
      columns: { lines: 'count(*)' },
    })
    const id = { region: 'a"b', no: 1, day: '2026-01-02' }
    expect(await lines.recompute(id)).toMatchObject({ lines: 2 })
    await lines.markDirty([id, { ...id, day: '2026-01-03' }])
    expect(await lines.refresh()).toMatchObject({ recomputed: 2, marks: 2 })
    await fixture.pool.query(`update ${fixture.at('branch')} set lines = 7`)
    const { drifted, ...report } = await lines.verify({ batch: 1, repair: true })
    expect(report).toEqual({ checked: 2, driftedCount: 2, repaired: 2, unsettled: 0 })
    expect(drifted[0]).toMatchObject({ id: { no: 1 }, columns: { lines: { stored: '7', derived: '2' } } })
    expect((await fixture.rows('branch', 'day')).map((row) => row.lines)).toEqual([2, 0])
    await expect(lines.recompute('a')).rejects.toThrow(/must name the columns/)
  })

  it('refuses what does not fit the column, and not by cutting it off', async () => {
    await insert("(1, 1, 'NEW', 0, 'abcdefgh')")
    await expect(aggregate({ columns: { title: 'min(word)' } }).recompute(1)).rejects.toMatchObject({
      sqlState: '22001',
    })
  })
})

describe('what is declared', () => {
  const declared = (columns: Record<string, string>, over: Partial<AggregateOptions> = {}) =>
    aggregate({ columns, ...over }).recompute(1)

  it.each<[string, Record<string, string>, RegExp]>([
    ['an expression that does not parse', { total: 'count(*' }, /columns\.total` .*42601.*syntax error/],
    ['two of them', { total: 'count(*), sum(amount)' }, /columns\.total` .*PostgreSQL answered/],
    ['a column that the child does not have', { total: 'count(statsu)' }, /columns\.total` .*statsu/],
    ['a column that only the parent has', { total: 'count(completed)' }, /columns\.total` .*completed/],
    ['no aggregate', { total: 'amount' }, /columns\.total` must be an aggregate/],
    ['a constant', { total: '1' }, /must be an aggregate/],
    ['a type that the column does not take', { total: 'bool_and(true)' }, /columns\.total` .*boolean/],
    ['a column that the parent does not have', { totl: 'count(*)' }, /columns\.totl` .*Did you mean total/],
    ['its key', { id: 'count(*)' }, /columns\.id` .*identifies the row/],
  ])('refuses %s', async (_, columns, message) => {
    const error = await declared(columns).catch((reason) => reason)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.message).toMatch(message)
  })

  it('refuses tables and columns that are not there', async () => {
    await expect(declared({ total: 'count(*)' }, { foreignKey: 'parnet_id' })).rejects.toThrow(
      /foreignKey` .*Did you mean parent_id/,
    )
    await expect(declared({ total: 'count(*)' }, { foreignKey: ['parent_id', 'id'] })).rejects.toThrow(
      /foreignKey` must name 1 of/,
    )
    await expect(declared({ total: 'count(*)' }, { parent: fixture.at('parnt') })).rejects.toThrow(
      /parent` names .*parent/,
    )
    await expect(declared({ total: 'count(*)' }, { child: fixture.at('chld') })).rejects.toThrow(
      /child` names .*child/,
    )
  })

  it('leaves the transaction alive that it is refused in', async () => {
    await fixture.withClient(async (tx) => {
      await expect(aggregate({ columns: { total: 'count(' } }).recompute(1, { tx })).rejects.toThrow(/42601/)
      expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    })
  })

  it.each<[string, unknown, unknown, RegExp]>([
    ['name', '', {}, /name/],
    ['name', 'x'.repeat(201), {}, /name` must be at most 200/],
    ['parent', 'p', { parent: 1 }, /parent` must be the name/],
    ['child', 'p', { child: '' }, /child` must be a name/],
    ['foreignKey', 'p', { foreignKey: [] }, /foreignKey` must be a column/],
    ['columns', 'p', { columns: {} }, /columns` must name 1 to 100/],
    ['columns', 'p', { columns: ['count(*)'] }, /columns` must be an object/],
    ['columns.total', 'p', { columns: { total: ' ' } }, /columns\.total` must be an SQL expression/],
    ['tx', 'p', { tx: 1 }, /Unknown option "tx"/],
  ])('refuses at once a bad %s', (_, name, over, message) => {
    expect(() => aggregate(over as object, name as string)).toThrow(message)
  })

  it('refuses a second one of the same name', () => {
    aggregate({}, 'twice')
    expect(() => aggregate({}, 'twice')).toThrow(/is the name of another aggregate/)
  })

  it('goes on when a migration has changed the tables', async () => {
    const totals = aggregate()
    await totals.recompute(1)
    await fixture.pool.query(`alter table ${fixture.at('child')} rename parent_id to owner_id`)
    try {
      await expect(totals.recompute(1)).rejects.toThrow(/foreignKey` .*parent_id/)
    } finally {
      await fixture.pool.query(`alter table ${fixture.at('child')} rename owner_id to parent_id`)
    }
    expect(await totals.recompute(1)).toMatchObject({ total: 0 })
  })

  it('does not take a row for the one that was meant, once the key is another', async () => {
    await fixture.pool.query(`insert into ${fixture.at('club')} values (1, 1), (2, 1)`)
    const members = aggregate({
      ...{ parent: fixture.at('club'), child: fixture.at('member'), foreignKey: 'club_id' },
      columns: { members: 'count(*)' },
    })
    await members.recompute(1)
    await fixture.pool.query(
      `alter table ${fixture.at('club')} drop constraint club_pkey, add primary key (tenant, id)`,
    )
    await expect(members.recompute(1)).rejects.toThrow(/foreignKey` must name 2 of/)
  })
})

describe('markDirty', () => {
  /** How often each parent was written. */
  const counting = async (fn: () => Promise<void>): Promise<Record<string, number>> => {
    await fixture.pool.query(
      `create function ${fixture.at('note')}() returns trigger language plpgsql as $$
         begin insert into ${fixture.at('counted')} values (new.id); return new; end $$;
       create trigger note after update on ${fixture.at('parent')} for each row execute function ${fixture.at('note')}()`,
    )
    try {
      await fn()
      const { rows } = await fixture.pool.query(
        `select id, count(*)::int as n from ${fixture.at('counted')} group by id`,
      )
      return Object.fromEntries(rows.map(({ id, n }) => [id, n]))
    } finally {
      await fixture.pool.query(`drop function ${fixture.at('note')} cascade`)
    }
  }
  const marksOf = async () =>
    (await fixture.pool.query(`select from ${fixture.schema.name}.aggregate_mark`)).rowCount

  it('makes one count of a thousand writes', async () => {
    const totals = aggregate()
    const counts = await counting(async () => {
      const write = (n: number) =>
        fixture.dibs.transaction(async (tx) => {
          for (let i = 0; i < 10; i++) {
            await tx.query(`insert into ${fixture.at('child')} (id, parent_id) values (${10 * n + i}, 1)`)
            await totals.markDirty(1, { tx })
          }
        })
      const writeTen = async (from: number) => {
        for (let n = from; n < from + 10; n++) await write(n)
      }
      await Promise.all(Array.from({ length: 10 }, (_, n) => writeTen(10 * n)))
      expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ parentsRecomputed: 1 })
    })
    expect(counts).toEqual({ 1: 1 })
    expect(await fixture.rows('parent')).toMatchObject([{ total: 1000 }, { total: 0 }, { total: 0 }])
    expect(await marksOf()).toBe(0)
  })

  it('counts nothing for a transaction that was rolled back', async () => {
    const totals = aggregate()
    await fixture.withClient((tx) => totals.markDirty([1, 2], { tx }))
    expect(await totals.refresh()).toEqual({ recomputed: 0, marks: 0, locked: 0, failed: 0, isMore: false })
  })

  it('leaves a parent that another has locked for the next time, and does the others', async () => {
    const totals = aggregate()
    await totals.markDirty([1, 2])
    await fixture.withClient(async (tx) => {
      await tx.query(`select from ${fixture.at('parent')} where id = 1 for update`)
      expect(await totals.refresh()).toMatchObject({ recomputed: 1, locked: 1, marks: 1 })
    })
    expect(await totals.refresh()).toMatchObject({ recomputed: 1, locked: 0, marks: 1 })
  })

  it('forgets the mark of a parent that is gone, once nobody is at work who was when it was made', async () => {
    const totals = aggregate()
    await totals.markDirty([1, 99])
    expect(await totals.refresh()).toMatchObject({ recomputed: 1, failed: 0 })
    // Other tests have transactions of their own.
    const isGone = async (): Promise<boolean> => {
      await totals.refresh()
      return (await marksOf()) === 0
    }
    await until(isGone, 'the mark to go', 60_000)
  })

  it('keeps the mark of a parent that another is just making', async () => {
    const players = aggregate({
      ...{ parent: fixture.at('team'), child: fixture.at('player'), foreignKey: 'team_id' },
      columns: { players: 'count(*)' },
    })
    await fixture.withClient(async (tx) => {
      await tx.query(`insert into ${fixture.at('team')} values (50)`)
      await fixture.pool.query(`insert into ${fixture.at('player')} values (50)`)
      await players.markDirty(50)
      expect(await players.refresh()).toMatchObject({ recomputed: 0, marks: 0, locked: 1 })
      await tx.query('commit')
      expect(await players.refresh()).toMatchObject({ recomputed: 1, marks: 1 })
    })
    expect(await fixture.rows('team')).toMatchObject([{ id: 50, players: 1 }])
  })

  it('writes what it has counted also if nothing has changed: who counts with an older snapshot is told', async () => {
    const totals = aggregate({ columns: { total: 'max(id)::int' } })
    await insert('(5, 1)')
    await totals.recompute(1)
    await fixture.withClient(async (tx) => {
      await tx.query('rollback; begin isolation level repeatable read')
      await tx.query(`select from ${fixture.at('parent')}`)
      await insert('(4, 1)')
      await totals.markDirty(1)
      expect(await totals.refresh()).toMatchObject({ recomputed: 1 })
      await expect(totals.recompute(1, { tx })).rejects.toThrow(ConflictError)
    })
  })

  it('counts a parent once whose id is written in two ways', async () => {
    const totals = aggregate()
    await totals.markDirty(1)
    await fixture.pool.query(
      `insert into ${fixture.schema.name}.aggregate_mark (aggregate, parent, id) select aggregate, parent, '["01"]' from ${fixture.schema.name}.aggregate_mark`,
    )
    expect(await totals.refresh()).toMatchObject({ recomputed: 1, failed: 0, marks: 2 })
  })

  it('does not let a parent that cannot be counted keep the others waiting', async () => {
    const totals = aggregate()
    const failed: unknown[] = []
    const stop = onEvent('dibs:aggregate.failed', (event) => failed.push(event))
    await insert("(1, 1, 'NEW', 5), (2, 2, 'NEW', 5000), (3, 3, 'NEW', 5)")
    await totals.markDirty([1, 2, 3])
    await totals.markDirty(2)
    const report = await totals.refresh()
    stop()
    expect(report).toMatchObject({ recomputed: 2, failed: 1, marks: 2, isMore: false })
    expect(failed).toMatchObject([{ aggregate: totals.name, id: '["2"]' }])
    expect(report.error).toBeInstanceOf(ConstraintViolationError)
    expect(await fixture.rows('parent')).toMatchObject([{ total: 1 }, { total: 0 }, { total: 1 }])
    await fixture.pool.query(`update ${fixture.at('child')} set amount = 1`)
    // Its two marks have become one.
    expect(await totals.refresh()).toMatchObject({ recomputed: 1, failed: 0, marks: 1 })
  })

  /** Adds `count` parents whose sum a CHECK constraint rejects, then a valid one, and marks all of them. */
  async function markFailing(count: number): Promise<Aggregate> {
    const totals = aggregate()
    await fixture.pool.query(
      `insert into ${fixture.at('parent')} (id) select generate_series(4, ${count + 4});
       insert into ${fixture.at('child')} (id, parent_id, amount) select n, n, 5000 from generate_series(4, ${count + 3}) n`,
    )
    await totals.markDirty(Array.from({ length: count + 1 }, (_, n) => n + 4))
    return totals
  }

  it('stops at a mistake that is that of all, and comes to the others in the next run', async () => {
    const totals = await markFailing(120)
    const report = await totals.refresh()
    expect(report).toMatchObject({ recomputed: 0, marks: 0, failed: 100, isMore: true })
    expect(report.error).toBeInstanceOf(ConstraintViolationError)
    expect(await marksOf()).toBe(121)
    expect(await totals.refresh()).toMatchObject({ recomputed: 1, marks: 1, failed: 100, isMore: true })
    await fixture.pool.query(`truncate ${fixture.schema.name}.aggregate_mark`)
  })

  itInDepth(
    'comes to every mark in the end, though those before it can never be counted',
    async () => {
      const totals = aggregate()
      await totals.markDirty(1)
      await fixture.withClient(async (tx) => {
        await tx.query(`select from ${fixture.at('parent')} where id = 1 for update`)
        // More of one parent than one run looks at.
        await fixture.pool.query(
          `insert into ${fixture.schema.name}.aggregate_mark (aggregate, parent, id) select m.aggregate, m.parent, m.id from ${fixture.schema.name}.aggregate_mark m, generate_series(1, 1100000)`,
        )
        await totals.markDirty(2)
        await until(
          async () => (await totals.refresh()).recomputed === 1,
          'the last one to be counted',
          60_000,
        )
      })
      await fixture.pool.query(`truncate ${fixture.schema.name}.aggregate_mark`)
    },
    90_000,
  )

  it('says of tables that somebody has locked that they are', async () => {
    const totals = aggregate()
    await totals.markDirty(1)
    await fixture.withClient(async (tx) => {
      await tx.query(`lock table ${fixture.at('parent')}`)
      await expect(totals.refresh()).rejects.toThrow(/Waited .* for the tables of aggregate/)
    })
    expect(await totals.refresh()).toMatchObject({ recomputed: 1, failed: 0 })
  })

  /** Triggers of these parents write to a row that another has. */
  async function heldUp(parents: string, fn: () => Promise<void>): Promise<void> {
    await fixture.pool.query(
      `create table ${fixture.at('region')} (total int); insert into ${fixture.at('region')} values (0);
       create function ${fixture.at('roll_up')}() returns trigger language plpgsql as $$
         begin if new.id in (${parents}) then update ${fixture.at('region')} set total = total + 1; end if; return new; end $$;
       create trigger roll_up before update on ${fixture.at('parent')} for each row execute function ${fixture.at('roll_up')}()`,
    )
    try {
      await fixture.withClient(async (tx) => {
        await tx.query(`update ${fixture.at('region')} set total = 5`)
        await fn()
      })
    } finally {
      await fixture.pool.query(
        `drop function ${fixture.at('roll_up')} cascade; drop table ${fixture.at('region')}`,
      )
    }
  }

  it('of a parent whose trigger waits for others is put behind, and keeps none waiting', async () => {
    await insert("(1, 1, 'NEW', 5), (2, 2, 'NEW', 5)")
    const totals = aggregate()
    await totals.markDirty([1, 2])
    await heldUp('1', async () => {
      const refreshed = await totals.refresh()
      expect(refreshed).toMatchObject({ recomputed: 1, failed: 1 })
      expect(refreshed.error).toBeInstanceOf(BusyError)
      const report = await totals.verify({ repair: true })
      expect(report).toMatchObject({ driftedCount: 0, unsettled: 1 })
      await fixture.pool.query(`delete from ${fixture.schema.name}.aggregate_mark`)
      const { driftedCount, repaired, drifted } = await totals.verify({ repair: true })
      expect({ driftedCount, repaired }).toEqual({ driftedCount: 1, repaired: 0 })
      expect(drifted).toMatchObject([{ id: '1', failed: expect.stringMatching(/^Waited/) }])
    })
    expect(await fixture.rows('parent')).toMatchObject([{ total: 0 }, { total: 1 }, {}])
  })

  it('of parents whose triggers all wait ends the run after three, and what verifies', async () => {
    await fixture.pool.query(`insert into ${fixture.at('parent')} (id) values (4), (5)`)
    await insert("(1, 1, 'NEW', 5), (2, 2, 'NEW', 5), (3, 3, 'NEW', 5), (4, 4, 'NEW', 5), (5, 5, 'NEW', 5)")
    const totals = aggregate()
    await totals.markDirty([2, 1, 3, 4, 5])
    await heldUp('1, 3, 4, 5', async () => {
      expect(await totals.refresh()).toMatchObject({ recomputed: 1, failed: 3, isMore: true })
      await fixture.pool.query(`delete from ${fixture.schema.name}.aggregate_mark`)
      await expect(totals.verify({ repair: true, batch: 1 })).rejects.toThrow(BusyError)
    })
    expect(await totals.verify({ repair: true })).toMatchObject({ driftedCount: 4, repaired: 4 })
  })

  it('of a parent that is not there, and that another takes away, is not waited for', async () => {
    const totals = aggregate()
    await totals.markDirty([1, 999])
    await fixture.withClient(async (tx) => {
      await tx.query(`delete from ${fixture.schema.name}.aggregate_mark where id = '["999"]'`)
      expect(await totals.refresh()).toMatchObject({ recomputed: 1, marks: 1, failed: 0 })
    })
    // Other tests have transactions of their own, before whose end it does not go.
    const last = await until(
      async () => {
        const told = await totals.refresh()
        return told.marks > 0 && told
      },
      'the mark to go',
      60_000,
    )
    expect(last).toMatchObject({ recomputed: 0, marks: 1 })
  })

  it('of a table that is not what it was is refused, and leaves the transaction alive', async () => {
    const totals = aggregate()
    await totals.markDirty(1)
    await fixture.withClient(async (tx) => {
      await tx.query(`alter table ${fixture.at('parent')} rename to renamed`)
      await expect(totals.markDirty(1, { tx })).rejects.toThrow(InvalidInputError)
      await tx.query('select 1')
    })
    await fixture.pool.query(`delete from ${fixture.schema.name}.aggregate_mark`)
  })

  itInDepth(
    'of many parents that take too long together are counted one by one',
    async () => {
      await insert("(1, 1, 'NEW', 5), (2, 2, 'NEW', 5)")
      const totals = aggregate({ columns: { total: 'count(*) + count(pg_sleep(6))' } })
      await totals.markDirty([1, 2])
      expect(await totals.refresh()).toMatchObject({ recomputed: 2, failed: 0, isMore: false })
      expect(await fixture.rows('parent')).toMatchObject([{ total: 2 }, { total: 2 }, {}])
    },
    60_000,
  )

  itInDepth(
    'of a parent that takes too long by itself is told, and goes behind the others',
    async () => {
      await insert("(1, 1, 'NEW', 5), (2, 2, 'NEW', 5)")
      const slow = 'count(*) + count(case when parent_id = 1 then pg_sleep(40) end)'
      const totals = aggregate({ columns: { total: slow } })
      await totals.markDirty([1, 2])
      expect(await totals.refresh()).toMatchObject({ recomputed: 0, failed: 1, isMore: true })
      const { rows } = await fixture.pool.query(
        `select id from ${fixture.schema.name}.aggregate_mark order by seq`,
      )
      expect(rows).toEqual([{ id: '["2"]' }, { id: '["1"]' }])
      await fixture.pool.query(`delete from ${fixture.schema.name}.aggregate_mark`)
    },
    90_000,
  )

  it('tells which parent has failed, though another has counted it before its marks go behind', async () => {
    await insert("(1, 1, 'NEW', 5000), (2, 2, 'NEW', 5)")
    const pool = new pg.Pool({ connectionString: directUrl })
    pool.on('error', () => {})
    const marks = `${fixture.schema.name}.aggregate_mark`
    pool.on('connect', (client) => {
      const query = client.query.bind(client) as (...args: unknown[]) => unknown
      const before = async (args: unknown[]): Promise<unknown> => {
        await fixture.pool.query(`delete from ${marks} where id = '["1"]'`)
        return query(...args)
      }
      Object.assign(client, {
        query: (...args: unknown[]) =>
          JSON.stringify(args[0]).includes('aggregate_requeue_mark') ? before(args) : query(...args),
      })
    })
    const dibs = await Dibs.open({
      ...throughPool,
      pool,
      schema: fixture.schema.name,
      listen: false,
      migrate: 'off',
    })
    const failed: unknown[] = []
    const stop = onEvent('dibs:aggregate.failed', ({ id }) => failed.push(id))
    try {
      const own = dibs.aggregate('counted-by-another', {
        ...{ parent: fixture.at('parent'), child: fixture.at('child'), foreignKey: 'parent_id' },
        columns: { total: 'count(*)', amount: 'sum(amount)' },
      })
      await own.markDirty([1, 2])
      expect(await own.refresh()).toMatchObject({ recomputed: 1, failed: 1, marks: 1, isMore: false })
      expect(failed).toEqual(['["1"]'])
    } finally {
      stop()
      await dibs.close()
      await pool.end()
      await fixture.pool.query(`truncate ${marks}`)
    }
  })

  it('of a table that is gone goes with maintenance, and no other does', async () => {
    await fixture.pool.query(
      `create table ${fixture.at('gone')} (like ${fixture.at('parent')} including all)`,
    )
    const gone = aggregate({ parent: fixture.at('gone') })
    await gone.markDirty([1, 2])
    await aggregate({}, 'a-that-stays').markDirty(1)
    await aggregate({}, 'z-that-stays').markDirty(1)
    const other = await Dibs.open({
      ...throughPool,
      pool: fixture.pool,
      schema: fixture.schema.name,
      listen: false,
    })
    expect(await other.maintain({ once: true })).toMatchObject({ marksForgotten: 0 })
    await fixture.pool.query(`drop table ${fixture.at('gone')}`)
    expect(await other.maintain({ once: true })).toMatchObject({ marksForgotten: 2 })
    await other.close()
    expect(await marksOf()).toBe(2)
    await fixture.pool.query(`truncate ${fixture.schema.name}.aggregate_mark`)
  })

  it('goes through more than one part, and no further than what was there', async () => {
    const totals = aggregate()
    await fixture.pool.query(`insert into ${fixture.at('parent')} (id) select generate_series(4, 250)`)
    const all = Array.from({ length: 250 }, (_, n) => n + 1)
    for (let n = 0; n < 6; n++) await totals.markDirty(all)
    expect(await totals.refresh()).toMatchObject({ recomputed: 250, marks: 1_500, isMore: false })
    expect(await marksOf()).toBe(0)
  })

  /** A trigger that leaves each parent as it is. */
  const keeping = async (fn: () => Promise<void>): Promise<void> => {
    await fixture.pool.query(
      `create function ${fixture.at('keep')}() returns trigger language plpgsql as $$ begin return null; end $$;
       create trigger keep before update on ${fixture.at('parent')} for each row execute function ${fixture.at('keep')}()`,
    )
    await fn().finally(() => fixture.pool.query(`drop function ${fixture.at('keep')} cascade`))
  }

  it('stays where a trigger keeps the parent as it is, unless nothing is to be changed', async () => {
    const totals = aggregate()
    await insert("(1, 1, 'NEW', 5)")
    await keeping(async () => {
      await totals.markDirty([1, 2])
      expect(await totals.refresh()).toMatchObject({ recomputed: 1, marks: 1, failed: 1 })
      await expect(
        totals.transition(1, { from: 'NEW', to: 'COMPLETED' }, { add: { completed: 1 } }),
      ).rejects.toThrow(NotWrittenError)
    })
    expect(await fixture.rows('child')).toMatchObject([{ status: 'NEW' }])
    expect(await totals.refresh()).toMatchObject({ recomputed: 1, marks: 1, failed: 0 })
  })

  it('stays where a policy hides the parent', async () => {
    const role = freshName('clerk')
    await fixture.pool.query(
      `create role ${role} nologin; grant usage on schema ${fixture.shop}, ${fixture.schema.name} to ${role};
       grant all on all tables in schema ${fixture.shop} to ${role}; grant all on all tables in schema ${fixture.schema.name} to ${role};
       grant usage on all sequences in schema ${fixture.schema.name} to ${role};
       alter table ${fixture.at('parent')} enable row level security;
       create policy seen on ${fixture.at('parent')} using (current_setting('app.seen', true) = 'yes')`,
    )
    const pool = new pg.Pool({ connectionString: directUrl, options: `-c role=${role}` })
    pool.on('error', () => {})
    const clerk = await Dibs.open({
      ...throughPool,
      pool,
      schema: fixture.schema.name,
      listen: false,
      migrate: 'off',
    })
    try {
      const totals = clerk.aggregate('of-clerk', {
        ...{ parent: fixture.at('parent'), child: fixture.at('child'), foreignKey: 'parent_id' },
        columns: { total: 'count(*)' },
      })
      await totals.markDirty(1)
      expect(await totals.refresh()).toMatchObject({ recomputed: 0, marks: 0, locked: 1 })
    } finally {
      await clerk.close()
      await pool.end()
      await fixture.pool.query(
        `drop policy seen on ${fixture.at('parent')}; alter table ${fixture.at('parent')} disable row level security;
         drop owned by ${role}; drop role ${role}; delete from ${fixture.schema.name}.aggregate_mark`,
      )
    }
  })

  it('is of the table that the name means in the transaction', async () => {
    const other = freshName('tenant')
    await fixture.pool.query(
      `create schema ${other}; create table ${other}.parent (like ${fixture.at('parent')} including all); create table ${other}.child (like ${fixture.at('child')});
       insert into ${other}.parent (id) values (1)`,
    )
    try {
      const totals = aggregate({ parent: 'parent', child: 'child' })
      for (const path of [other, fixture.shop])
        await fixture.dibs.transaction(async (tx) => {
          await tx.query(`set local search_path = ${path}`)
          await totals.markDirty(1, { tx })
        })
      const { rows } = await fixture.pool.query(
        `select parent::regclass::text as parent from ${fixture.schema.name}.aggregate_mark order by seq`,
      )
      expect(rows.map(({ parent }) => parent)).toEqual([`${other}.parent`, `${fixture.shop}.parent`])
    } finally {
      await fixture.pool.query(
        `drop schema ${other} cascade; delete from ${fixture.schema.name}.aggregate_mark`,
      )
    }
  })

  it('of a parent that takes too long to count is put behind the others', async () => {
    await insert('(1, 1), (2, 2)')
    const pool = new pg.Pool({ connectionString: directUrl, options: '-c statement_timeout=2000' })
    pool.on('error', () => {})
    const dibs = await Dibs.open({
      ...throughPool,
      pool,
      schema: fixture.schema.name,
      listen: false,
      migrate: 'off',
    })
    try {
      const own = dibs.aggregate('slow', {
        ...{ parent: fixture.at('parent'), child: fixture.at('child'), foreignKey: 'parent_id' },
        columns: { total: 'count(*) + count(case when parent_id = 1 then pg_sleep(30) end)' },
      })
      await own.markDirty([1, 2])
      expect(await own.refresh()).toMatchObject({ recomputed: 1, failed: 1 })
      expect(await fixture.rows('parent')).toMatchObject([{ total: 0 }, { total: 1 }, {}])
    } finally {
      await dibs.close()
      await pool.end()
      await fixture.pool.query(`delete from ${fixture.schema.name}.aggregate_mark`)
    }
  })

  it('refuses what is no id', async () => {
    const totals = aggregate()
    await expect(totals.markDirty([])).rejects.toThrow(/ids` must be 1 to 10000/)
    await expect(totals.markDirty('x')).rejects.toThrow(InvalidInputError)
    await expect(totals.markDirty({ title: 'x' })).rejects.toThrow(InvalidInputError)
    await expect(totals.markDirty({ code: 'x' })).rejects.toThrow(/must name the columns of the primary key/)
  })
})

describe('transition', () => {
  const step = { from: 'NEW', to: 'COMPLETED' }
  it('adds to the parent when it moves the child, and only then', async () => {
    await insert("(1, 1, 'NEW', 5), (2, 1, 'NEW', 5), (3, null, 'NEW', 5)")
    const totals = aggregate()
    const options = { add: { completed: 1, amount: '0.50', extra: 2 } }
    const withWord = { ...step, set: { word: 'w' } }
    expect(await totals.transition(1, withWord, options)).toMatchObject({ status: 'COMPLETED', word: 'w' })
    await expect(totals.transition(1, step, options)).rejects.toThrow(StateConflictError)
    await expect(totals.transition(9, step, options)).rejects.toThrow(NotFoundError)
    expect(await totals.transition(3, step, options)).toMatchObject({ status: 'COMPLETED' })
    expect(await fixture.rows('parent')).toMatchObject([{ completed: 1, amount: '0.50', extra: 2 }, {}, {}])
  })

  it('is one round trip, and goes with the transaction', async () => {
    await insert("(1, 1, 'NEW', 5)")
    const totals = aggregate()
    await fixture.withClient(async (tx) => {
      await totals.transition(1, step, { add: { completed: 1 }, tx })
      expect((await tx.query(`select completed from ${fixture.at('parent')} where id = 1`)).rows).toEqual([
        { completed: 1 },
      ])
    })
    expect(await fixture.rows('child')).toMatchObject([{ status: 'NEW' }])
    const traffic = await countTraffic(fixture.dibs.pool, () =>
      totals.transition(1, step, { add: { completed: 1 } }),
    )
    expect(traffic.roundTrips).toBe(1)
  })

  it('moves nothing if the parent cannot be added to', async () => {
    await insert("(1, 1, 'NEW', 5)")
    const totals = aggregate()
    await fixture.withClient(async (tx) => {
      await expect(
        totals
          .transition(1, step, { add: { completed: 2_147_483_647, total: 1 }, tx })
          .then(() => totals.transition(1, { from: 'COMPLETED', to: 'NEW' }, { add: { completed: 1 }, tx })),
      ).rejects.toMatchObject({ sqlState: '22003' })
      expect((await tx.query(`select status from ${fixture.at('child')}`)).rows).toEqual([
        { status: 'COMPLETED' },
      ])
    })
    await expect(totals.transition(1, step, { add: { amount: 5_000 } })).rejects.toThrow(/check/)
    expect(await fixture.rows('child')).toMatchObject([{ status: 'NEW' }])
  })

  it('adds to the parent that the child has by then, though it came while the child was waited for', async () => {
    await insert("(1, 1, 'NEW', 5)")
    const totals = aggregate()
    await totals.recompute(1)
    await fixture.withClient(async (mover) => {
      await mover.query(
        `insert into ${fixture.at('parent')} (id) values (50); update ${fixture.at('child')} set parent_id = 50 where id = 1`,
      )
      const moved = totals.transition(1, step, { add: { completed: 1 } })
      await until(
        async () =>
          (
            await fixture.pool.query(
              `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%${fixture.schema.name}%row_write%'`,
            )
          ).rowCount === 1,
        'it to wait',
      )
      await mover.query('commit')
      expect(await moved).toMatchObject({ parent_id: 50, status: 'COMPLETED' })
    })
    expect(await fixture.rows('parent')).toMatchObject([{ completed: 0 }, {}, {}, { id: '50', completed: 1 }])
  })

  it('adds nothing, and is no error, where no parent can have such a key', async () => {
    await fixture.pool.query(
      `create table ${fixture.at('small')} (id smallint primary key, total int); insert into ${fixture.at('small')} values (1);
       create table ${fixture.at('large')} (id int primary key, parent_id bigint, status text); insert into ${fixture.at('large')} values (1, 1, 'NEW'), (2, 70000, 'NEW')`,
    )
    try {
      const totals = aggregate({
        ...{ parent: fixture.at('small'), child: fixture.at('large') },
        columns: { total: 'count(*)' },
      })
      await totals.transition(1, step, { add: { total: 1 } })
      await expect(totals.transition(2, step, { add: { total: 1 } })).rejects.toThrow(NotWrittenError)
      expect(await fixture.rows('small')).toEqual([{ id: 1, total: 1 }])
    } finally {
      await fixture.pool.query(`drop table ${fixture.at('small')}, ${fixture.at('large')}`)
    }
  })

  it('refuses to move it to another parent in the same breath', async () => {
    const moves = { ...step, set: { parent_id: 2 } }
    await expect(aggregate().transition(1, moves, { add: { completed: 1 } })).rejects.toThrow(
      /set.parent_id. must not be given/,
    )
  })

  it('waits for the parent no longer than it is told to, and says that it is the parent, and who has it', async () => {
    await insert("(1, 2, 'NEW', 5)")
    const events: unknown[] = []
    const stop = onEvent('dibs:row.locked-out', ({ table, blockers }) => events.push([table, blockers]))
    const options = { add: { completed: 1 }, waitMs: 50 }
    await fixture.withClient(async (holder) => {
      await holder.query(`select from ${fixture.at('parent')} where id = 2 for update`)
      await fixture.withClient(async (tx) => {
        const error = await aggregate()
          .transition(1, step, { ...options, tx })
          .catch((reason) => reason)
        expect(error).toBeInstanceOf(BusyError)
        expect(error.message).toContain(`row "2" of table "${fixture.at('parent')}"`)
        expect(error.blockers).toMatchObject([{ application: 'shop', isSure: true }])
        expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }])
      })
    })
    stop()
    expect(events).toEqual([[fixture.at('parent'), 1]])
    expect(await fixture.rows('child')).toMatchObject([{ status: 'NEW' }])
  })

  it('says that it is the child where that is locked, also if the parent is, too', async () => {
    await insert("(1, 2, 'NEW', 5)")
    await fixture.withClient(async (holder) => {
      await holder.query(`select from ${fixture.at('child')} where id = 1 for update`)
      await holder.query(`select from ${fixture.at('parent')} where id = 2 for update`)
      const error = await aggregate()
        .transition(1, step, { add: { completed: 1 }, waitMs: 50 })
        .catch((reason) => reason)
      expect(error.message).toContain(`rows of table "${fixture.at('child')}"`)
      expect(error.blockers).toMatchObject([{ isSure: true }])
    })
  })

  it('refuses bad input', async () => {
    const totals = aggregate()
    await expect(totals.transition(1, step, { add: {} })).rejects.toThrow(/add` must name at least one/)
    await expect(totals.transition(1, step, { add: { completed: 0.5 } })).rejects.toThrow(/add\.completed/)
    await expect(totals.transition(1, step, { add: { title: 1 } })).rejects.toThrow(/add\.title/)
    await expect(totals.transition(1, step, { add: { complted: 1 } })).rejects.toThrow(
      /Did you mean completed/,
    )
    await expect(totals.transition(1, step, { add: { id: 1 } })).rejects.toThrow(/add\.id/)
  })
})

it('the guide shows what the explorer has printed', () => {
  const page = (name: string) => readFileSync(new URL(`../../../docs/${name}.md`, import.meta.url), 'utf8')
  const printouts = [
    ...page('aggregates').matchAll(/^```\n((?:Race found|No violation)[\s\S]*?)^```$/gm),
  ].map(([, text]) => `${text}`)
  expect(printouts).toHaveLength(4)
  for (const printout of printouts) expect(page('races')).toContain(printout)
})
