import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { describe, expect, it, vi } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, url } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { realTime } from '../../test/real-time.js'
import { BusyError } from '../errors.js'
import { DedicatedConnection } from '../postgres/dedicated-connection.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'

const fixture = openClaims()
const HOUR_MS = 3_600_000

/** Others have all clients of the pool while `fn` runs. */
async function whileFull<T>(pool: pg.Pool, fn: () => Promise<T>): Promise<T> {
  const clients = await Promise.all(Array.from({ length: pool.options.max }, () => pool.connect()))
  try {
    return await fn()
  } finally {
    for (const client of clients) client.release()
  }
}

const timed = async <T>(promise: Promise<T>): Promise<[T, number]> => {
  const since = performance.now()
  return [await promise, performance.now() - since]
}

describe('while the whole pool is in use', () => {
  it('the time until a client is had is none of the lease', async () => {
    await fixture.beside(
      async (dibs, pool) => {
        const client = await pool.connect()
        const locking = dibs.lock('till', { leaseMs: 4_000 })
        await sleep(4_300)
        client.release()
        const lock = await locking
        lock.assertHeld()
        expect(await lock.release()).toBe('released')
      },
      { max: 1 },
    )
  })

  it('a guard that is refused says so at once, and is not taken for a conflict', realTime, async () => {
    await fixture.beside(
      async (dibs) => {
        const lock = await dibs.lock('till', { leaseMs: HOUR_MS })
        await fixture.dibs.locks.forceRelease('till')
        let runs = 0
        const late = dibs.transaction(async (tx) => {
          runs++
          await lock.guard(tx)
        })
        const [error, ms] = await timed(late.catch((e) => e))
        expect(error).toMatchObject({ code: 'DIBS_FENCE_LOST', reason: 'stolen' })
        expect(runs).toBe(1)
        expect(ms).toBeLessThan(4_000)
      },
      { max: 1 },
    )
  })

  it('a release goes another way', realTime, async () => {
    await fixture.beside(
      async (dibs, pool) => {
        const lock = await dibs.lock('till')
        await whileFull(pool, async () => {
          const [state, ms] = await timed(lock.release())
          expect(state).toBe('released')
          expect(ms).toBeLessThan(4_000)
          expect(await fixture.dibs.locks.inspect('till')).toEqual([])
        })
      },
      { max: 2 },
    )
  })

  it(
    'a release in the transaction that it guards needs no other client, and waits for nobody',
    realTime,
    async () => {
      await fixture.beside(
        async (dibs) => {
          const lock = await dibs.lock('till')
          await dibs.transaction(async (tx) => {
            await lock.guard(tx)
            const [state, ms] = await timed(lock.release())
            expect(state).toBe('released')
            expect(ms).toBeLessThan(2_500)
            expect(await fixture.other.tryLock('till')).toBeNull()
          })
          await using next = await fixture.other.lock('till')
          expect(next.tookOver).toBeUndefined()
        },
        { max: 1 },
      )
    },
  )

  it('a release that waits for the row does not hold renewals up', async () => {
    await fixture.beside(
      async (dibs) => {
        const mine = await dibs.lock('mine', { leaseMs: HOUR_MS })
        const other = await dibs.lock('other', { leaseMs: 6_000 })
        const client = await fixture.pool.connect()
        await client.query('begin')
        await client.query(`select from ${fixture.schema.name}.lock where name = 'mine' for update`)
        let releasing: Promise<string> | undefined
        await dibs.transaction(async () => {
          releasing = mine.release()
          const expiry = async () => Number((await fixture.dibs.locks.inspect('other'))[0]?.leaseUntil)
          const first = await expiry()
          await until(async () => (await expiry()) > first + 2_500, 'it to be renewed twice')
          other.assertHeld()
        })
        await client.query('commit')
        client.release()
        expect(await releasing).toBe('released')
        expect(await other.release()).toBe('released')
      },
      { max: 1 },
    )
  })

  it('whoever is not to wait waits for a connection that is being made', async () => {
    let isSlow = false
    class Slow extends pg.Client {
      override connect = (callback?: unknown): never => {
        const connect = (): unknown => super.connect(callback as never)
        return (isSlow ? void setTimeout(connect, 1_500) : connect()) as never
      }
    }
    await fixture.beside(
      async (dibs, pool) => {
        await until(() => pool.totalCount === 0, 'the pool to be empty')
        isSlow = true
        const lock = await dibs.tryLock('till')
        isSlow = false
        expect(await lock?.release()).toBe('released')
      },
      { idleTimeoutMillis: 10, Client: Slow as never },
    )
  })

  it(
    'whoever is not to wait, or not for long, does not wait for a client as long as others',
    realTime,
    async () => {
      await fixture.beside(
        async (dibs, pool) => {
          await whileFull(pool, async () => {
            for (const call of [() => dibs.tryLock('till'), () => dibs.lock('till', { waitMs: 300 })]) {
              const [error, ms] = await timed(call().catch((e) => e))
              expect(error).toBeInstanceOf(BusyError)
              expect(error.message).toContain('a connection of the pool (max 1, all in use)')
              expect(ms).toBeGreaterThan(900)
              expect(ms).toBeLessThan(3_500)
            }
          })
          // Nothing of that is sent when there is a client again.
          await dibs.now()
          await sleep(100)
          const { rows } = await pool.query(`select from ${fixture.schema.name}.lock`)
          expect(rows).toEqual([])
        },
        { max: 1 },
      )
    },
  )

  it('whoever has the time waits for a client', async () => {
    await fixture.beside(
      async (dibs, pool) => {
        const client = await pool.connect()
        const locking = dibs.lock('till', { waitMs: 10_000 })
        await until(() => pool.waitingCount > 0, 'the call to wait')
        await sleep(1_500)
        client.release()
        expect(await (await locking).release()).toBe('released')
      },
      { max: 1 },
    )
  })
})

