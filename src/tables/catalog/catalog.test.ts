import type pg from 'pg'
import { describe, expect, it, vi } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { DatabaseError, InvalidInputError } from '../../errors.js'
import { countTraffic } from '../../testing/index.js'
import { Catalog } from './catalog.js'

const fixture = openTables(
  `create table {shop}.orders (id int primary key, note text);
   create table {shop}."Weird ""Table" ("ID" int primary key, "select" text, "a.b" int, "$1" int, "new
line" text);
   create table {shop}."dotted.name" (id int primary key, n int);
   create table {shop}."order" (id int primary key, n int);
   create view {shop}.seen as select * from {shop}.orders;
   create table {shop}.part (id int, n int, primary key (id)) partition by range (id);
   create table {shop}.part_1 partition of {shop}.part for values from (0) to (10)`,
  `insert into {shop}.orders values (1, 'x');
   insert into {shop}."Weird ""Table" values (1);
   insert into {shop}."dotted.name" values (1);
   insert into {shop}."order" values (1);
   insert into {shop}.part values (1, 1)`,
)
const { at, withClient } = fixture
const write = (table: string, patch: object, id: unknown = 1) =>
  fixture.dibs.rows.lastWriteWins(table, id as number, { ...patch })

describe('names', () => {
  it.each([
    ['Weird "Table', { select: "it's", 'a.b': 7, $1: 3, 'new\nline': '\\' }],
    ['"Weird ""Table"', { select: null, 'a.b': 1 }],
    ['"dotted.name"', { n: 7 }],
    ['order', { n: 7 }],
    ['"order"', { n: 8 }],
    ['part', { n: 9 }],
  ])('%s', async (name, patch) => {
    expect(await write(at(name), patch)).toMatchObject(patch)
    await fixture.dibs.transaction(async (tx) => {
      expect(await fixture.dibs.rows.lock(at(name), [1], { tx })).toMatchObject([patch])
      expect(await fixture.dibs.rows.claim(at(name), { tx, set: patch })).toMatchObject([patch])
    })
  })

  it.each([
    ['', 'must be a name such as'],
    ['a.b.c', 'must be a name such as'],
    ['.a', 'must be a name such as'],
    ['a.', 'must be a name such as'],
    ['""', 'must be a name such as'],
    ['"a"b', 'must be a name such as'],
    ['x'.repeat(64), 'must be a name such as'],
    ['a\0', 'must not hold a NUL'],
    [5, 'must be the name of a table, not a number'],
  ])('refuses %j', async (name, problem) => {
    const error = await write(name as string, { n: 1 }).catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.message).toContain(problem)
  })

  it('columns that are called as ours are theirs', async () => {
    const columns = [
      'text',
      'dibs_state',
      'dibs_detail',
      'dibs_told_',
      'dibs_place',
      'dibs_0',
      'dibs_n',
      'dibs_t',
      'dibs_p',
    ]
    const names = columns.map((name) => `"${name}" text`)
    await fixture.pool.query(`create table ${at('ours')} (id int, version int default 1, ${names}, primary key (id, text));
      insert into ${at('ours')} (id, text, dibs_0, dibs_state, dibs_place) values (1, 'b', 'y', 's', 'p'), (1, 'a', 'x', 's', 'p')`)
    const id = { id: 1, text: 'a' }
    const { dibs } = fixture
    const patch = Object.fromEntries(columns.slice(1).map((name) => [name, `new ${name}`]))
    expect(await dibs.rows.lastWriteWins(at('ours'), id, patch)).toEqual({
      ...id,
      version: 1,
      ...patch,
    })
    expect(await dibs.rows.update(at('ours'), { id, version: 1 }, patch)).toMatchObject(patch)
    await expect(
      dibs.rows.transition(at('ours'), id, { column: 'dibs_state', from: 'x', to: 'y' }),
    ).rejects.toMatchObject({ current: 'new dibs_state' })
    expect(await dibs.rows.insertOnce(at('ours'), ['id', 'text'], id)).toMatchObject({
      created: false,
      row: patch,
    })
    await dibs.transaction(async (tx) => {
      expect(await dibs.rows.lock(at('ours'), [id], { tx })).toMatchObject([patch])
      const both = [{ text: 'b' }, { text: 'a' }]
      const order = [{ column: 'dibs_0', descending: true }, 'text']
      expect(await dibs.rows.claim(at('ours'), { tx, order, limit: 2 })).toMatchObject(both)
      expect(await dibs.rows.claim(at('ours'), { tx, order: ['text'], limit: 2 })).toMatchObject(
        [...both].reverse(),
      )
      const set = { dibs_detail: 'set' }
      expect(await dibs.rows.claim(at('ours'), { tx, order, limit: 2, set })).toMatchObject(
        both.map((row) => ({ ...row, ...set })),
      )
    })
    await fixture.pool.query(`drop table ${at('ours')}`)
  })

  it('a table of more columns than can be answered is refused', async () => {
    const columns = Array.from({ length: 1_590 }, (_, n) => `c${n} bool`)
    await fixture.pool.query(
      `create table ${at('wide')} (id int primary key, ${columns}); insert into ${at('wide')} values (1)`,
    )
    await expect(write(at('wide'), { c1: true })).rejects.toThrow(
      'which has 1591 columns; at most 1590 are taken',
    )
    await fixture.pool.query(`alter table ${at('wide')} drop column c0`)
    expect(await write(at('wide'), { c1: true })).toMatchObject({ c1: true })
    await fixture.pool.query(`drop table ${at('wide')}`)
  })

  it('says what there is in place of a table that there is not', async () => {
    await expect(write(at('ordrs'), {})).rejects.toThrow(
      `\`table\` names ${at('ordrs')}, and there is no such table in schema "${fixture.shop}". Did you mean ${at('orders')}? Expected one of: `,
    )
    await expect(write(at('Orders'), {})).rejects.toThrow(`Did you mean ${at('orders')}?`)
    await expect(write('there_is_none_such', {})).rejects.toThrow('on the search path. ')
    await expect(write('nowhere.orders', {})).rejects.toThrow('in schema "nowhere". There are none')
    await expect(write(at('seen'), {})).rejects.toThrow('which is not a table')
  })

  it('says what there is in place of a column that there is not', async () => {
    await expect(write(at('orders'), { nte: 1 })).rejects.toThrow(
      `\`patch.nte\` names the column "nte", which table ${at('orders')} does not have. Did you mean note? Expected one of: id, note`,
    )
    await expect(write(at('orders'), { note: '' }, { note: 'x' })).rejects.toThrow('. Unique indexes: (id).')
  })
})

