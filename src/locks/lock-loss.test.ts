import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it, vi } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, url, viaPgBouncer } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { realTime } from '../../test/real-time.js'
import { BusyError, ClosedError, FenceLostError } from '../errors.js'
import { Database } from '../postgres/database.js'
import { DedicatedConnection } from '../postgres/dedicated-connection.js'
import type { Statement } from '../postgres/statement.js'
import { countTraffic } from '../testing/count-traffic.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import type { Lock } from './lock.js'
import { renewLock, renewLocks } from './lock-statements.js'

const fixture = openClaims()
const HOUR_MS = 3_600_000

/** Stands still as a process does that is starved, paged out or stopped: nothing of it runs, timers included. */
function standStill(ms: number): void {
  const until = performance.now() + ms
  while (performance.now() < until);
}

const lost = async (lock: Lock): Promise<FenceLostError> => {
  await until(() => lock.signal.aborted, 'the lock to be lost')
  return lock.signal.reason
}

describe('a lock is lost', () => {
  it('when another has taken it over, as the next renewal tells', async () => {
    const mine = await fixture.dibs.lock('till', { leaseMs: 3_000 })
    // Again if it was renewed in between.
    await using next = await until(async () => {
      await fixture.schema.clock.advance(HOUR_MS)
      return (await fixture.other.tryLock('till', { leaseMs: HOUR_MS })) ?? undefined
    }, 'another to take it over')
    const reason = await lost(mine)
    expect(reason).toBeInstanceOf(FenceLostError)
    expect(reason).toMatchObject({ reason: 'stolen', fence: mine.fence, subject: 'lock "till"' })
    expect(reason.message).toBe(
      `The claim on lock "till" with fence ${mine.fence} is lost: another holder took it over, or it was taken away. Stop this work.`,
    )
    expect(() => mine.assertHeld()).toThrow(reason)
    next.assertHeld()
  })

  it('when this process stood still, which is known before any timer has run', async () => {
    const lock = await fixture.dibs.lock('till', { leaseMs: 100 })
    standStill(150)
    expect(lock.signal.aborted).toBe(false)
    expect(() => lock.assertHeld()).toThrow(/stood still/)
    expect(lock.signal.reason).toMatchObject({ reason: 'expired' })
    const again = await fixture.dibs.lock('till', { leaseMs: 100 })
    standStill(150)
    expect(await lost(again)).toMatchObject({ reason: 'expired' })
  })

  it('not when the answer to its renewal has come while this process stood still', async () => {
    await fixture.beside(async (dibs) => {
      const lock = await dibs.lock('till', { leaseMs: 3_000 })
      let sinceAt = performance.now()
      // The first goes over the pool too, the second over the connection for it.
      for (const kind of [Database.prototype, DedicatedConnection.prototype]) {
        const send = Reflect.get(kind, 'send')
        const stood = deferred()
        const spy = vi.spyOn(kind as Database, 'send')
        spy.mockImplementationOnce(function (this: unknown, ...args: unknown[]) {
          const sentAt = performance.now()
          setImmediate(() => {
            standStill(sinceAt + 3_000 - performance.now())
            sinceAt = sentAt
            stood.resolve()
          })
          return Reflect.apply(send, this, args)
        })
        await stood.promise
        spy.mockRestore()
        await sleep(100)
        expect(lock.signal.aborted).toBe(false)
      }
      expect(await lock.release()).toBe('released')
    })
  })

  it('and the reason is that it stood still also if that ended just after the lease', async () => {
    const lock = await fixture.dibs.lock('till', { leaseMs: 1_000 })
    standStill(1_000)
    expect(await lost(lock)).toMatchObject({ reason: 'expired' })
  })

  it('and stays so when the server would still have it', async () => {
    const lock = await fixture.dibs.lock('till', { leaseMs: 200 })
    await fixture.pool.query(`update ${fixture.schema.name}.lock set expires_at = 'infinity'`)
    standStill(250)
    expect(() => lock.assertHeld()).toThrow(FenceLostError)
    await until(() => lock.signal.aborted, 'it to be told')
    expect(await lock.release()).toBe('lost')
  })

  it('when the server cannot be reached in time, without an answer too', realTime, async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const lock = await dibs.lock('till', { leaseMs: 5_000 })
        const silence = proxy.inject({ kind: 'black-hole' })
        const since = performance.now()
        expect(await lost(lock)).toMatchObject({ reason: 'lost contact' })
        expect(performance.now() - since).toBeLessThan(8_000)
        silence.end()
      },
      { connectionString: proxy.url },
    )
  })

  it('not by one renewal that fails: it is tried again', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const lock = await dibs.lock('till', { leaseMs: 4_000 })
        const expiry = async () => Number((await fixture.dibs.locks.inspect('till'))[0]?.leaseUntil)
        const first = await expiry()
        const cut = proxy.inject({ kind: 'cut', when: 'before', statement: 'lock_renew', how: 'reset' })
        await cut.happened
        await until(async () => (await expiry()) > first, 'it to be renewed after all')
        cut.end()
        expect(await lock.release()).toBe('released')
      },
      { connectionString: proxy.url },
    )
  })

  it('not by a connection that has gone silent: another is made, also for locks that were taken meanwhile', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const lock = await dibs.lock('till', { leaseMs: 6_000 })
        const cut = proxy.inject({ kind: 'cut', when: 'before', statement: 'lock_renew', how: 'black-hole' })
        await cut.happened
        const short = await dibs.lock('short', { leaseMs: 4_000 })
        const expiry = async (name: string) => Number((await fixture.dibs.locks.inspect(name))[0]?.leaseUntil)
        const first = [await expiry('till'), await expiry('short')]
        await until(
          async () => (await expiry('short')) > Number(first[1]) + 1_500,
          'the short one to be renewed',
        )
        await until(async () => (await expiry('till')) > Number(first[0]), 'the other to be renewed')
        cut.end()
        expect(await Promise.all([lock.release(), short.release()])).toEqual(['released', 'released'])
      },
      { connectionString: proxy.url },
    )
  })

  it.each([
    ['at once', 0],
    ['later', 1],
  ])(
    'not by a connection that goes silent %s while the whole pool is in use',
    { timeout: 60_000 },
    async (_, renewals) => {
      await using proxy = await PgProxy.start({ url })
      await fixture.beside(
        async (dibs) => {
          const lock = await dibs.lock('till', { leaseMs: 9_000 })
          const expiry = async () => Number((await fixture.dibs.locks.inspect('till'))[0]?.leaseUntil)
          const taken = await expiry()
          await dibs.transaction(async () => {
            await until(async () => renewals === 0 || (await expiry()) > taken, 'it to be renewed before')
            const first = await expiry()
            const cut = proxy.inject({
              ...{ kind: 'cut', when: 'before', statement: 'lock_renew', how: 'black-hole' },
            })
            await cut.happened
            await until(async () => lock.signal.aborted || (await expiry()) > first, 'it to be renewed')
            cut.end()
            lock.assertHeld()
          })
          expect(await lock.release()).toBe('released')
        },
        { connectionString: proxy.url, max: 1 },
      )
    },
  )

  it('not by a connection that was given up while it was made', { timeout: 60_000 }, async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const send = vi.spyOn(DedicatedConnection.prototype, 'send')
        const first = await dibs.lock('first', { leaseMs: 600 })
        const slow = proxy.inject({ kind: 'latency', delayMs: 100 })
        await until(() => send.mock.calls.length > 0, 'the connection to be made')
        await first.release()
        const lock = await dibs.lock('till', { leaseMs: 9_000 })
        const expiry = async () => Number((await fixture.dibs.locks.inspect('till'))[0]?.leaseUntil)
        const before = await expiry()
        await dibs.transaction(async () => {
          await until(async () => (await expiry()) > before, 'it to be renewed')
        })
        slow.end()
        send.mockRestore()
        expect(await lock.release()).toBe('released')
      },
      { connectionString: proxy.url, max: 1 },
    )
  })

  it('nor does a slow network make renewals pile up', { timeout: 60_000 }, async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const locks = [
          await dibs.lock('long', { leaseMs: 18_000 }),
          await dibs.lock('short', { leaseMs: 4_000 }),
        ]
        const slow = proxy.inject({ kind: 'latency', delayMs: 60 })
        const sent = [vi.spyOn(DedicatedConnection.prototype, 'send'), vi.spyOn(Database.prototype, 'send')]
        const expiry = async () => Number((await fixture.dibs.locks.inspect('long'))[0]?.leaseUntil)
        const before = await expiry()
        await until(async () => (await expiry()) > before, 'the long one to be renewed')
        const renewals = [renewLocks, renewLock]
        const calls = sent.flatMap((spy): readonly (readonly [Statement, ...unknown[]])[] => spy.mock.calls)
        const count = calls.filter(([one]) => renewals.includes(one)).length
        expect(count).toBeLessThan(30)
        for (const spy of sent) spy.mockRestore()
        slow.end()
        expect(await Promise.all(locks.map((lock) => lock.release()))).toEqual(['released', 'released'])
      },
      { connectionString: proxy.url },
    )
  })

  it.skipIf(viaPgBouncer)('not where sessions are read only: renewals say what they need', async () => {
    await fixture.beside(
      async (dibs) => {
        const lock = await dibs.lock('till', { leaseMs: 4_000 })
        const expiry = async () => Number((await fixture.dibs.locks.inspect('till'))[0]?.leaseUntil)
        const first = await expiry()
        await dibs.transaction(async () => {
          await until(async () => (await expiry()) > first + 1_500, 'it to be renewed several times')
        })
        expect(await lock.release()).toBe('released')
      },
      { max: 1, options: '-c default_transaction_read_only=on' },
    )
  })

  it('when it was held for as long as it was to be, and not for longer on the server either', async () => {
    const endOf = async (name: string): Promise<number> => {
      const { rows } = await fixture.pool.query(
        `select expires_at from ${fixture.schema.name}.lock where name = $1`,
        [name],
      )
      return rows[0].expires_at.getTime()
    }
    const since = performance.now()
    const lock = await fixture.dibs.lock('till', { leaseMs: 1_500, maxHoldMs: 2_500 })
    expect(await lost(lock)).toMatchObject({ reason: 'max hold' })
    expect(performance.now() - since).toBeGreaterThan(2_300)
    // Renewed for a whole lease it would last until 3,500 at the least.
    expect((await endOf('till')) - lock.acquiredAt.getTime()).toBeLessThan(3_200)
    const short = await fixture.dibs.lock('short', { leaseMs: HOUR_MS, maxHoldMs: 100 })
    expect(await endOf('short')).toBeLessThan(short.acquiredAt.getTime() + 5_000)
    expect(await lost(short)).toMatchObject({ reason: 'max hold' })
  })

  it('when it is taken away, which is noticed also if it is held for less than its lease', async () => {
    const lock = await fixture.dibs.lock('till', { leaseMs: HOUR_MS, maxHoldMs: 9_000 })
    await fixture.dibs.locks.forceRelease('till')
    expect(await lost(lock)).toMatchObject({ reason: 'stolen' })
  })

  it('and any number may listen for that', async () => {
    await using lock = await fixture.dibs.lock('till')
    const warnings: Error[] = []
    const note = (warning: Error) => void warnings.push(warning)
    process.on('warning', note)
    for (let n = 0; n < 20; n++) lock.signal.addEventListener('abort', () => {})
    await sleep(50)
    process.off('warning', note)
    expect(warnings).toEqual([])
  })

  it('when its instance is closed, which does not wait for it', realTime, async () => {
    let lock: Lock | undefined
    await fixture.beside(async (dibs) => {
      lock = await dibs.lock('till', { leaseMs: HOUR_MS })
      const before = performance.now()
      await dibs.close()
      expect(performance.now() - before).toBeLessThan(5_000)
      expect(lock.signal.reason).toMatchObject({ reason: 'closed' })
      expect(await lock.release()).toBe('lost')
      await expect(dibs.lock('till')).rejects.toThrow(ClosedError)
      await expect(dibs.withLock('till', async () => {})).rejects.toThrow(ClosedError)
      await expect(dibs.tryLock('till')).rejects.toThrow(ClosedError)
    })
    // Work that began under the lock may still be running, so the lease stays.
    expect(await fixture.dibs.tryLock('till')).toBeNull()
  })

  it('and releasing it is done at once, without the server', async () => {
    const lock = await fixture.dibs.lock('till', { leaseMs: 100 })
    standStill(150)
    const { value, roundTrips } = await countTraffic(fixture.pool, () => lock.release())
    expect([value, roundTrips]).toEqual(['lost', 0])
  })
})

