import pg from 'pg'
import { expect, it } from 'vitest'
import {
  createRole,
  directUrl,
  dropSchema,
  freshName,
  throughPool,
  url,
  withPool,
} from '../../test/database.js'
import { realTime } from '../../test/real-time.js'
import { Dibs } from '../dibs.js'
import { migrations } from '../postgres/migrations/generated/migrations.js'
import { PgProxy } from '../testing/index.js'

const open = (pool: pg.Pool, schema: string, migrate: 'auto' | 'off' = 'auto'): Promise<Dibs> =>
  Dibs.open({ ...throughPool, pool, schema, migrate })

it('is well when the database answers and has our tables', realTime, async () => {
  const schema = freshName()
  await withPool(async (pool) => {
    await using dibs = await open(pool, schema)
    const { latencyMs, ...rest } = await dibs.health()
    expect(rest).toEqual({
      ok: true,
      database: 'reachable',
      schema,
      schemaVersion: migrations.length,
      problem: undefined,
    })
    expect(latencyMs).toBeLessThan(2_000)
  })
  await dropSchema(schema)
})

it('is not when our tables are missing', async () => {
  await withPool(async (pool) => {
    await using dibs = await open(pool, freshName(), 'off')
    expect(await dibs.health()).toMatchObject({
      ok: false,
      database: 'reachable',
      schemaVersion: 0,
      problem: expect.stringContaining('dibs migrate'),
    })
  })
})

it('tells a server that refuses from one that is not there', async () => {
  const schema = freshName()
  const role = freshName('poor')
  await withPool(async (pool) => {
    await using _ = await open(pool, schema)
    await withPool(
      async (poor) => {
        await using dibs = await open(poor, schema, 'off')
        expect(await dibs.health()).toMatchObject({
          ok: false,
          database: 'reachable',
          schemaVersion: undefined,
        })
      },
      { connectionString: await createRole(role) },
    )
    await pool.query(`drop role ${role}`)
  })
  await dropSchema(schema)
})

it('is busy, after two seconds, when all connections are in use', async () => {
  const schema = freshName()
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  const dibs = await open(pool, schema)
  const taken = await pool.connect()
  expect(await dibs.health()).toMatchObject({ ok: false, database: 'busy' })
  taken.release()
  expect(await dibs.health()).toMatchObject({ ok: true })
  await dibs.close()
  await pool.end()
  await dropSchema(schema)
})

it('is unreachable when nobody answers, and when closed', async () => {
  const schema = freshName()
  await using proxy = await PgProxy.start({ url: directUrl })
  const pool = new pg.Pool({ connectionString: proxy.url })
  pool.on('error', () => {})
  const dibs = await Dibs.open({ ...throughPool, pool, schema })
  proxy.inject({ kind: 'black-hole' })
  expect(await dibs.health()).toMatchObject({ ok: false, database: 'unreachable' })
  await proxy.close() // or every goodbye would wait
  await dibs.close()
  expect(await dibs.health()).toMatchObject({ ok: false, database: 'unreachable' })
  await pool.end()
  await dropSchema(schema)
})
