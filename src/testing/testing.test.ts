import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { directUrl, freshName, withPool } from '../../test/database.js'
import { Dibs } from '../dibs.js'
import { InvalidInputError, SetupError } from '../errors.js'
import { countTraffic, createTestSchema } from './index.js'
import { TestClock } from './test-clock.js'

const pool = new pg.Pool({ connectionString: directUrl })
beforeAll(() => void pool.on('error', () => {}))
afterAll(() => pool.end())

describe('countTraffic', () => {
  const traffic = async (fn: () => Promise<unknown>) => {
    const { roundTrips, commits } = await countTraffic(pool, fn)
    return { roundTrips, commits }
  }

  it('counts statements that commit by themselves, simple and with parameters', async () => {
    expect(await traffic(() => pool.query('select 1'))).toEqual({ roundTrips: 1, commits: 1 })
    expect(await traffic(() => pool.query('select $1::int', [1]))).toEqual({ roundTrips: 1, commits: 1 })
    expect(await traffic(() => pool.query({ name: 'n', text: 'select $1::int', values: [1] }))).toEqual({
      roundTrips: 1,
      commits: 1,
    })
  })

  it('counts a transaction as one commit, a rollback and an error as none', async () => {
    const inside = (last: string) => async () => {
      const client = await pool.connect()
      await client.query('begin')
      await client.query('select $1::int', [1])
      await client.query(last)
      client.release()
    }
    expect(await traffic(inside('commit'))).toEqual({ roundTrips: 3, commits: 1 })
    expect(await traffic(inside('rollback'))).toEqual({ roundTrips: 3, commits: 0 })
    expect(await traffic(() => pool.query('begin; select 1; rollback'))).toEqual({
      roundTrips: 1,
      commits: 0,
    })
    expect(await traffic(() => pool.query('select 1 / 0').catch(() => {}))).toEqual({
      roundTrips: 1,
      commits: 0,
    })
  })

  it('counts statements sent together as one wait', async () => {
    await withPool(
      async (piped) => {
        const client = await piped.connect()
        client.release()
        const { roundTrips } = await countTraffic(piped, async () => {
          const one = await piped.connect()
          await Promise.all([one.query('select 1'), one.query('select $1::int', [2]), one.query('select 3')])
          one.release()
        })
        expect(roundTrips).toBe(1)
      },
      { max: 1, connectionString: directUrl, pipeline: true } as pg.PoolConfig,
    )
  })

  it('leaves the pool as it was, also after an error', async () => {
    const boom = new Error('boom')
    await expect(
      countTraffic(pool, async () => {
        await pool.query('select 1')
        throw boom
      }),
    ).rejects.toBe(boom)
    expect(pool.listenerCount('acquire')).toBe(0)
  })
})

describe('createTestSchema', () => {
  it('gives Dibs a schema of its own whose clock can be moved', async () => {
    await using schema = await createTestSchema(pool)
    await using dibs = await Dibs.open({ pool, schema: schema.name, listen: false })
    const offset = async () => Math.round(((await dibs.now()).getTime() - Date.now()) / 60_000) + 0 // no -0
    expect(await offset()).toBe(0)
    await Promise.all([schema.clock.advance(20 * 60_000), schema.clock.advance(40 * 60_000)])
    expect(await offset()).toBe(60)
    await schema.clock.advance(-30 * 60_000)
    expect(await offset()).toBe(30)
    const at = new Date('2030-02-03T04:05:06.789Z')
    await schema.clock.freeze(at)
    expect(await dibs.now()).toEqual(at)
    await schema.clock.advance(1_000)
    expect(await dibs.now()).toEqual(new Date(at.getTime() + 1_000)) // frozen still
    await schema.clock.reset()
    expect(await offset()).toBe(0)
    await expect(schema.clock.advance(0.5)).rejects.toThrow(InvalidInputError)
  })

  it('has no clock to move before Dibs was opened on it', async () => {
    await using schema = await createTestSchema(pool)
    await expect(schema.clock.advance(1)).rejects.toThrow('open Dibs on it first')
  })

  it('is gone after drop', async () => {
    const schema = await createTestSchema(pool)
    await schema.drop()
    await schema.drop() // twice is fine
    const { rows } = await pool.query('select 1 from pg_namespace where nspname = $1', [schema.name])
    expect(rows).toEqual([])
  })

  it('moves no clock but its own', async () => {
    const name = freshName()
    const dibs = await Dibs.open({ pool, schema: name, listen: false })
    await expect(new TestClock(pool, name).advance(1)).rejects.toThrow(SetupError)
    await dibs.close()
    await pool.query(`drop schema ${name} cascade`)
  })
})
