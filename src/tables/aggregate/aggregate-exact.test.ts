import { afterEach, describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { InvalidInputError, NotWrittenError } from '../../errors.js'
import type { AggregateOptions } from './aggregate-spec.js'

const fixture = openTables('create extension if not exists citext')

let made = 0
const aggregate = (over: Partial<AggregateOptions> = {}) =>
  fixture.dibs.aggregate<Record<string, unknown>>(`exact-${++made}`, {
    parent: fixture.at('parent'),
    child: fixture.at('child'),
    foreignKey: 'parent_id',
    columns: { total: 'count(*)' },
    ...over,
  })
const run = (sql: string) => fixture.pool.query(sql.replaceAll('{shop}', fixture.shop))

afterEach(() => run('drop table if exists {shop}.parent, {shop}.child, {shop}.p cascade'))

describe('a foreign key of another type', () => {
  it.each([
    ['timestamp', 'date', '2024-01-01 00:00', '2024-01-01 12:00', '2024-01-01'],
    ['text', 'citext', 'abc', 'ABC', 'abc'],
    ['citext', 'text', 'abc', 'abd', 'abc'],
    ['int', 'numeric', '2', '1', '2'],
    ['int', 'text', '2', '1', '2'],
  ])('of %s, %s, is that of one parent, however it is counted', async (key, foreign, own, other, its) => {
    await run(
      `create table {shop}.parent (id ${key} primary key, total int not null default 0, moved int not null default 0); insert into {shop}.parent (id) values ('${own}'), ('${other}');
       create table {shop}.child (id int primary key, parent_id ${foreign}, status text); insert into {shop}.child values (1, '${its}', 'NEW')`,
    )
    const totals = aggregate()
    expect(await totals.recompute([own, other])).toMatchObject([{ total: 1 }, { total: 0 }])
    expect(await totals.recompute(other)).toMatchObject({ total: 0 })
    expect(await totals.verify()).toMatchObject({ checked: 2, driftedCount: 0 })
    await totals.transition(1, { from: 'NEW', to: 'OLD' }, { add: { moved: 1 } })
    await totals.derived(fixture.at('viewed'))
    const { rows } = await run(`select total, moved from {shop}.viewed order by moved desc`)
    expect(rows).toEqual([
      { total: 1, moved: 1 },
      { total: 0, moved: 0 },
    ])
  })

  it('that is no key of a parent fails nothing, and is that of none', async () => {
    await run(
      `create table {shop}.parent (id int primary key, total int not null default 0); insert into {shop}.parent (id) values (1), (2);
       create table {shop}.child (id int primary key, parent_id numeric, status text); insert into {shop}.child values (1, 1.5, 'NEW')`,
    )
    const totals = aggregate()
    expect(await totals.recompute([1, 2])).toMatchObject([{ total: 0 }, { total: 0 }])
    await expect(totals.transition(1, { from: 'NEW', to: 'OLD' }, { add: { total: 1 } })).rejects.toThrow(
      NotWrittenError,
    )
    await run("alter table {shop}.child alter parent_id type text using 'north'")
    expect(await totals.recompute([1, 2])).toMatchObject([{ total: 0 }, { total: 0 }])
  })

  it('is found by an index', async () => {
    await run(
      `create table {shop}.parent (id timestamp primary key, total int not null default 0);
       create table {shop}.child (parent_id date); create index on {shop}.child (parent_id)`,
    )
    await aggregate().derived(fixture.at('viewed'))
    await fixture.withClient(async (tx) => {
      await tx.query('set local enable_seqscan = off; set local enable_bitmapscan = off')
      const { rows } = await tx.query(
        `explain select total from ${fixture.at('viewed')} where id = '2024-01-01'`,
      )
      expect(JSON.stringify(rows)).toMatch(/Index Cond: \((child\.)?parent_id = /)
    })
  })
})

describe('names', () => {
  it('of a column that the child has lost are not those of the parent', async () => {
    await run(
      `create table {shop}.parent (id int primary key, total int, rate int default 100); insert into {shop}.parent values (1);
       create table {shop}.child (parent_id int, price int, rate int); insert into {shop}.child values (1, 5, 2)`,
    )
    const totals = aggregate({ columns: { total: 'coalesce(sum(price * rate), 0)' } })
    expect(await totals.recompute(1)).toMatchObject({ total: 10 })
    await run('alter table {shop}.child rename column rate to factor; update {shop}.parent set total = 11')
    await expect(totals.verify()).rejects.toThrow(/columns\.total.*"rate" does not exist/)
    await expect(totals.verify({ repair: true })).rejects.toThrow(InvalidInputError)
    await expect(totals.recompute([1])).rejects.toThrow(InvalidInputError)
    expect(await fixture.rows('parent')).toMatchObject([{ total: 11 }])
  })

  it('of a column that the child has lost are not those of the parent, though the parent keeps just these', async () => {
    await run(
      `create table {shop}.parent (id int primary key, total int, rate int default 100); insert into {shop}.parent values (1, 500);
       create table {shop}.child (parent_id int, price int, rate int); insert into {shop}.child values (1, 5, 2)`,
    )
    const totals = aggregate({ columns: { total: 'coalesce(sum(price * rate), 0)' } })
    expect(await totals.verify()).toMatchObject({ driftedCount: 1 })
    await run('alter table {shop}.child rename column rate to factor')
    await expect(totals.verify()).rejects.toThrow(InvalidInputError)
  })

  it('of a column that the child loses while it is verified are not those of the parent', async () => {
    await run(
      `create table {shop}.parent (id int primary key, total int, rate int default 100); insert into {shop}.parent values (1, 11);
       create table {shop}.child (parent_id int, price int, rate int); insert into {shop}.child values (1, 5, 2)`,
    )
    const totals = aggregate({ columns: { total: 'coalesce(sum(price * rate), 0)' } })
    // Once the tables are known, nothing is asked about them first.
    await totals.verify({ repair: true })
    await run('update {shop}.parent set total = 11')
    await fixture.withClient(async (tx) => {
      // The page is read; what differs there cannot be looked at until the column is another.
      await tx.query(`lock table ${fixture.at('parent')} in exclusive mode`)
      const verified = totals.verify({ repair: true }).catch((error) => error)
      await expect
        .poll(async () => {
          const { rowCount } = await run(
            `select from pg_locks where relation = '{shop}.parent'::regclass and not granted`,
          )
          return rowCount
        })
        .toBe(1)
      await tx.query(`alter table ${fixture.at('child')} rename column rate to factor`)
      await tx.query('commit')
      expect(await verified).toBeInstanceOf(InvalidInputError)
    })
    expect(await fixture.rows('parent')).toMatchObject([{ total: 11 }])
  })

  it('in a view are no matter', async () => {
    await run(
      `create table {shop}.parent (id int primary key); insert into {shop}.parent values (1);
       create table {shop}.p (id int, parent_id int); insert into {shop}.p values (7, 1), (8, 1)`,
    )
    await aggregate({ child: fixture.at('p') }).derived(fixture.at('viewed'))
    expect((await run('select total from {shop}.viewed')).rows).toEqual([{ total: '2' }])
  })

  it('of the key cannot be derived', async () => {
    await run('create table {shop}.parent (id int primary key); create table {shop}.child (parent_id int)')
    const refused = aggregate({ columns: { id: 'count(*)' } }).derived(fixture.at('viewed'))
    await expect(refused).rejects.toThrow(/`columns\.id` must not be given: it identifies the row/)
  })
})

describe('what is written', () => {
  const told = { title: "string_agg(word, '' order by id)", bits: "coalesce(bit_or(bits), '0'::bit(8))" }

  it('is not cut off to be compared', async () => {
    await run(
      `create table {shop}.parent (id int primary key, title varchar(5), bits bit(3) default '101', names varchar(3)[]); insert into {shop}.parent values (1, 'abcde', '000', '{abc}'), (2, 'abc', '000', null);
       create table {shop}.child (id int, parent_id int, word text, bits bit(8)); insert into {shop}.child values (1, 1, 'abc', '0'::bit(8)), (2, 1, 'defgh', '0'::bit(8))`,
    )
    const totals = aggregate({ columns: { title: told.title } })
    expect(await totals.verify()).toMatchObject({
      ...{ driftedCount: 2 },
      drifted: [{ id: 1, columns: { title: { stored: 'abcde', derived: 'abcdefgh' } } }, { id: 2 }],
    })
    const bits = aggregate({ columns: { bits: told.bits } })
    expect((await bits.verify()).drifted[0]).toMatchObject({
      columns: { bits: { stored: '000', derived: '00000000' } },
    })
    const names = aggregate({ columns: { names: 'array_agg(word order by id)' } })
    expect((await names.verify()).drifted[0]).toMatchObject({
      columns: { names: { stored: '{abc}', derived: '{abc,defgh}' } },
    })
    expect((await totals.verify({ repair: true })).drifted).toMatchObject([
      { id: 1, failed: expect.stringMatching(/22001/) },
      { id: 2 },
    ])
  })

  it.each(['varchar(5)', 'char(5)'])('is what %s keeps, without spaces at its end', async (type) => {
    await run(
      `create table {shop}.parent (id int primary key, title ${type}); insert into {shop}.parent values (1);
       create table {shop}.child (id int, parent_id int, word text); insert into {shop}.child values (1, 1, 'abc       ')`,
    )
    const totals = aggregate({ columns: { title: 'max(word)' } })
    await totals.recompute(1)
    expect(await totals.verify()).toMatchObject({ checked: 1, driftedCount: 0 })
  })

  const keeping = (answer: string) =>
    run(
      `create table {shop}.parent (id int primary key, total int default 0); insert into {shop}.parent values (1), (2), (3);
       create table {shop}.child (parent_id int); insert into {shop}.child values (1), (2);
       create function {shop}.keep() returns trigger language plpgsql as $$ begin if new.id = 1 then ${answer} end if; return new; end $$;
       create trigger keep before update on {shop}.parent for each row execute function {shop}.keep()`,
    )

  it.each([
    ['answers null', 'return null;'],
    ['answers what was', 'return old;'],
    ['writes something else', 'new.total := 7;'],
  ])('is not what it was to be where a trigger %s', async (_, answer) => {
    await keeping(answer)
    try {
      const totals = aggregate()
      const { drifted, ...report } = await totals.verify({ repair: true })
      expect(report).toEqual({ checked: 3, driftedCount: 2, repaired: 1, unsettled: 0 })
      expect(drifted).toMatchObject([
        {
          id: 1,
          columns: { total: { stored: '0', derived: '1' } },
          failed: expect.stringMatching(/trigger/),
        },
        { id: 2, columns: { total: { stored: '0', derived: '1' } } },
      ])
      expect(drifted[1]?.failed).toBeUndefined()
      await run('update {shop}.parent set total = 0 where id > 1')
      await expect(totals.recompute(1)).rejects.toThrow(NotWrittenError)
      await fixture.withClient(async (tx) => {
        await expect(totals.recompute([2, 1], { tx })).rejects.toThrow(/row 1 of/)
        // Nothing was changed, as it says.
        expect((await tx.query(`select total from ${fixture.at('parent')} where id = 2`)).rows).toEqual([
          { total: 0 },
        ])
      })
    } finally {
      await run('drop function {shop}.keep cascade')
    }
  })
})
