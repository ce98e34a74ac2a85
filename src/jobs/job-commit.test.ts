import pg from 'pg'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { directUrl, freshName, throughPool, url, withPool } from '../../test/database.js'
import { until } from '../../test/until.js'
import { Dibs } from '../dibs.js'
import { onEvent } from '../postgres/events.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'

// Transactional attempts whose transaction does not end normally. Leases are long, so no other worker takes over.
const schema = freshName()
const effects = freshName('effects')
const definitions = { write: { transactional: true, leaseMs: 120_000, retry: { baseMs: 50 } } } as const

beforeAll(async () => {
  await (await Dibs.open({ url, schema, listen: false })).close()
  await withPool((pool) => pool.query(`create table ${effects} (id text not null, attempt integer not null)`))
})

afterAll(() => withPool((pool) => pool.query(`drop schema ${schema} cascade; drop table ${effects}`)))

interface World {
  readonly dibs: Dibs
  readonly proxy: PgProxy
  readonly emitted: string[]
}

async function open(): Promise<World> {
  const proxy = await PgProxy.start({ url: directUrl })
  const pool = new pg.Pool({ connectionString: proxy.url })
  pool.on('error', () => {})
  const dibs = await Dibs.open({ ...throughPool, pool, schema, migrate: 'off', listen: false })
  const emitted: string[] = []
  const names = ['dibs:job.succeeded', 'dibs:job.refused', 'dibs:job.lost', 'dibs:job.failed'] as const
  const stops = names.map((name) => onEvent(name, () => emitted.push(name)))
  onTestFinished(async () => {
    await dibs.close()
    await pool.end()
    await proxy.close()
    for (const stop of stops) stop()
  })
  return { dibs, proxy, emitted }
}

const writtenBy = (id: string) =>
  withPool(async (pool) => (await pool.query(`select attempt from ${effects} where id = $1`, [id])).rows)

it.each([
  ['before that reaches the server', 'before'],
  ['after it was committed', 'after'],
] as const)('succeeds once if the connection is lost with its end, %s', async (_, when) => {
  const { dibs, proxy, emitted } = await open()
  const jobs = dibs.jobs(definitions)
  const { id } = await jobs.add('write', null)
  const cut = proxy.inject({ kind: 'cut', when, statement: 'job_complete' })
  await using worker = await jobs.work({
    write: async (_input, ctx) => {
      await ctx.tx.query(`insert into ${effects} values ($1, $2)`, [ctx.id, ctx.attempt])
    },
  })
  await until(async () => (await jobs.get(id))?.state === 'succeeded', 'the job to succeed')
  await cut.happened
  expect(await writtenBy(id)).toHaveLength(1)
  expect((await jobs.history(id)).items.filter(({ outcome }) => outcome === 'succeeded')).toHaveLength(1)
  // A worker that has succeeded learns that, also if the answer was lost.
  await until(() => emitted.includes('dibs:job.succeeded'), 'the worker to know')
  expect(emitted).not.toContain('dibs:job.refused')
  expect(emitted).not.toContain('dibs:job.lost')
  expect(worker.stats).toMatchObject({ succeeded: 1, lost: 0, running: 0 })
})

it('runs again if its session is terminated', async () => {
  const { dibs } = await open()
  const jobs = dibs.jobs(definitions)
  const { id } = await jobs.add('write', null)
  await using _worker = await jobs.work({
    write: async (_input, ctx) => {
      const { rows } = await ctx.tx.query<{ pid: number }>('select pg_backend_pid() as pid')
      await ctx.tx.query(`insert into ${effects} values ($1, $2)`, [ctx.id, ctx.attempt])
      if (ctx.attempt === 1)
        await withPool((pool) => pool.query('select pg_terminate_backend($1)', [rows[0]?.pid]))
    },
  })
  await until(async () => (await jobs.get(id))?.state === 'succeeded', 'the job to succeed')
  expect(await writtenBy(id)).toEqual([{ attempt: 2 }])
})

it('is recorded in one message with COMMIT, so that a stalled process never holds the row', async () => {
  const { dibs } = await open()
  const jobs = dibs.jobs(definitions)
  const { id } = await jobs.add('write', null)
  const statusBefore: string[] = []
  await using _worker = await jobs.work({
    write: async (_input, { tx: { client } }) => {
      await client.query(`insert into ${effects} values ('${id}', 1)`)
      const query = client.query
      // Up to the message after which nothing is open any more.
      client.query = ((...given: unknown[]) => {
        const status = client.getTransactionStatus()
        if (status === 'I') client.query = query
        else statusBefore.push(`${status}`)
        return Reflect.apply(query, client, given)
      }) as typeof query
    },
  })
  await until(async () => (await jobs.get(id))?.state === 'succeeded', 'the job to succeed')
  expect(statusBefore).toEqual(['T'])
})

it('keeps nothing if another worker has the job by then', async () => {
  const { dibs, emitted } = await open()
  const jobs = dibs.jobs({ write: { ...definitions.write, maxAttempts: 1 } })
  const { id } = await jobs.add('write', null)
  await using worker = await jobs.work({
    write: async (_input, ctx) => {
      await ctx.tx.query(`insert into ${effects} values ($1, $2)`, [ctx.id, ctx.attempt])
      await withPool((pool) =>
        pool.query(
          `update ${schema}.job set lease_until = clock_timestamp() where id = ${id}; update ${schema}.job_held set check_at = clock_timestamp();
           select ${schema}.job_recover(10, '{}')`,
        ),
      )
    },
  })
  await until(() => worker.stats.lost === 1, 'it to learn that it was late')
  expect(await writtenBy(id)).toEqual([])
  expect((await jobs.history(id)).items.map(({ outcome }) => outcome)).toEqual(['lost'])
  expect((await jobs.get(id))?.state).toBe('dead')
  expect(emitted).not.toContain('dibs:job.failed')
  await jobs.discard(id)
})
