import pg from 'pg'
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { directUrl, until } from '../../test/database.js'
import { openDatabase, type TestDatabase } from '../../test/open-database.js'
import { CommitOutcomeUnknownError, ConstraintViolationError } from '../errors.js'
import { countTraffic, PgProxy } from '../testing/index.js'
import { Database } from './database.js'
import type { BoundStatement } from './pipeline.js'
import { statement } from './statement.js'

let direct: TestDatabase
let proxy: PgProxy
/** On a pool of one: whatever is left on its connection is met by the next. */
let database: Database
let leftOut = 0

beforeAll(async () => {
  const pool = new pg.Pool({ connectionString: directUrl })
  direct = await openDatabase({ pool })
  await pool.query(`create table "${direct.schema}".notified (n int primary key)`)
  proxy = await PgProxy.start({ url: directUrl })
})

beforeEach(async () => {
  proxy.inject({ kind: 'heal' })
  leftOut = 0
  await direct.pool.query(`truncate "${direct.schema}".notified`)
  database = open({ prepared: true })
  return () => database.pool.end()
})

afterAll(async () => {
  await proxy.close()
  await direct.drop()
  await direct.pool.end()
})

function open({ prepared }: { prepared: boolean }, config: pg.PoolConfig = {}): Database {
  const pool = new pg.Pool({ connectionString: proxy.url, max: 1, ...config })
  pool.on('error', () => {})
  return new Database(pool, { schema: direct.schema, prepared })
}

const notify = statement('insert into {schema}.notified values ($1::text::int) returning n::text as n')

const wait = statement('select pg_catalog.pg_sleep($1::text::int)::text as done')
const end = statement('select pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())::text as done')

const sendWith = (
  first: string,
  following: BoundStatement,
  ifNotSent = () => {
    leftOut++
  },
) => database.send(notify, [first], { followUp: { statement: following, ifNotSent } })

const sendThen = (first: string, second: string) => sendWith(first, database.bind(notify, [second]))

const notified = async () =>
  (await direct.pool.query(`select n from "${direct.schema}".notified order by n`)).rows.map(({ n }) => n)

/** Waits until the follow-up has ended: then the only connection of the pool is free again. */
const settle = () => database.send(statement('select 1::text as one', { readOnly: true }), [])

it('sends both in one message, and gives the connection back', async () => {
  await settle()
  const { roundTrips } = await countTraffic(database.pool, () => sendThen('1', '2'))
  expect(roundTrips).toBe(1)
  await settle()
  expect(await notified()).toEqual([1, 2])
  expect(leftOut).toBe(0)
  expect(database.pool.totalCount).toBe(1)
})

/** Runs `fn` while another transaction has inserted 2 and has not committed: a statement that inserts 2 waits for it. */
async function whileTwoWaits(fn: () => Promise<void>): Promise<void> {
  const client = await direct.pool.connect()
  try {
    await client.query(`begin; insert into "${direct.schema}".notified values (2)`)
    await fn()
  } finally {
    await client.query('rollback')
    client.release()
  }
}

it('answers before the second is done, which is waited for by whoever closes', async () => {
  let closed: Promise<void> | undefined
  await whileTwoWaits(async () => {
    expect(await sendThen('1', '2')).toEqual([{ n: '1' }])
    closed = database.close()
  })
  await closed
  expect(await notified()).toEqual([1, 2])
})

it('says that the second is to be done otherwise if it fails', async () => {
  expect(await sendThen('1', '1')).toEqual([{ n: '1' }])
  await settle()
  expect(leftOut).toBe(1)
  expect(database.pool.totalCount).toBe(1)
})

it('says nothing of the second if the first fails', async () => {
  await sendThen('1', '2')
  await expect(sendThen('1', '3')).rejects.toThrow(ConstraintViolationError)
  await settle()
  expect(leftOut).toBe(0)
})

