import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { ConstraintViolationError, DatabaseError, InvalidInputError, NotFoundError } from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'

const keys = {
  state: ['open', 'shut'],
  short: ['1.24', '1.239'],
  even: ['2', '3'],
  code: ['ab', 'abc'],
  folded: ['Ann', 'ann'],
} as const
const fixture = openTables(
  `create type {shop}.mood as enum ('open', 'shut', 'gone');
   create domain {shop}.state as {shop}.mood;
   create domain {shop}.price as numeric(5, 2);
   create domain {shop}.short as {shop}.price;
   create domain {shop}.even as int check (value % 2 = 0);
   create domain {shop}.code as varchar check (value = lower(value) and length(value) < 3);
   create domain {shop}.folded as text collate "POSIX";
   create domain {shop}.three as bit(3);
   create domain {shop}.sure as text not null;
   create table {shop}.strict (id int primary key, note {shop}.sure, n int);
   create domain {shop}.upto as varbit(3);
   create table {shop}.work (id int primary key, status {shop}.state, size {shop}.even, n int, bits {shop}.three, more {shop}.upto, price {shop}.price);
   ${Object.keys(keys)
     .map(
       (type) =>
         `create table {shop}.by_${type} (id {shop}.${type}${type === 'folded' ? ' collate "C"' : ''} primary key, n int);`,
     )
     .join('\n')}
   create table {shop}.by_char (id "char" primary key, n int);
   create table {shop}.by_name (id name primary key, n int)`,
  `insert into {shop}.work values (1, 'open', 2, 1), (2, 'shut', 4, 1);
   ${Object.entries(keys)
     .map(([type, [id]]) => `insert into {shop}.by_${type} values ('${id}', 1);`)
     .join('\n')}
   insert into {shop}.by_char values ('a', 1);
   insert into {shop}.by_name values ('${'x'.repeat(63)}', 1)`,
)
const { at, withClient } = fixture
const isAlive = async (tx: Tx) => expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }])

