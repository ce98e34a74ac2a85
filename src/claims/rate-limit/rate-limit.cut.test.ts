import pg from 'pg'
import { describe, expect, it } from 'vitest'
import { directUrl } from '../../../test/database.js'
import { dibs as direct, openRates, schema } from '../../../test/rate-fixture.js'
import { realTime } from '../../../test/real-time.js'
import { Dibs } from '../../dibs.js'
import { BusyError, CommitOutcomeUnknownError, ConnectionLostError, DatabaseError } from '../../errors.js'
import { type DibsEvents, onEvent } from '../../postgres/events.js'
import { PgProxy } from '../../testing/index.js'

openRates()

const spec = { algorithm: 'token-bucket', limit: 3, perMs: 3_600_000 } as const
const DOWN_MS = 1_500

/** A Dibs whose network can be cut, with a connection that stands. */
async function throughProxy(fn: (dibs: Dibs, proxy: PgProxy) => Promise<void>): Promise<void> {
  await using proxy = await PgProxy.start({ url: directUrl })
  const pool = new pg.Pool({ connectionString: proxy.url, max: 2 })
  pool.on('error', () => {})
  const dibs = await Dibs.open({ pool, schema: schema.name, migrate: 'off', listen: false })
  try {
    await fn(dibs, proxy)
  } finally {
    await proxy.close()
    await dibs.close()
    await pool.end()
  }
}

/** Connections are lost, and no new one can be had. */
function goAway(proxy: PgProxy): () => void {
  const refusal = proxy.inject({ kind: 'refuse' })
  proxy.inject({ kind: 'reset' })
  return () => refusal.end()
}

describe('while the database is away', () => {
  it('closed: throws its error', () =>
    throughProxy(async (dibs, proxy) => {
      const rate = dibs.rateLimit('closed', spec)
      await rate.take('s')
      goAway(proxy)
      const error = await rate.take('s').catch((thrown: unknown) => thrown)
      expect(error instanceof ConnectionLostError || error instanceof CommitOutcomeUnknownError).toBe(true)
      await expect(rate.peek('s')).rejects.toThrow(ConnectionLostError)
      // A cost that can never fit is refused without the database.
      expect(await rate.tryTake('s', 100)).toMatchObject({
        ok: false,
        cost: 100,
        remaining: 0,
        degraded: true,
      })
    }))

  it('open: grants, says so, and counts again when it is back', () =>
    throughProxy(async (dibs, proxy) => {
      const rate = dibs.rateLimit('open', { ...spec, ifDown: 'allow', downAfterMs: DOWN_MS })
      expect(await rate.take('s')).toMatchObject({ remaining: 2, degraded: false })
      const comeBack = goAway(proxy)
      const events: DibsEvents['dibs:rate.degraded'][] = []
      const stop = onEvent('dibs:rate.degraded', (event) => events.push(event))
      for (let n = 0; n < 5; n++)
        expect(await rate.take('s', 3)).toEqual({ remaining: 0, resetsAt: expect.any(Date), degraded: true })
      expect(await rate.peek('s')).toMatchObject({ remaining: 3, degraded: true })
      stop()
      expect(events).toHaveLength(6)
      expect(events[0]).toMatchObject({ template: 'open:*', policy: 'allow', error: expect.any(Error) })
      comeBack()
      await expect.poll(async () => (await rate.peek('s')).degraded).toBe(false)
      expect(await rate.take('s')).toMatchObject({ remaining: 1, degraded: false })
    }))

  it('local: the same limit in this process, from its own start', () =>
    throughProxy(async (dibs, proxy) => {
      const rate = dibs.rateLimit('local', { ...spec, ifDown: 'local', downAfterMs: DOWN_MS })
      await rate.take('s', 3)
      goAway(proxy)
      const answers = []
      for (let n = 0; n < 5; n++) answers.push(await rate.tryTake('s'))
      expect(answers.map(({ ok }) => ok)).toEqual([true, true, true, false, false])
      expect(answers.every(({ degraded }) => degraded)).toBe(true)
      expect(answers[4]).toMatchObject({ retryAfterMs: expect.any(Number), remaining: 0 })
      expect(await rate.peek('s')).toMatchObject({ remaining: 0, degraded: true })
    }))

  it.each(['allow', 'local'] as const)(
    '%s: a network that has gone silent counts, also for those who wait in line',
    realTime,
    (ifDown) =>
      throughProxy(async (dibs, proxy) => {
        const rate = dibs.rateLimit('silent', { ...spec, ifDown, downAfterMs: DOWN_MS, waitMs: 10 })
        await rate.take('other')
        const hole = proxy.inject({ kind: 'black-hole' })
        const startedAt = performance.now()
        const answers = await Promise.all([rate.take('s'), rate.take('s'), rate.take('s'), rate.take('t')])
        expect(answers.every(({ degraded }) => degraded)).toBe(true)
        const between = performance.now()
        expect(between - startedAt).toBeLessThan(4_000)
        // The rate limit no longer waits for the database.
        expect(await rate.take('u')).toMatchObject({ degraded: true })
        expect(performance.now() - between).toBeLessThan(DOWN_MS)
        hole.end()
      }),
  )

  it('one tries it after a second, and the others go on without', () =>
    throughProxy(async (dibs, proxy) => {
      const rate = dibs.rateLimit('tried', { ...spec, ifDown: 'allow', downAfterMs: DOWN_MS })
      await rate.take('s')
      const hole = proxy.inject({ kind: 'black-hole' })
      await rate.take('s')
      const order: string[] = []
      const take = (name: string) => rate.take('s').then(() => order.push(name))
      // The call that tries the database again gets its answer last.
      await expect
        .poll(async () => {
          order.length = 0
          await Promise.all([take('first'), take('second')])
          return order
        })
        .toEqual(['second', 'first'])
      hole.end()
    }))

  it('in a transaction of the caller it is thrown, whatever is to be done alone', () =>
    throughProxy(async (dibs, proxy) => {
      const rate = dibs.rateLimit('joined', { ...spec, ifDown: 'allow', downAfterMs: DOWN_MS })
      const failed = dibs.transaction(async (tx) => {
        await tx.query('select 1')
        goAway(proxy)
        await rate.take('s', 1, { tx })
      })
      await expect(failed).rejects.toThrow(ConnectionLostError)
    }))
})

it('what the server says about a statement is thrown, whatever the policy', async () => {
  const rate = direct.rateLimit('wrong', { ...spec, ifDown: 'allow' })
  const take = `${schema.name}.rate_take`
  await direct.pool.query(`alter function ${take} rename to hidden`)
  try {
    await expect(rate.take('s')).rejects.toThrow(DatabaseError)
  } finally {
    await direct.pool.query(`alter function ${schema.name}.hidden rename to rate_take`)
  }
  expect(await rate.take('s')).toMatchObject({ degraded: false })
})

it('a row that another holds is busy, and not down, whatever the policy', async () => {
  const rate = direct.rateLimit('held', { ...spec, ifDown: 'allow', waitMs: 20 })
  await direct.transaction(async (tx) => {
    await rate.take('s', 1, { tx })
    await expect(rate.take('s')).rejects.toThrow(BusyError)
    await expect(Promise.all([rate.take('s'), rate.take('s')])).rejects.toThrow(BusyError)
  })
  expect(await rate.take('s')).toMatchObject({ degraded: false })
})
