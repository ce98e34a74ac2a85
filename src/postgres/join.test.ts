import pg from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { url, viaPgBouncer } from '../../test/database.js'
import { openDatabase, type TestDatabase } from '../../test/open-database.js'
import { NotInTransactionError } from '../errors.js'
import { statement } from './statement.js'

const one = statement('select $1::text::int::text as "n"')

let database: TestDatabase

beforeAll(async () => {
  database = await openDatabase()
})

afterAll(() => database.drop())

async function withClient<T>(fn: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await database.pool.connect()
  try {
    return await fn(client)
  } finally {
    client.release()
  }
}

it('joins a pg client after BEGIN, and not before or after', () =>
  withClient(async (client) => {
    await expect(database.send(one, ['1'], { tx: client })).rejects.toThrow(
      'a pg client that has no open transaction',
    )
    await client.query('begin')
    expect(await database.send(one, ['2'], { tx: client })).toEqual([{ n: '2' }])
    await client.query('rollback')
    await expect(database.send(one, ['3'], { tx: client })).rejects.toThrow(NotInTransactionError)
  }))

it('asks the server where the client is too old to know its status', () =>
  withClient(async (client) => {
    const old = new Proxy(client, {
      get: (target, key) => {
        if (key === 'getTransactionStatus') return undefined
        const value = Reflect.get(target, key)
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
    await expect(database.send(one, ['1'], { tx: old })).rejects.toThrow(NotInTransactionError)
    await client.query('begin')
    expect(await database.send(one, ['2'], { tx: old })).toEqual([{ n: '2' }])
    await client.query('rollback')
  }))

it('joins the tx of dibs.transaction', async () => {
  expect(await database.transaction((tx) => database.send(one, ['7'], { tx }))).toEqual([{ n: '7' }])
})

it('refuses a Pool, by type and at run time, and says what to do', async () => {
  // @ts-expect-error: a Pool is no transaction
  const error = await database.send(one, ['1'], { tx: database.pool }).catch((reason) => reason)
  expect(error).toBeInstanceOf(NotInTransactionError)
  expect(error.message).toContain('a pg Pool, which runs each query on any connection. Take a client')
})

it.each([null, 'tx', 7, {}, { query: async () => ({ rows: [] }) }])('refuses %j', async (given) => {
  const error = await database.send(one, ['1'], { tx: given as never }).catch((reason) => reason)
  expect(error).toBeInstanceOf(NotInTransactionError)
  expect(error.message).toContain('Wrap the transaction of your library: fromKysely')
})

it('names its statements for the server to keep, unless told not to', async () => {
  const names = async (prepared: boolean) => {
    const pool = new pg.Pool({ connectionString: url, max: 1 })
    const { Database } = await import('./database.js')
    const own = new Database(pool, { schema: database.schema, prepared })
    const client = await pool.connect()
    await client.query('begin')
    await own.send(one, ['1'], { tx: client })
    await own.send(one, ['2'], { tx: client })
    const { rows } = await client.query(
      "select count(*)::int as n from pg_prepared_statements where name like 'dibs_%'",
    )
    await client.query('rollback')
    client.release()
    await pool.end()
    return rows[0].n
  }
  expect(await names(false)).toBe(0)
  if (!viaPgBouncer) expect(await names(true)).toBe(1)
})