describe('a domain', () => {
  it.each(Object.entries(keys))('as an id, %s: what is not there is not found', async (type, [id, other]) => {
    const { dibs } = fixture
    const table = at(`by_${type}`)
    await withClient(async (tx) => {
      expect(await dibs.rows.adjust(table, id, { n: 1 }, { tx })).toMatchObject({ n: 2 })
      expect(await dibs.rows.lock(table, [id], { tx })).toMatchObject([{ n: 2 }])
      expect(await dibs.rows.insertOnce(table, ['id'], { id, n: 9 }, { tx })).toMatchObject({
        created: false,
      })
      expect(await dibs.rows.claim(table, { tx, where: { id } })).toMatchObject([{ n: 2 }])
      await expect(dibs.rows.adjust(table, other, { n: 1 }, { tx })).rejects.toThrow(NotFoundError)
      await expect(dibs.rows.lock(table, [other], { tx })).rejects.toThrow(NotFoundError)
      expect(await dibs.rows.claim(table, { tx, where: { id: other } })).toEqual([])
      expect(await dibs.rows.claim(table, { tx, where: { id: [other] } })).toEqual([])
      await isAlive(tx)
    })
  })

  it('that is never null is none where there is no row', async () => {
    const { dibs } = fixture
    await fixture.pool.query(`insert into ${at('strict')} values (1, 'a', 1)`)
    await withClient(async (tx) => {
      await expect(dibs.rows.adjust(at('strict'), 2, { n: 1 }, { tx })).rejects.toThrow(NotFoundError)
      expect(await dibs.rows.adjust(at('strict'), 1, { n: 1 }, { tx })).toEqual({ id: 1, note: 'a', n: 2 })
      expect(await dibs.rows.lock(at('strict'), [1], { tx })).toEqual([{ id: 1, note: 'a', n: 2 }])
      await isAlive(tx)
    })
  })

  it.each(Object.keys(keys))('as a key, %s, is claimed and written', async (type) => {
    const [id] = keys[type as keyof typeof keys]
    const [row] = await fixture.dibs.rows.claim<{ id: unknown }>(at(`by_${type}`), { set: { n: 5 } })
    expect({ ...row, id: `${row?.id}` }).toEqual({ id, n: 5 })
  })

  it('over an enum is a state like any other', async () => {
    const { dibs } = fixture
    const step = { from: ['open', 'gone'], to: 'shut' }
    expect(await dibs.rows.transition(at('work'), 1, step)).toMatchObject({ status: 'shut' })
    await expect(dibs.rows.transition(at('work'), 1, step)).rejects.toMatchObject({ current: 'shut' })
    const where = { status: 'shut' }
    expect(await dibs.rows.claim(at('work'), { where, limit: 5, set: { n: 2 } })).toHaveLength(2)
  })

  it('still holds for what is written', async () => {
    const write = (patch: object) => fixture.dibs.rows.lastWriteWins(at('work'), 1, { ...patch })
    expect(await write({ size: 6, price: '1.239', bits: '101' })).toMatchObject({ size: 6, price: '1.24' })
    await expect(write({ size: 3 })).rejects.toThrow(ConstraintViolationError)
    await expect(write({ price: '1000' })).rejects.toThrow(DatabaseError)
    const insert = (id: number) => fixture.dibs.rows.insertOnce(at('by_even'), ['id'], { id })
    await expect(insert(5)).rejects.toThrow(ConstraintViolationError)
    expect(await insert(6)).toMatchObject({ created: true })
  })

  it.each(Object.entries(keys))('is looked for by its index: %s', async (type, [id]) => {
    await withClient(async (tx) => {
      await tx.query('load $$auto_explain$$')
      await tx.query(`set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_mergejoin = off; set local enable_hashjoin = off;
        set local auto_explain.log_min_duration = 0; set local auto_explain.log_nested_statements = on;
        set local client_min_messages = log`)
      const plans: string[] = []
      const note = ({ message }: { message?: string | undefined }) => plans.push(`${message}`)
      tx.on('notice', note)
      await fixture.dibs.rows.adjust(at(`by_${type}`), id, { n: 1 }, { tx })
      await fixture.dibs.rows.lock(at(`by_${type}`), [id], { tx })
      tx.off('notice', note)
      const scans = plans.filter((plan) => plan.includes(`by_${type}_pkey`))
      expect(scans.filter((plan) => /Index Cond: \(\(?\(?id/.test(plan))).toHaveLength(2)
    })
  })
})

describe('what a type would cut off is refused', () => {
  it.each([
    ['by_char', 'a', 'abc', 'must be at most 1 byte long, and has 3'],
    ['by_name', 'x'.repeat(63), 'x'.repeat(70), 'must be at most 63 bytes long, and has 70'],
    ['by_name', 'x'.repeat(63), 'ü'.repeat(32), 'must be at most 63 bytes long, and has 64'],
  ])('in an id of %s', async (name, id, long, problem) => {
    const add = (given: string) => fixture.dibs.rows.adjust(at(name), given, { n: 1 })
    expect(await add(id)).toMatchObject({ n: 2 })
    await expect(add(long)).rejects.toThrow(problem)
    await expect(add(long)).rejects.toThrow(InvalidInputError)
  })

  it.each(['bits', 'more'])('in a value: %s', async (column) => {
    await withClient(async (tx) => {
      const write = (text: string) =>
        fixture.dibs.rows.lastWriteWins(at('work'), 1, { [column]: text }, { tx })
      await expect(write('10101')).rejects.toThrow(DatabaseError)
      expect(await write('101')).toMatchObject({ [column]: '101' })
    })
  })
})

it('null is null where the session reads no nulls in arrays', async () => {
  await withClient(async (tx) => {
    await tx.query(
      `create table ${at('noted')} (id int primary key, note text unique, tags text[]); insert into ${at('noted')} values (1, 'x'); set local array_nulls = off`,
    )
    const { dibs } = fixture
    const read = async () =>
      (await tx.query(`select note, tags::text as tags from ${at('noted')} order by id`)).rows
    await dibs.rows.lastWriteWins(at('noted'), 1, { note: null }, { tx })
    await dibs.rows.insertOnce(at('noted'), ['id'], { id: 2, note: null }, { tx })
    expect(await read()).toEqual([
      { note: null, tags: null },
      { note: null, tags: null },
    ])
    for (const [n, tags] of [
      ['a', null, 'null', 'dibs'],
      [
        ['a', null],
        [null, 'b'],
      ],
      ['null'],
    ].entries()) {
      await dibs.rows.lastWriteWins(at('noted'), 1, { tags }, { tx })
      const { rows } = await tx.query(`select tags from ${at('noted')} where id = 1`)
      expect([n, rows[0]?.tags]).toEqual([n, tags])
    }
    const where = { sql: 'note is not distinct from $1 and $2::text[] = $3', values: [null, '{a}', ['a']] }
    expect(await dibs.rows.claim(at('noted'), { tx, where, limit: 5 })).toHaveLength(2)
  })
})
