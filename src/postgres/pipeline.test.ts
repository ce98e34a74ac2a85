import pg from 'pg'
import { expect, it } from 'vitest'
import { directUrl } from '../../test/database.js'
import { countTraffic } from '../testing/count-traffic.js'
import { type BoundStatement, controlStatement, queryPipeline, queryWithFollowUp } from './pipeline.js'
import { nameStatement, statement } from './statement.js'

const bound = (text: string, ...values: (string | null)[]): BoundStatement => ({
  statement: nameStatement(statement(text)),
  values,
})

const [BEGIN, COMMIT, ROLLBACK] = [
  controlStatement('begin'),
  controlStatement('commit'),
  controlStatement('rollback'),
]
const add = (n: string | null) =>
  bound('insert into together select $1::text::int returning n::text as n, null as "nothing"', n)

async function withClient(
  fn: (client: pg.PoolClient, pool: pg.Pool) => Promise<void>,
  config: pg.PoolConfig = {},
): Promise<void> {
  const pool = new pg.Pool({ connectionString: directUrl, max: 1, ...config })
  const client = await pool.connect()
  try {
    await client.query('create temporary table together (n int primary key)')
    await fn(client, pool)
  } finally {
    client.release(true)
    await pool.end()
  }
}

const count = async (client: pg.PoolClient): Promise<number> =>
  Number((await client.query('select count(*) from together')).rows[0].count)

const ways: [string, boolean, pg.PoolConfig?][] = [
  ['as text', false],
  ['with names', true],
  ['on a client that pipelines by itself', true, { pipeline: true }],
  ['with parsers of the user', true, { types: { getTypeParser: () => () => 'parsed' } }],
]

it.each(ways)('is one wait for the server, and tells the rows and the last word: %s', (_, prepared, config) =>
  withClient(async (client, pool) => {
    const send = () => queryPipeline(client, [BEGIN, 'set local work_mem = 100', add('7'), COMMIT], prepared)
    pool.emit('acquire', client)
    const { roundTrips } = await countTraffic(pool, async () => {
      pool.emit('acquire', client)
      expect(await send()).toEqual({ rows: [{ n: '7', nothing: null }], command: 'COMMIT' })
    })
    expect(roundTrips).toBe(1)
    expect(await queryPipeline(client, [BEGIN, add("8'\\"), ROLLBACK], prepared).catch(String)).toContain(
      'invalid input syntax for type integer',
    )
  }, config),
)

it.each([false, true])('does nothing behind what fails (names: %s)', (prepared) =>
  withClient(async (client) => {
    const work = queryPipeline(client, [BEGIN, add('1'), add('1'), add('2'), COMMIT], prepared)
    await expect(work).rejects.toMatchObject({ code: '23505' })
    await expect(client.query('select 1')).rejects.toMatchObject({ code: '25P02' })
    await client.query('rollback')
    expect(await count(client)).toBe(0)
  }),
)

it('parses what has a name once, also if its message fails then', () =>
  withClient(async (client) => {
    const names = async () =>
      (await client.query("select name from pg_prepared_statements where statement like 'insert%'")).rows
    await expect(queryPipeline(client, [add('not a number')], true)).rejects.toMatchObject({ code: '22P02' })
    expect(await names()).toHaveLength(1)
    await queryPipeline(client, [add('1'), add('2')], true)
    // Under the same name as when it is sent alone.
    await client.query({ ...add('3').statement, values: ['3'] })
    expect(await names()).toHaveLength(1)
    expect(await count(client)).toBe(3)
  }))

it('does not take for parsed what came behind an error', () =>
  withClient(async (client) => {
    await client.query('insert into together values (1)')
    await expect(queryPipeline(client, [bound('select 1 / 0'), add('2')], true)).rejects.toMatchObject({
      code: '22012',
    })
    expect((await queryPipeline(client, [add('2')], true)).rows).toHaveLength(1)
  }))

it('does without a stream that can hold back', () =>
  withClient(async (client) => {
    const { stream }: pg.Connection = Reflect.get(client, 'connection')
    Object.assign(stream, { cork: undefined, uncork: undefined })
    expect((await queryPipeline(client, [add('1')], true)).rows).toHaveLength(1)
  }))

it('leaves no listener behind', () =>
  withClient(async (client) => {
    const connection: pg.Connection = Reflect.get(client, 'connection')
    const before = connection.listenerCount('parseComplete')
    await queryPipeline(client, [add('1')], true)
    await queryPipeline(client, [bound('select 1 / 0')], true).catch(() => {})
    expect(connection.listenerCount('parseComplete')).toBe(before)
  }))

it('says who has sent what fails', () =>
  withClient(async (client) => {
    async function sender(): Promise<unknown> {
      return await queryPipeline(client, [bound('select 1 / 0')], true)
    }
    await expect(sender()).rejects.toMatchObject({ stack: expect.stringContaining('sender') })
  }))

it('fails when the connection is gone', () =>
  withClient(async (client) => {
    client.on('error', () => {})
    await client.query('select pg_terminate_backend(pg_backend_pid())').catch(() => {})
    await expect(queryPipeline(client, [BEGIN, add('1')], true)).rejects.toThrow()
  }))

it('gives up with a query that has a time limit of its own', () =>
  withClient(
    async (client) => {
      client.on('error', () => {})
      await expect(queryPipeline(client, [bound('select pg_sleep(2)::text')], true)).rejects.toThrow(
        'Query read timeout',
      )
    },
    { query_timeout: 1_000 },
  ))

it('asks two things in one message, each by itself', () =>
  withClient(async (client, pool) => {
    const ask = (first: string, second: string) => {
      const answers = queryWithFollowUp(client, add(first), add(second))
      return Promise.all([answers?.first.catch(String), answers?.second.catch(String)])
    }
    pool.emit('acquire', client)
    const { roundTrips } = await countTraffic(pool, async () => {
      pool.emit('acquire', client)
      expect(await ask('1', '2')).toMatchObject([{ rows: [{ n: '1' }] }, { rows: [{ n: '2' }] }])
    })
    expect(roundTrips).toBe(1)
    // Whatever comes of the other.
    expect(await ask('1', '3')).toMatchObject([expect.stringContaining('duplicate'), { rows: [{ n: '3' }] }])
    expect(await ask('4', '3')).toMatchObject([{ rows: [{ n: '4' }] }, expect.stringContaining('duplicate')])
    expect(await count(client)).toBe(4)
    const { rows } = await client.query("select from pg_prepared_statements where statement like 'insert%'")
    expect(rows).toHaveLength(1)
  }))

it('asks nothing where two things cannot be asked in one message', () =>
  withClient(
    async (client) => {
      expect(queryWithFollowUp(client, add('1'), add('2'))).toBeUndefined()
      expect(await count(client)).toBe(0)
    },
    { pipeline: true } as pg.PoolConfig,
  ))

it('tells both that the connection is gone', () =>
  withClient(async (client) => {
    client.on('error', () => {})
    const answers = queryWithFollowUp(
      client,
      bound('select pg_terminate_backend(pg_backend_pid())::text'),
      add('2'),
    )
    await expect(answers?.first).rejects.toThrow('terminat')
    await expect(answers?.second).rejects.toThrow()
  }))