it('a release that others keep from the row says so, and may be tried again', async () => {
  const lock = await fixture.dibs.lock('till', { leaseMs: 1_500 })
  const client = await fixture.pool.connect()
  await client.query('begin')
  await client.query(`select from ${fixture.schema.name}.lock for update`)
  const error = await lock.release().catch((reason) => reason)
  await client.query('commit')
  client.release()
  expect(error).toBeInstanceOf(BusyError)
  expect(error.message).toContain('the row of lock "till", to release it')
  expect(await lock.release()).toBe('released')
})

describe('a release that was sent twice', () => {
  it('is a loss if what went over the connection for renewals was refused, and another has the lock', async () => {
    await fixture.beside(
      async (dibs, pool) => {
        const lock = await dibs.lock('till', { leaseMs: HOUR_MS })
        const client = await fixture.pool.connect()
        await client.query('begin')
        await client.query(`select ${fixture.schema.name}.lock_force_release('till', null, 1000)`)
        const send = vi.spyOn(DedicatedConnection.prototype, 'send')
        const said = await whileFull(pool, async () => {
          const releasing = lock.release()
          await until(() => send.mock.results.length > 0, 'it to go over the other connection')
          await expect(send.mock.results[0]?.value).rejects.toMatchObject({ sqlState: '55P03' })
          await client.query('commit')
          client.release()
          return { releasing, next: await fixture.other.lock('till') }
        })
        send.mockRestore()
        expect(await said.releasing).toBe('lost')
        expect(lock.signal.reason).toMatchObject({ reason: 'stolen' })
        await said.next.release()
      },
      { max: 1 },
    )
  })

  it('is a loss if the connection for renewals could not be made', async () => {
    await fixture.beside(
      async (dibs, pool) => {
        const lock = await dibs.lock('till', { leaseMs: HOUR_MS })
        await fixture.other.locks.forceRelease('till')
        await using _ = await fixture.other.lock('till')
        const connect = vi.spyOn(pg.Client.prototype, 'connect').mockRejectedValue(new Error('no') as never)
        const releasing = await whileFull(pool, async () => {
          const said = lock.release()
          await until(() => connect.mock.calls.length > 0, 'the other connection to be tried')
          return { said }
        })
        connect.mockRestore()
        expect(await releasing.said).toBe('lost')
      },
      { max: 1 },
    )
  })

  it('is no loss if it was done by the first, and the second finds another there', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs, pool) => {
        const lock = await dibs.lock('till', { leaseMs: HOUR_MS })
        const send = vi.spyOn(DedicatedConnection.prototype, 'send')
        const connect = pg.Client.prototype.connect
        // The connection for renewals is made in time, and the statement goes over it when the pool's has done it.
        const goOn = deferred()
        const slow = vi.spyOn(pg.Client.prototype, 'connect').mockImplementationOnce(async function (
          this: pg.Client,
        ) {
          await goOn.promise
          return await (connect as (this: pg.Client) => Promise<pg.Client>).call(this)
        } as never)
        const cut = proxy.inject({
          ...{ kind: 'cut', when: 'after', statement: 'lock_release', how: 'black-hole' },
        })
        const { said } = await whileFull(pool, async () => {
          const said = lock.release()
          await until(() => send.mock.calls.length > 0, 'the other connection to be tried')
          return { said }
        })
        await cut.happened
        await using _ = await fixture.other.lock('till')
        goOn.resolve()
        expect(await said).toBe('released')
        expect(lock.signal.aborted).toBe(false)
        cut.end()
        slow.mockRestore()
        send.mockRestore()
      },
      { connectionString: proxy.url, max: 1 },
    )
  })

  it('is no loss if it was called again, after one that was not answered', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const lock = await dibs.lock('till', { leaseMs: 6_000 })
        const cut = proxy.inject({
          ...{ kind: 'cut', when: 'after', statement: 'lock_release', how: 'reset', times: 'always' },
        })
        await expect(lock.release()).rejects.toMatchObject({ code: 'DIBS_COMMIT_OUTCOME_UNKNOWN' })
        cut.end()
        await using next = await fixture.other.lock('till')
        expect(next.tookOver).toBeUndefined()
        expect(await lock.release()).toBe('released')
        expect(lock.signal.aborted).toBe(false)
      },
      { connectionString: proxy.url },
    )
  })
})