describe('a key', () => {
  it('is not taken from a table whose children have keys of their own', async () => {
    await fixture.pool.query(
      `create table ${at('parent')} (id int primary key, n int); insert into ${at('parent')} values (1, 1)`,
    )
    expect(await write(at('parent'), { n: 2 })).toEqual({ id: 1, n: 2 })
    await fixture.pool.query(
      `create table ${at('child')} (primary key (id)) inherits (${at('parent')}); insert into ${at('child')} values (1, 1)`,
    )
    await expect(write(at('parent'), { n: 3 })).rejects.toThrow(
      `\`table\` names ${at('parent')}, which other tables inherit from`,
    )
    await expect(fixture.dibs.rows.claim(at('parent'), { set: { n: 3 } })).rejects.toThrow(InvalidInputError)
    await fixture.dibs.transaction((tx) =>
      expect(fixture.dibs.rows.lock(at('parent'), [1], { tx })).rejects.toThrow(InvalidInputError),
    )
    expect(await write(at('child'), { n: 4 })).toEqual({ id: 1, n: 4 })
    expect(await fixture.rows('parent', 'n')).toMatchObject([{ n: 2 }, { n: 4 }])
    await fixture.pool.query(`drop table ${at('child')}, ${at('parent')}`)
  })

  it('is not taken once there is a child again, after the last one was dropped', async () => {
    const [parent, child] = [at('par'), at('kid')]
    const inherit = () =>
      fixture.pool.query(
        `create table ${child} (primary key (id)) inherits (${parent}); insert into ${child} values (1, 1)`,
      )
    await fixture.pool.query(
      `create table ${parent} (id int primary key, n int); insert into ${parent} values (1, 1)`,
    )
    await inherit()
    await fixture.pool.query(`drop table ${child}`)
    const add = () => fixture.dibs.rows.adjust(parent, 1, { n: 1 })
    expect(await add()).toEqual({ id: 1, n: 2 })
    await inherit()
    await expect(add()).rejects.toThrow('which other tables inherit from')
    expect(await fixture.rows('par', 'n')).toMatchObject([{ n: 1 }, { n: 2 }])
    await fixture.pool.query(`alter table ${child} no inherit ${parent}`)
    expect(await add()).toEqual({ id: 1, n: 3 })
    await fixture.pool.query(`drop table ${child}, ${parent}`)
  })

  it('is no primary key that two rows may share', async () => {
    await fixture.pool.query(
      `create table ${at('deferred')} (id int primary key deferrable, code text unique, n int);
       insert into ${at('deferred')} values (1, 'b', 1), (2, 'a', 1);
       create table ${at('halves')} (id int not null, n int) partition by range (id);
       create table ${at('halves_1')} partition of ${at('halves')} for values from (0) to (10);
       alter table only ${at('halves')} add primary key (id);
       insert into ${at('halves')} values (1, 1), (1, 2)`,
    )
    const { dibs } = fixture
    for (const [name, problem] of [
      ['deferred', 'whose primary key (id) is deferrable'],
      ['halves', 'whose primary key (id) is not valid'],
    ] as const) {
      const asked = [
        () => write(at(name), { n: 2 }),
        () => dibs.rows.adjust(at(name), 1, { n: 1 }),
        () => dibs.transaction((tx) => dibs.rows.lock(at(name), [1], { tx })),
        () => dibs.rows.claim(at(name), { set: { n: 2 } }),
      ]
      for (const ask of asked) {
        const error = await ask().catch((error) => error)
        expect(error).toBeInstanceOf(InvalidInputError)
        expect(error.message).toContain(problem)
      }
      const named = write(at(name), { n: 2 }, { id: 1 })
      await expect(named).rejects.toThrow(problem.replace('whose', '. The'))
    }
    expect(await write(at('deferred'), { n: 2 }, { code: 'a' })).toMatchObject({ id: 2, n: 2 })
    await expect(write(at('deferred'), { id: 3 }, { code: 'a' })).rejects.toThrow('it identifies the row')
    const both = await dibs.transaction((tx) =>
      dibs.rows.lock(at('deferred'), [{ code: 'a' }, { code: 'b' }], { tx }),
    )
    expect(both).toMatchObject([{ id: 2 }, { id: 1 }])
    await fixture.pool.query(
      `truncate ${at('halves')}; create unique index halves_1_id on ${at('halves_1')} (id);
       alter table ${at('halves_1')} add primary key using index halves_1_id;
       alter index ${at('halves_pkey')} attach partition ${at('halves_1_id')}; insert into ${at('halves')} values (1, 1)`,
    )
    // For a second, the catalog does not read a table again that it has just rejected.
    await expect.poll(() => write(at('halves'), { n: 2 }).catch(() => undefined)).toEqual({ id: 1, n: 2 })
    await fixture.pool.query(`drop table ${at('deferred')}, ${at('halves')}`)
  })

  it('is no index that compares otherwise than its column', async () => {
    await fixture.pool.query(
      `create collation ${at('any_case')} (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
       create table ${at('compared')} (id int primary key, name text, code text, plain text unique);
       create unique index on ${at('compared')} (name collate ${at('any_case')});
       create unique index on ${at('compared')} (code text_pattern_ops);
       insert into ${at('compared')} values (1, 'Ann', 'a', 'p')`,
    )
    const insert = (column: string) =>
      fixture.dibs.rows.insertOnce(at('compared'), [column], { id: 2, [column]: 'p' })
    for (const column of ['name', 'code'])
      await expect(insert(column)).rejects.toThrow('. Unique indexes: (id), (plain).')
    expect(await insert('plain')).toMatchObject({ created: false, row: { id: 1 } })
    await fixture.pool.query(`drop table ${at('compared')}; drop collation ${at('any_case')}`)
  })
})

