import { afterAll, beforeAll, beforeEach, expect, it, onTestFinished } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import {
  BusyError,
  ConflictError,
  InsufficientError,
  InvalidInputError,
  NotFoundError,
  StateConflictError,
} from '../../src/errors.js'
import { throughPool } from '../database.js'
import type { Context } from './harness.js'

export function describeRows({ schema, admin, transaction, ids }: Context): void {
  let dibs: Dibs
  const table = `${schema}."Thing"`
  const name = `${schema}.Thing`
  beforeAll(async () => {
    dibs = await Dibs.open({ ...throughPool, pool: admin, schema, listen: false })
    await admin.query(`create table ${table} (
      "thingId" int primary key, label text unique, body jsonb, amount numeric(8, 2) not null default 10, version int not null default 1,
      status text not null default 'new', lease_until timestamptz, is_big boolean, tags text[])`)
  })
  beforeEach(() =>
    admin.query(`truncate ${table}; insert into ${table} ("thingId", label) values (1, 'one'), (2, 'two')`),
  )
  afterAll(() => dibs.close())

  it('reads and writes rows in the transaction, by the names of their columns', async () => {
    await transaction(async (_, { tx }) => {
      const locked = await dibs.rows.lock<{ thingId: number; label: string }>(name, [2, 1], { tx })
      expect(locked.map(({ thingId, label }) => [thingId, label])).toEqual([
        [2, 'two'],
        [1, 'one'],
      ])
      const body = { quotes: `"'\\`, list: ['🦊', null] }
      const written = { is_big: true, body, tags: ['a', '"', null] }
      expect(await dibs.rows.update(name, { id: 1, version: 1 }, written, { tx })).toMatchObject({
        ...{ thingId: 1, version: 2, is_big: true, label: 'one' },
      })
      expect(await dibs.rows.lastWriteWins(name, { label: 'one' }, { status: 'held' }, { tx })).toMatchObject(
        {
          status: 'held',
        },
      )
      const step = { from: ['new', 'held'], to: 'paid' }
      expect(await dibs.rows.transition(name, 1, { ...step, set: { is_big: false } }, { tx })).toMatchObject({
        status: 'paid',
        is_big: false,
      })
      await dibs.rows.adjust(name, 1, { amount: '-2.50' }, { tx })
      const made = await dibs.rows.insertOnce(name, ['label'], { thingId: 3, label: 'three' }, { tx })
      expect(made).toMatchObject({ created: true, row: { thingId: 3, label: 'three', status: 'new' } })
      expect(
        await dibs.rows.insertOnce(name, ['label'], { thingId: 4, label: 'three' }, { tx }),
      ).toMatchObject({
        ...{ created: false, row: { thingId: 3 } },
      })
      const claimed = await dibs.rows.claim<{ thingId: number }>(name, {
        ...{
          tx,
          where: { sql: 'amount > $1 and status = $2', values: [1, 'new'] },
          order: 'label',
          limit: 5,
        },
        leaseColumn: 'lease_until',
      })
      expect(claimed.map(({ thingId }) => thingId)).toEqual([3, 2])
    })
    const { rows } = await admin.query(
      `select "thingId" as id, amount::text, body ->> 'quotes' as quotes, tags::text, lease_until > now() as leased from ${table} order by 1`,
    )
    expect(rows).toEqual([
      { id: 1, amount: '7.50', quotes: `"'\\`, tags: '{a,"\\"",NULL}', leased: null },
      { id: 2, amount: '10.00', quotes: null, tags: null, leased: true },
      { id: 3, amount: '10.00', quotes: null, tags: null, leased: true },
    ])
  })

  it('leaves the transaction usable after every refusal', async () => {
    const other = await admin.connect()
    onTestFinished(() => other.release(true))
    await other.query(`begin; select from ${table} where "thingId" = 2 for update`)
    await transaction(async (_, { tx, insert }) => {
      await expect(dibs.rows.lock(name, [1, 2], { tx, waitMs: 10 })).rejects.toThrow(BusyError)
      await expect(dibs.rows.lock(name, [1, 2], { tx, ifLocked: 'fail' })).rejects.toThrow(BusyError)
      await expect(dibs.rows.lock(name, [1, 7], { tx })).rejects.toThrow(NotFoundError)
      await expect(dibs.rows.lock(name, ['x'], { tx })).rejects.toThrow(InvalidInputError)
      await expect(dibs.rows.lock(`${schema}.thing`, [1], { tx })).rejects.toThrow('Did you mean')
      await expect(dibs.rows.update(name, { id: 1, version: 7 }, { status: '' }, { tx })).rejects.toThrow(
        ConflictError,
      )
      await expect(dibs.rows.transition(name, 1, { from: 'paid', to: 'new' }, { tx })).rejects.toThrow(
        StateConflictError,
      )
      await expect(dibs.rows.adjust(name, 1, { amount: -11 }, { tx })).rejects.toThrow(InsufficientError)
      await expect(dibs.rows.adjust(name, 2, { amount: -1 }, { tx, waitMs: 10 })).rejects.toThrow(BusyError)
      await insert('later', 'later')
    })
    await other.query('rollback')
    expect(await ids()).toEqual(['later'])
  })

  it('is rolled back with it', async () => {
    const failed = transaction(async (_, { tx }) => {
      await dibs.rows.adjust(name, 1, { amount: -1 }, { tx })
      await dibs.rows.insertOnce(name, ['label'], { thingId: 3, label: 'three' }, { tx })
      await dibs.rows.claim(name, { tx, set: { status: 'taken' } })
      throw new Error('on purpose')
    })
    await expect(failed).rejects.toThrow('on purpose')
    const { rows } = await admin.query(`select amount::text, status from ${table}`)
    expect(rows).toEqual([
      { amount: '10.00', status: 'new' },
      { amount: '10.00', status: 'new' },
    ])
  })

  it('counts children in the transaction, marks their parent, and adds to it', async () => {
    await admin.query(
      `create table ${schema}.part (id int primary key, thing int, status text not null default 'new')`,
    )
    const parts = dibs.aggregate('parts', {
      ...{ parent: name, child: `${schema}.part`, foreignKey: 'thing' },
      columns: { amount: 'count(*)', tags: 'array_agg(status)' },
    })
    await transaction(async (_, { tx, insert }) => {
      await tx.query(`insert into ${schema}.part values (1, 1), (2, 1)`)
      expect(await parts.recompute(1, { tx })).toMatchObject({ thingId: 1, label: 'one' })
      await parts.markDirty([1, 2], { tx })
      const step = { from: 'new', to: 'done' }
      expect(await parts.transition(2, step, { tx, add: { amount: '0.50' } })).toMatchObject({
        status: 'done',
      })
      await expect(parts.transition(2, step, { tx, add: { amount: 1 } })).rejects.toThrow(StateConflictError)
      await expect(parts.recompute([1, 9], { tx })).rejects.toThrow(NotFoundError)
      await insert('later', 'later')
    })
    const { rows } = await admin.query(`select amount::text from ${table} order by "thingId"`)
    expect(rows).toEqual([{ amount: '2.50' }, { amount: '10.00' }])
    expect(await parts.refresh()).toMatchObject({ recomputed: 2, marks: 2 })
    await admin.query(`drop table ${schema}.part`)
  })
}