describe('release', () => {
  it('is not tried for longer than it is worth', realTime, async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const lock = await dibs.lock('till', { leaseMs: 1_000 })
        const silence = proxy.inject({ kind: 'black-hole' })
        const before = performance.now()
        await expect(lock.release()).rejects.toThrow()
        expect(performance.now() - before).toBeLessThan(6_000)
        silence.end()
      },
      { connectionString: proxy.url },
    )
  })

  it('whose answer was lost is no loss, though another has it by the time it is repeated', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const lock = await dibs.lock('till')
        const cut = proxy.inject({ kind: 'cut', when: 'after', statement: 'lock_release', how: 'reset' })
        const releasing = lock.release()
        await cut.happened
        await using _ = await until(
          async () => (await fixture.other.tryLock('till')) ?? undefined,
          'another to have it',
        )
        expect(await releasing).toBe('released')
        cut.end()
      },
      { connectionString: proxy.url },
    )
  })

  it('may be said again, and each hears the same', async () => {
    const lock = await fixture.dibs.lock('till')
    const twice = await countTraffic(fixture.pool, () => Promise.all([lock.release(), lock.release()]))
    expect(twice).toMatchObject({ value: ['released', 'released'], roundTrips: 1 })
    expect(await lock.release()).toBe('released')
    expect(lock.signal.aborted).toBe(false)
    await using next = await fixture.other.lock('till')
    expect(await lock.release()).toBe('released')
    next.assertHeld()
  })

  it.each(['lock_acquire', 'lock_release'])('whatever answer is lost, of %s too', async (statement) => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const cut = proxy.inject({ kind: 'cut', when: 'after', statement, how: 'reset', times: 1 })
        const lock = await dibs.lock('till')
        expect(lock.tookOver).toBeUndefined()
        expect((await fixture.dibs.locks.inspect('till'))[0]?.fence).toBe(lock.fence)
        expect(await lock.release()).toBe('released')
        await cut.happened
        cut.end()
      },
      { connectionString: proxy.url },
    )
    expect(await fixture.dibs.locks.inspect('till')).toEqual([])
  })

  it('happens in the background for a call that was rejected and may have got the lock', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const cut = proxy.inject({
          kind: 'cut',
          when: 'after',
          statement: 'lock_acquire',
          how: 'reset',
          times: 'always',
        })
        const unknown = { code: 'DIBS_COMMIT_OUTCOME_UNKNOWN' }
        await expect(dibs.tryLock('till', { leaseMs: HOUR_MS })).rejects.toMatchObject(unknown)
        await expect(dibs.lock('shop', { waitMs: 0 })).rejects.toMatchObject(unknown)
        cut.end()
        for (const name of ['till', 'shop']) {
          const { rows } = await fixture.pool.query(
            `select from ${fixture.schema.name}.lock where name = $1`,
            [name],
          )
          expect(rows).toHaveLength(1)
          await until(
            async () => (await fixture.dibs.locks.inspect(name)).length === 0,
            'it to be given back',
          )
        }
      },
      { connectionString: proxy.url },
    )
  })

  it('of what nobody got does not keep a close waiting while the server is away', realTime, async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const cut = proxy.inject({
          kind: 'cut',
          when: 'after',
          statement: 'lock',
          how: 'reset',
          times: 'always',
        })
        await expect(dibs.tryLock('till', { leaseMs: HOUR_MS })).rejects.toThrow()
        const before = performance.now()
        await dibs.close()
        expect(performance.now() - before).toBeLessThan(8_000)
        cut.end()
      },
      { connectionString: proxy.url },
    )
  })

  it('is told if it fails, and can be tried again', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const lock = await dibs.lock('till', { leaseMs: 1_500 })
        const cut = proxy.inject({
          kind: 'cut',
          when: 'before',
          statement: 'lock_release',
          how: 'reset',
          times: 'always',
        })
        await expect(lock.release()).rejects.toMatchObject({ code: 'DIBS_COMMIT_OUTCOME_UNKNOWN' })
        const events = await fixture.eventsOf(async () => lock[Symbol.asyncDispose]())
        expect(events.map(([name]) => name)).toEqual(['dibs:lock.not-released'])
        cut.end()
        expect(await lock.release()).toBe('released')
      },
      { connectionString: proxy.url },
    )
  })
})

