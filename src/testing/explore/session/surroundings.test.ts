import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:http'
import pg, { type Pool } from 'pg'
import { afterAll, describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { RaceFoundError } from '../../../errors.js'
import { explore } from '../explore.js'
import type { ExploreOptions } from '../options.js'

const { url } = exploredSchema('create table counter (id int primary key, n int not null)')
const pool = new pg.Pool({ connectionString: url, max: 2 })
pool.on('error', () => {})
afterAll(() => pool.end())

const start = (db: Pool) => db.query('insert into counter values (1, 0)')
const n = async (db: Pool): Promise<number> => (await db.query('select n from counter')).rows[0].n

async function caught(options: ExploreOptions): Promise<RaceFoundError> {
  const error = await explore(options).catch((reason: unknown) => reason)
  assert.ok(error instanceof RaceFoundError, String(error))
  return error
}

async function addOne(db: Pool): Promise<void> {
  const { rows } = await db.query('select n from counter where id = $1', [1])
  await db.query('update counter set n = $1 where id = $2', [rows[0].n + 1, 1])
}

describe('random numbers and time', () => {
  it('are the same for an actor in each run, and real for all other code', async () => {
    const drawn: unknown[][] = []
    const exploring = explore({
      url,
      clockStartsAt: new Date('2026-01-01T00:00:00Z'),
      actors: {
        alice: async (db) => {
          drawn.push([Math.random(), randomUUID(), crypto.randomUUID(), Date.now(), new Date().toISOString()])
          await db.query('select 1')
        },
        bob: async (db) => {
          await db.query('select 2')
          meanwhile.push(Date.now() > Date.parse('2026-06-01') ? 'real' : 'set')
        },
      },
    })
    const meanwhile: unknown[] = []
    const real = [randomUUID(), randomUUID(), Math.random(), Math.random()]
    await exploring
    expect(drawn).toHaveLength(2)
    expect(drawn[1]).toEqual(drawn[0])
    expect(drawn[0]?.slice(3)).toEqual([Date.parse('2026-01-01T00:00:00Z'), '2026-01-01T00:00:00.001Z'])
    expect(meanwhile).toEqual(['set', 'set'])
    expect(new Set(real).size).toBe(4)
  })

  it('are restored', async () => {
    const before = [Math.random, Date, crypto.randomUUID, randomUUID]
    await explore({ url, clockStartsAt: new Date(0), actors: { alice: (db) => db.query('select 1') } })
    expect([Math.random, Date, crypto.randomUUID, randomUUID]).toEqual(before)
  })

  it('of the real kind in a statement are a divergence that is named', async () => {
    let run = 0
    const actors = {
      alice: (db: Pool) => db.query(`update counter set n = ${run++}`),
      bob: (db: Pool) => db.query('update counter set n = n + 1'),
    }
    await expect(explore({ url, setup: start, actors })).rejects.toMatchObject({
      code: 'DIBS_SCHEDULE_DIVERGED',
      step: 1,
      expected: expect.stringMatching(/alice: update counter set n = \d/),
    })
  })
})

describe('the pool of the code under test', () => {
  it('is explored as it is', async () => {
    const buy = () => addOne(pool)
    const { schedule } = await caught({
      pool,
      setup: () => start(pool),
      actors: { alice: buy, bob: buy },
      invariant: async () => assert.equal(await n(pool), 2),
    })
    expect(schedule).toEqual(['alice', 'bob', 'bob', 'bob', 'alice', 'alice'])
  })

  it('is unchanged afterwards', async () => {
    const { connect, query } = pool
    await explore({ pool, actors: { alice: () => pool.query('select 1') } })
    expect([pool.connect, pool.query]).toEqual([connect, query])
    expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }])
  })

  it('must not be used by code that belongs to no actor, such as an actor’s work behind a server', async () => {
    const server = createServer((_, response) => void addOne(pool).then(() => response.end('done')))
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const { port } = server.address() as { port: number }
    const ask = async () => {
      await pool.query('select 1')
      await fetch(`http://127.0.0.1:${port}`)
    }
    await expect(explore({ pool, setup: start, actors: { alice: ask, bob: ask } })).rejects.toMatchObject({
      reason: 'outside',
      message: expect.stringMatching(
        /none of the actors used the pool that is explored to send "select n from counter/,
      ),
    })
    server.close()
  })

  it('is not ended by an actor', async () => {
    await explore({
      pool,
      actors: {
        alice: async () => {
          await pool.query('select 1')
          await pool.end()
        },
      },
    })
    expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }])
  })

  it('is shared by the actors, and an actor that waits for a connection is seen to wait', async () => {
    const nested = async () => {
      const client = await pool.connect()
      await client.query('select 1')
      await pool.query('select 2')
      client.release()
    }
    // Each holds one of two connections and wants a second one.
    const { printout } = await caught({ pool, actors: { alice: nested, bob: nested } })
    expect(printout).toContain('bob waits for a connection of its pool (all 2 in use)')
    expect(printout).toContain('Stuck: Nobody can go on:')
    expect(printout).not.toContain('went another way')
    expect(printout).not.toContain('client.release')
  })
})