it.each<[string, { prepared: boolean }, pg.PoolConfig]>([
  ['without names', { prepared: false }, {}],
  ['on clients that pipeline by themselves', { prepared: true }, { pipeline: true } as pg.PoolConfig],
])('sends the first alone %s', async (_, options, config) => {
  await database.pool.end()
  database = open(options, config)
  expect(await sendThen('1', '2')).toEqual([{ n: '1' }])
  expect(await notified()).toEqual([1])
  expect(leftOut).toBe(1)
})

it('sends the first alone at another level than ours', async () => {
  database.autocommitFits = false
  expect(await sendThen('1', '2')).toEqual([{ n: '1' }])
  expect(await notified()).toEqual([1])
  expect(leftOut).toBe(1)
})

it('goes on when the names were forgotten', async () => {
  await sendThen('1', '2')
  await database.pool.query('discard all')
  expect(await sendThen('3', '4')).toEqual([{ n: '3' }])
  await sendThen('5', '6')
  await settle()
  expect(await notified()).toEqual([1, 2, 3, 5, 6])
  expect(leftOut).toBe(1)
})

it('does not know what came of it if the connection is lost', async () => {
  await settle()
  proxy.inject({ kind: 'cut', when: 'after', statement: 'notified' })
  await expect(sendThen('1', '2')).rejects.toThrow(CommitOutcomeUnknownError)
  await settle()
  expect(leftOut).toBe(0)
})

it('does not keep a refusal of the first until the second is answered', async () => {
  await sendThen('1', '2')
  await settle()
  await direct.pool.query(`delete from "${direct.schema}".notified where n = 2`)
  await whileTwoWaits(() => expect(sendThen('1', '2')).rejects.toThrow(ConstraintViolationError))
  await settle()
  expect(await notified()).toEqual([1, 2])
  expect(database.pool.totalCount).toBe(1)
})

it.each<[string, string]>([
  ['1', 'whose first was refused'],
  ['3', 'whose first was done'],
])('throws a connection away that ends at the second (%s: %s)', async (first) => {
  await sendThen('1', '2')
  await settle()
  await sendWith(first, database.bind(end, [])).catch(() => {})
  expect(await database.send(notify, ['9'])).toEqual([{ n: '9' }])
})

it('throws a connection away whose second the pool does not wait for', async () => {
  await database.pool.end()
  database = open({ prepared: true }, { query_timeout: 700 })
  await sendWith('1', database.bind(wait, ['3']))
  await until(() => leftOut === 1, 'the time to be up')
  expect(await database.send(notify, ['9'])).toEqual([{ n: '9' }])
})

it('sends no more seconds than two at a time, and none for a while after one that does not end', async () => {
  await database.pool.end()
  database = open({ prepared: true }, { max: 5 })
  const slow = database.bind(wait, ['3'])
  for (const n of ['1', '2', '3']) await sendWith(n, slow)
  expect(leftOut).toBe(1)
  expect(await database.send(notify, ['4'])).toEqual([{ n: '4' }])
  await until(() => leftOut === 3, 'both to be cut')
  await sendThen('5', '6')
  expect(leftOut).toBe(4)
  expect(await notified()).toEqual([1, 2, 3, 4, 5])
})

it('sends no more seconds than that for those who ask at the same time', async () => {
  await database.pool.end()
  database = open({ prepared: true }, { max: 5 })
  const slow = database.bind(wait, ['1'])
  const asked = ['1', '2', '3', '4', '5'].map((n) => sendWith(n, slow))
  await Promise.all(asked)
  expect(leftOut).toBe(3)
  expect(await notified()).toEqual([1, 2, 3, 4, 5])
})

it('gives the connection back if it cannot be asked', async () => {
  const client = await database.pool.connect()
  const { query } = client
  client.query = (() => {
    client.query = query
    throw new Error('not this one')
  }) as never
  client.release()
  await expect(sendThen('1', '2')).rejects.toThrow('not this one')
  expect(await sendThen('1', '2')).toEqual([{ n: '1' }])
})