describe('closing', () => {
  it('ends the waiting for a lock at once', realTime, async () => {
    await using _ = await fixture.dibs.lock('till')
    await fixture.beside(async (dibs) => {
      const waiting = [dibs.lock('till'), dibs.lock('till'), dibs.withLock('till', async () => {})]
      const ended = Promise.allSettled(waiting)
      await until(
        async () =>
          (
            await fixture.pool.query(
              `select from ${fixture.schema.name}.lock where wanted_until > '-infinity'`,
            )
          ).rowCount === 1,
        'somebody to wait',
      )
      const before = performance.now()
      await dibs.close()
      expect(performance.now() - before).toBeLessThan(3_000)
      for (const one of await ended)
        expect(one).toMatchObject({ status: 'rejected', reason: { code: 'DIBS_CLOSED' } })
    })
  })
})

describe('withLock', () => {
  it('runs the function under the lock, and gives that back', async () => {
    const seen = await fixture.dibs.withLock('till', async (lock) => {
      expect(await fixture.other.tryLock('till')).toBeNull()
      return lock.fence
    })
    expect(seen).toBeGreaterThan(0)
    await expect(
      fixture.dibs.withLock('till', { leaseMs: 1_000 }, async () => {
        throw new Error('the work failed')
      }),
    ).rejects.toThrow('the work failed')
    expect(await fixture.dibs.locks.inspect('till')).toEqual([])
  })

  it('takes undefined for no options, as lock does', async () => {
    expect(await fixture.dibs.withLock('till', undefined, async () => 'done')).toBe('done')
  })

  it('does not run it if the lock cannot be had', async () => {
    await using _ = await fixture.other.lock('till')
    let runs = 0
    const run = fixture.dibs.withLock('till', { waitMs: 20 }, async () => runs++)
    await expect(run).rejects.toThrow(BusyError)
    expect(runs).toBe(0)
  })

  it('says that the lock was lost, though the function has returned', async () => {
    const run = fixture.dibs.withLock('till', { leaseMs: HOUR_MS }, async () => {
      await fixture.schema.clock.advance(2 * HOUR_MS)
      await (await fixture.other.tryLock('till'))?.release()
      return 'done'
    })
    await expect(run).rejects.toMatchObject({ code: 'DIBS_FENCE_LOST', reason: 'stolen' })
  })

  it('is waited for when the instance is closed, and keeps its lock until then', async () => {
    await fixture.beside(async (dibs) => {
      const began = deferred()
      const goOn = deferred()
      const run = dibs.withLock('till', { leaseMs: 3_000 }, async (lock) => {
        began.resolve()
        await goOn.promise
        lock.assertHeld()
        return 'done'
      })
      await began.promise
      const closing = dibs.close()
      const expiry = async () => Number((await fixture.dibs.locks.inspect('till'))[0]?.leaseUntil)
      const first = await expiry()
      await until(async () => (await expiry()) > first, 'it to be renewed')
      goOn.resolve()
      expect(await run).toBe('done')
      await closing
    })
    expect(await fixture.dibs.locks.inspect('till')).toEqual([])
  })
})
