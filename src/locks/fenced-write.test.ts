import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { directUrl, freshName, throughPool, withPool } from '../../test/database.js'
import { Dibs } from '../dibs.js'
import {
  ConstraintViolationError,
  DatabaseError,
  FenceLostError,
  InvalidInputError,
  NotFoundError,
  NotWrittenError,
} from '../errors.js'
import type { Executor } from '../postgres/executor.js'
import type { Lock } from './lock.js'

/** Another database, which knows nothing of us. */
const name = freshName('elsewhere')
const target = new URL(directUrl)
target.pathname = `/${name}`
const store = new pg.Pool({ connectionString: target.href })
store.on('error', () => {})
const fixture = openClaims()
const HOUR_MS = 3_600_000

beforeAll(async () => {
  await withPool((admin) => admin.query(`create database ${name}`), { connectionString: directUrl })
  await store.query(`create schema sales; create table sales.report (
    day date primary key, body text check (body <> 'bad'), fence bigint, "Odd ""name" int)`)
})
beforeEach(() => store.query("truncate sales.report; insert into sales.report (day) values ('2026-01-01')"))
afterAll(async () => {
  await store.end()
  await withPool((admin) => admin.query(`drop database ${name} with (force)`), {
    connectionString: directUrl,
  })
})

const write = (body: string) => ({ table: 'sales.report', where: { day: '2026-01-01' }, set: { body } })
const stored = async () => (await store.query('select body, fence::float8 from sales.report')).rows

describe('a write to a store elsewhere', () => {
  it('is done by the holder, again and again, and leaves its fence there', async () => {
    await using lock = await fixture.dibs.lock('report')
    const { rows } = await lock.writeFenced<{ body: string }>(store, write('one'))
    expect(rows[0]?.body).toBe('one')
    await lock.writeFenced(store, { ...write('two'), set: { body: 'two', 'Odd "name': 7 } })
    expect(await stored()).toEqual([{ body: 'two', fence: lock.fence }])
  })

  it('is refused once a later holder has written', async () => {
    const mine = await fixture.dibs.lock('report', { leaseMs: HOUR_MS })
    await fixture.schema.clock.advance(2 * HOUR_MS)
    await using next = (await fixture.other.tryLock('report')) as Lock
    // Nobody has told the store yet.
    await mine.writeFenced(store, write('early'))
    await next.writeFenced(store, write('next'))
    const events = await fixture.eventsOf(async () => {
      await expect(mine.writeFenced(store, write('late'))).rejects.toThrow(FenceLostError)
    })
    expect(events.map(([event]) => event)).toEqual(['dibs:lock.fence-rejected', 'dibs:lock.lost'])
    expect(events[0]?.[1]).toMatchObject({ where: 'store', fence: mine.fence })
    expect(mine.signal.reason).toMatchObject({ reason: 'stolen' })
    expect(await stored()).toEqual([{ body: 'next', fence: next.fence }])
  })

  it('is not sent once the lock is known to be lost', async () => {
    const mine = await fixture.dibs.lock('report')
    await mine.release()
    await expect(mine.writeFenced(store, write('late'))).rejects.toThrow(FenceLostError)
    expect(await stored()).toEqual([{ body: null, fence: null }])
  })

  it('is for a lock of one holder', async () => {
    await using lock = await fixture.dibs.lock('report', { permits: 2 })
    await expect(lock.writeFenced(store, write('x'))).rejects.toThrow('one holds at a time')
  })

  it('does not end a lock that is held though the store has seen a later fence', async () => {
    await using lock = await fixture.dibs.lock('report')
    await store.query('update sales.report set fence = 9007199254740991')
    await expect(lock.writeFenced(store, write('x'))).rejects.toThrow(FenceLostError)
    lock.assertHeld()
  })

  it('nor does a transaction of another database, which is refused', async () => {
    await using lock = await fixture.dibs.lock('report')
    const stranger = await store.connect()
    await stranger.query('begin')
    const unknown = await lock.guard(stranger).catch((e) => e)
    expect(unknown).toBeInstanceOf(InvalidInputError)
    expect(unknown.message).toContain('is of another database, which has not the schema of this instance')
    await stranger.query('rollback')
    stranger.release()
    await using there = await Dibs.open({
      ...throughPool,
      pool: store,
      schema: fixture.schema.name,
      listen: false,
    })
    const error = await there.transaction((tx) => lock.guard(tx)).catch((e) => e)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.message).toContain('is of another database than lock "report"')
    lock.assertHeld()
  })

  it('is done also if the row is made while it is looked for', async () => {
    await using lock = await fixture.dibs.lock('report')
    await store.query('truncate sales.report')
    let isMade = false
    const late: Executor = {
      query: async (text: string, values?: unknown[]) => {
        const result = await store.query(text, values)
        if (!isMade) await store.query("insert into sales.report (day) values ('2026-01-01')")
        isMade = true
        return result
      },
    } as Executor
    await lock.writeFenced(late, write('made'))
    expect(await stored()).toEqual([{ body: 'made', fence: lock.fence }])
  })

  it('that a trigger keeps from being done is not taken for a loss', async () => {
    await using lock = await fixture.dibs.lock('report')
    await store.query(
      `create function sales.keep() returns trigger language plpgsql as 'begin return null; end';
       create trigger keep before update on sales.report for each row execute function sales.keep()`,
    )
    await expect(lock.writeFenced(store, write('x'))).rejects.toThrow(NotWrittenError)
    await store.query('drop function sales.keep cascade')
    lock.assertHeld()
  })

  it('says what is wrong with it', async () => {
    await using lock = await fixture.dibs.lock('report')
    const refused = async (given: object, on: unknown = store): Promise<string> => {
      const error = await lock.writeFenced(on as pg.Pool, { ...write('x'), ...given }).catch((e) => e)
      expect(error).toBeInstanceOf(InvalidInputError)
      return error.field
    }
    await expect(lock.writeFenced(store, { ...write('x'), where: { day: '2030-01-01' } })).rejects.toThrow(
      'There is no row {"day":"2030-01-01"} of table',
    )
    await expect(lock.writeFenced(store, { ...write('x'), where: { 'Odd "name': 5n } })).rejects.toThrow(
      NotFoundError,
    )
    expect(await refused({ where: {} })).toBe('where')
    await expect(lock.writeFenced(store, { ...write('x'), where: {} })).rejects.toThrow(
      'must have at least one column, and has none',
    )
    expect(await refused({ where: undefined })).toBe('where')
    expect(await refused({ where: ['day'] })).toBe('where')
    expect(await refused({ fenceColumn: 5 })).toBe('fenceColumn')
    expect(await refused({ where: { day: null } })).toBe('where')
    expect(await refused({ set: {} })).toBe('set')
    expect(await refused({ set: { body: undefined } })).toBe('set')
    expect(await refused({ set: { fence: 7 } })).toBe('set')
    expect(await refused({ table: '' })).toBe('identifier')
    expect(await refused({ table: 7 })).toBe('table')
    expect(await refused({ column: 'x' })).toBe('column')
    expect(await refused({}, {})).toBe('store')
    await expect(lock.writeFenced(store, write('bad'))).rejects.toThrow(ConstraintViolationError)
    await expect(lock.writeFenced(store, { ...write('x'), table: 'nowhere' })).rejects.toThrow(DatabaseError)
    lock.assertHeld()
  })
})