describe('what changes', () => {
  it('a table that was made in the transaction is seen', async () => {
    await withClient(async (tx) => {
      await tx.query(
        `create table ${at('fresh')} (id int primary key, n int); insert into ${at('fresh')} values (1, 1)`,
      )
      expect(await fixture.dibs.rows.lastWriteWins(at('fresh'), 1, { n: 2 }, { tx })).toEqual({ id: 1, n: 2 })
    })
    await expect(write(at('fresh'), { n: 2 })).rejects.toThrow('there is no such table')
  })

  it('columns that came, went or became another type are as they are now, alone and in a transaction', async () => {
    const steps = [
      ['add column more text', { n: 3 }, { id: 1, n: 3, more: null }],
      ['add column other int', { other: 3 }, { id: 1, n: 3, more: null, other: 3 }],
      ['drop column more, drop column other', { n: 4 }, { id: 1, n: 4 }],
      ['alter column n type text using n::text', { n: 'x' }, { id: 1, n: 'x' }],
      ['rename column n to m', { m: 'y' }, { id: 1, m: 'y' }],
    ] as const
    const change = (sql: string) => fixture.pool.query(`alter table ${at('moving')} ${sql}`)
    const inTransaction = (patch: object) =>
      withClient(async (tx) => {
        const row = await fixture.dibs.rows.lastWriteWins(at('moving'), 1, { ...patch }, { tx })
        expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }])
        await tx.query('commit')
        return row
      })
    const alone = (patch: object) => write(at('moving'), patch)
    for (const ask of [inTransaction, alone]) {
      await fixture.pool.query(
        `drop table if exists ${at('moving')}; create table ${at('moving')} (id int primary key, n int); insert into ${at('moving')} values (1, 1)`,
      )
      expect(await ask({ n: 2 })).toEqual({ id: 1, n: 2 })
      for (const [sql, patch, row] of steps) {
        await change(sql)
        expect(await ask(patch)).toEqual(row)
      }
    }
    await expect(write(at('moving'), { n: 'x' })).rejects.toThrow('names the column "n"')
    await fixture.pool.query(`drop table ${at('moving')}`)
    await expect(write(at('moving'), { m: 'x' })).rejects.toThrow('there is no such table')
  })

  it('keys that came or went, and what a column may hold, are as they are now', async () => {
    const name = at('keyed')
    await fixture.pool.query(
      `create table ${name} (id int primary key, code text not null, n int, w numeric(4, 2)); insert into ${name} values (1, 'a', 1, 1)`,
    )
    const change = (sql: string) => fixture.pool.query(`alter table ${name} ${sql}`)
    const inTransaction = <T>(ask: (tx: pg.PoolClient) => Promise<T>) =>
      withClient(async (tx) => {
        const answer = await ask(tx).catch((error) => error)
        expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }])
        return answer
      })
    const insert = (tx: pg.PoolClient) =>
      fixture.dibs.rows.insertOnce(name, ['code'], { id: 2, code: 'a' }, { tx })
    const lock = (tx: pg.PoolClient) => fixture.dibs.rows.lock(name, [{ code: 'a' }], { tx })
    const scale = (tx: pg.PoolClient) => fixture.dibs.rows.adjust(name, 1, { w: '0.125' }, { tx })
    await change('add constraint by_code unique (code)')
    expect(await inTransaction(insert)).toMatchObject({ created: false })
    expect(await inTransaction(lock)).toMatchObject([{ id: 1 }])
    expect(await inTransaction(scale)).toBeInstanceOf(InvalidInputError)
    await change('drop constraint by_code, alter column w type numeric(6, 3)')
    expect(await inTransaction(lock)).toBeInstanceOf(InvalidInputError)
    expect(await inTransaction(insert)).toBeInstanceOf(InvalidInputError)
    expect(await inTransaction(scale)).toMatchObject({ w: '1.125' })
    const write = (tx: pg.PoolClient) => fixture.dibs.rows.lastWriteWins(name, 1, { n: 5 }, { tx })
    expect(await inTransaction(write)).toMatchObject({ n: 5 })
    await change('alter column n set not null, alter column n add generated always as identity')
    expect(await inTransaction(write)).toMatchObject({ field: 'patch.n' })
    await change('drop constraint keyed_pkey, add constraint pairs unique (id, n)')
    expect(await inTransaction(scale)).toMatchObject({ field: 'id' })
    await fixture.pool.query(`drop table ${name}`)
  })

  it('a type that was renamed aborts a transaction once, and alone nothing', async () => {
    await fixture.pool.query(
      `create type ${at('mood')} as enum ('good'); create table ${at('typed')} (id int primary key, mood ${at('mood')}); insert into ${at('typed')} values (1)`,
    )
    const ask = (tx?: pg.PoolClient) =>
      fixture.dibs.rows.lastWriteWins(at('typed'), 1, { mood: 'good' }, { tx })
    await ask()
    await fixture.pool.query(`alter type ${at('mood')} rename to feeling`)
    expect(await ask()).toEqual({ id: 1, mood: 'good' })
    await fixture.pool.query(`alter type ${at('feeling')} rename to mood`)
    await withClient((tx) => expect(ask(tx)).rejects.toThrow(DatabaseError))
    await withClient(async (tx) => expect(await ask(tx)).toEqual({ id: 1, mood: 'good' }))
    await fixture.pool.query(`drop table ${at('typed')}; drop type ${at('mood')}`)
  })

  it('a column that came is in rows that are locked or claimed', async () => {
    await fixture.pool.query(
      `create table ${at('growing')} (id int primary key, n int); insert into ${at('growing')} values (1, 1)`,
    )
    const lock = () => fixture.dibs.transaction((tx) => fixture.dibs.rows.lock(at('growing'), [1], { tx }))
    const claim = () => fixture.dibs.rows.claim(at('growing'), { set: { n: 1 } })
    for (const [column, ask] of Object.entries({ one: lock, two: claim })) {
      await ask()
      await fixture.pool.query(`alter table ${at('growing')} add column ${column} int`)
      expect(await ask()).toMatchObject([{ id: 1, [column]: null }])
      await fixture.pool.query(`alter table ${at('growing')} drop column ${column}`)
      expect(await ask()).toEqual([{ id: 1, n: 1 }])
    }
    await fixture.pool.query(`drop table ${at('growing')}`)
  })

  it('a name is the table that the search path of the transaction says', async () => {
    const tenants = ['one', 'two'].map((name) => `${fixture.shop}_${name}`)
    for (const tenant of tenants)
      await fixture.pool.query(
        `create schema ${tenant}; create table ${tenant}.item (id int primary key, n int); insert into ${tenant}.item values (1, 0)`,
      )
    await fixture.pool.query(`alter table ${tenants[1]}.item add column more int`)
    const read = vi.spyOn(Catalog.prototype, 'read')
    for (const [n, tenant] of [...tenants, ...tenants].entries())
      await fixture.dibs.transaction(async (tx) => {
        await tx.query(`set local search_path = ${tenant}`)
        await fixture.dibs.rows.lastWriteWins('item', 1, { n: n + 1 }, { tx })
      })
    // Each is read once, though each call means another than the one before.
    expect(read).toHaveBeenCalledTimes(2)
    read.mockRestore()
    for (const [n, tenant] of tenants.entries()) {
      expect((await fixture.pool.query(`select n from ${tenant}.item`)).rows).toEqual([{ n: n + 3 }])
      await fixture.pool.query(`drop schema ${tenant} cascade`)
    }
  })

  it('an error of a trigger is told as it is, and leaves the transaction alive', async () => {
    await fixture.pool.query(`create table ${at('hooked')} (id int primary key, n int); insert into ${at('hooked')} values (1, 1);
      create function ${at('hook')}() returns trigger language plpgsql as $$ begin perform nowhere(); return new; end $$;
      create trigger t before update on ${at('hooked')} for each row execute function ${at('hook')}()`)
    await fixture.dibs.transaction(async (tx) => {
      const error = await fixture.dibs.rows
        .lastWriteWins(at('hooked'), 1, { n: 1 }, { tx })
        .catch((error) => error)
      expect(error).toBeInstanceOf(DatabaseError)
      expect(error).toMatchObject({ sqlState: '42883', message: expect.stringContaining('nowhere()') })
      expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    })
    await fixture.pool.query(`drop table ${at('hooked')}; drop function ${at('hook')}()`)
  })

  it('triggers of the table run under the search path of the caller', async () => {
    await withClient(async (tx) => {
      await tx.query(`set local search_path = ${fixture.shop}`)
      await tx.query(`create table log (n int);
        create function hook() returns trigger language plpgsql as $$ begin insert into log values (new.n); return new; end $$;
        create trigger t before update on "order" for each row execute function hook()`)
      await fixture.dibs.rows.adjust('order', 1, { n: 1 }, { tx }).catch(() => {})
      await fixture.dibs.rows.lastWriteWins('order', 1, { n: 5 }, { tx })
      expect((await tx.query('select n from log')).rows).toEqual([{ n: 5 }])
    })
  })
})

it('each table is read once, whichever call needs it first, and once more for what is refused', async () => {
  await fixture.pool.query(
    `create table ${at('counted')} (id int primary key, n int default 0); insert into ${at('counted')} values (1)`,
  )
  const first = await countTraffic(fixture.pool, () => write(at('counted'), { n: 1 }))
  const second = await countTraffic(fixture.pool, () => fixture.dibs.rows.adjust(at('counted'), 1, { n: 1 }))
  const third = await countTraffic(fixture.pool, () =>
    fixture.dibs.rows.claim(at('counted'), { set: { n: 1 } }),
  )
  const wrong = () => fixture.dibs.rows.lastWriteWins(at('counted'), 'x', { n: 1 }).catch(() => {})
  const [fourth, fifth] = [await countTraffic(fixture.pool, wrong), await countTraffic(fixture.pool, wrong)]
  expect([first, second, third, fourth, fifth].map(({ roundTrips }) => roundTrips)).toEqual([2, 1, 1, 1, 1])
  await fixture.pool.query(`drop table ${at('counted')}`)
})
