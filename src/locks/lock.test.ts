import { hostname } from 'node:os'
import { describe, expect, it, vi } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, url } from '../../test/database.js'
import { realTime } from '../../test/real-time.js'
import { claim } from '../claims/acquire/acquire-claims.js'
import { AcquireRefusedError, BusyError, ClosedError, FenceLostError, LockHeldError } from '../errors.js'
import { Database } from '../postgres/database.js'
import { DedicatedConnection } from '../postgres/dedicated-connection.js'
import { nameHolder } from '../postgres/this-process.js'
import { Wakeups } from '../postgres/wakeups.js'
import { countTraffic } from '../testing/count-traffic.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import type { Lock } from './lock.js'
import { acquireLock, renewLocks } from './lock-statements.js'

const fixture = openClaims()
const HOUR_MS = 3_600_000
const refused = async (promise: Promise<unknown>): Promise<BusyError> => {
  const error = await promise.then(
    () => undefined,
    (reason) => reason,
  )
  expect(error).toBeInstanceOf(BusyError)
  return error
}

describe('a lock', () => {
  it('is one holder’s at a time, and the fence of the next is higher', async () => {
    const mine = await fixture.dibs.lock('till')
    expect(mine).toMatchObject({ name: 'till', permit: 0, tookOver: undefined })
    expect(mine.holder).toMatch(new RegExp(`^${hostname()}:${process.pid}/[0-9a-f-]{36}$`))
    expect(Math.abs(mine.acquiredAt.getTime() - Date.now())).toBeLessThan(60_000)
    expect(await fixture.other.tryLock('till')).toBeNull()
    expect(await fixture.dibs.tryLock('till')).toBeNull() // it is no more this instance's own
    mine.assertHeld()
    expect(await mine.release()).toBe('released')
    await using next = (await fixture.other.tryLock('till', { holder: 'web-7' })) as Lock
    expect(next.fence).toBeGreaterThan(mine.fence)
    expect(next.holder).toMatch(/^web-7\//)
    expect(next.tookOver).toBeUndefined()
  })

  it('says who has it to whoever does not wait, or has waited', realTime, async () => {
    await using _ = await fixture.dibs.lock('till', { holder: 'ann' })
    const error = await refused(fixture.other.lock('till', { waitMs: 0 }))
    expect(error).toMatchObject({ waitedMs: 0, subject: 'lock "till"' })
    expect(error.cause).toBeInstanceOf(LockHeldError)
    const { holder, leaseUntil } = error
    expect(holder).toBe('ann')
    expect(error.cause).toMatchObject({ holder, leaseUntil })
    expect(error.message).toBe(
      `Did not wait for lock "till". It is held by "ann" (lease until ${error.leaseUntil?.toISOString()}, unless renewed). Try again in ${error.retryAfterMs} ms.`,
    )
    expect(error.retryAfterMs).toBeGreaterThan(25_000)
    const waited = await refused(fixture.other.lock('till', { waitMs: 150 }))
    expect(waited.waitedMs).toBeGreaterThanOrEqual(149)
    expect(waited.waitedMs).toBeLessThan(5_000)
    expect(waited.holder).toBe('ann')
  })

  it('tells when the lease ends by the clock of the database', async () => {
    await fixture.schema.clock.advance(48 * HOUR_MS)
    await using _ = await fixture.dibs.lock('till', { leaseMs: HOUR_MS })
    const error = await refused(fixture.other.lock('till', { waitMs: 0 }))
    const [info] = await fixture.dibs.locks.inspect('till')
    expect(Math.abs(Number(error.leaseUntil) - Number(info?.leaseUntil))).toBeLessThan(60_000)
    expect(error.holder).toBe(`${hostname()}:${process.pid}`)
  })

  it('comes to those who wait in the order in which they came, in one process', async () => {
    const first = await fixture.dibs.lock('till')
    const order: string[] = []
    const waiting = ['a', 'b', 'c'].map(async (name) => {
      await using _ = await fixture.dibs.lock('till')
      order.push(name)
    })
    await until(async () => (await wantedRows()) === 1, 'somebody to wait')
    await first.release()
    await Promise.all(waiting)
    expect(order).toEqual(['a', 'b', 'c'])
  })

  it('comes to another process by a hint, which is sent only if somebody waits', async () => {
    const notify = vi.spyOn(Wakeups.prototype, 'notify')
    const lonely = await fixture.dibs.lock('till')
    await lonely.release()
    expect(notify).not.toHaveBeenCalled()
    const mine = await fixture.dibs.lock('till')
    const theirs = fixture.other.lock('till')
    await until(async () => (await wantedRows()) === 1, 'the other to wait')
    await mine.release()
    expect(notify.mock.calls).toEqual([['lock:till']])
    await (await theirs).release()
    notify.mockRestore()
  })

  it('is waited for again and again without a hint too', async () => {
    await fixture.beside(async (deaf) => {
      const mine = await fixture.dibs.lock('till')
      const theirs = deaf.lock('till')
      await until(async () => (await wantedRows()) === 1, 'the other to wait')
      await mine.release()
      expect(await (await theirs).release()).toBe('released')
    })
  })

  it('of a call that `close` meets is not said to be held by another', async () => {
    await fixture.beside(async (dibs) => {
      const call = dibs.tryLock('till')
      const closed = dibs.close()
      await expect(call).rejects.toThrow(ClosedError)
      await closed
    })
  })

  it('comes to those who wait when its time has run out', realTime, async () => {
    await fixture.beside(async (dying) => {
      await dying.lock('till', { leaseMs: 300, holder: 'gone' })
      // Nobody renews it any more.
      await dying.close()
    })
    const before = performance.now()
    const next = await fixture.dibs.lock('till')
    expect(performance.now() - before).toBeLessThan(5_000)
    expect(next.tookOver?.holder).toBe('gone')
    await next.release()
  })

  it('tells whoever takes it over from whom, and when it ran out', async () => {
    const mine = await fixture.dibs.lock('till', { leaseMs: HOUR_MS })
    const ranOutAt = mine.acquiredAt.getTime() + HOUR_MS
    await fixture.schema.clock.advance(2 * HOUR_MS)
    await using next = (await fixture.other.tryLock('till')) as Lock
    expect(next.tookOver).toEqual({
      holder: nameHolder(mine.holder),
      fence: mine.fence,
      leaseUntil: new Date(ranOutAt),
    })
    expect(next.fence).toBeGreaterThan(mine.fence)
    expect(await mine.release()).toBe('lost')
    expect(mine.signal.reason).toMatchObject({ reason: 'stolen', fence: mine.fence })
  })

  it('costs one round trip to take and one to release', async () => {
    await fixture.dibs.now()
    const taken = await countTraffic(fixture.pool, () => fixture.dibs.lock('till'))
    expect(taken).toMatchObject({ roundTrips: 1, commits: 1 })
    const released = await countTraffic(fixture.pool, () => taken.value.release())
    expect(released).toMatchObject({ roundTrips: 1, commits: 1 })
    const again = await countTraffic(fixture.pool, () => fixture.dibs.lock('till'))
    expect(again).toMatchObject({ roundTrips: 1, commits: 1 })
    const refusal = await countTraffic(fixture.pool, () => fixture.other.tryLock('till'))
    expect(refusal).toMatchObject({ value: null, roundTrips: 1 })
    await again.value.release()
  })

  it('is the same as one that is claimed with other things', async () => {
    await using mine = await fixture.dibs.lock('till')
    const error = await fixture.other
      .acquire([claim.lock('till')], { waitMs: 0 }, async () => {})
      .catch((e) => e)
    expect(error).toBeInstanceOf(AcquireRefusedError)
    expect(error.failures[0].error.holder).toBe(`${hostname()}:${process.pid}`)
    await mine.release()
    await fixture.other.acquire([claim.lock('till')], async () => {
      expect(await fixture.dibs.tryLock('till')).toBeNull()
    })
    expect(await (await fixture.dibs.lock('till')).release()).toBe('released')
  })

  it('comes by a hint from those who claim it with other things, too', async () => {
    const notify = vi.spyOn(Wakeups.prototype, 'notify')
    let theirs: Promise<Lock> | undefined
    const work = async () => {
      theirs = fixture.other.lock('till')
      await until(async () => (await wantedRows()) === 1, 'the other to wait')
    }
    await fixture.dibs.acquire([claim.lock('till')], { mode: 'leased' }, work)
    await until(() => notify.mock.calls.length > 0, 'the hint')
    expect(notify.mock.calls[0]).toEqual(['lock:till'])
    notify.mockRestore()
    await (await theirs)?.release()
  })

  const wantedRows = async (): Promise<number> =>
    (await fixture.pool.query(`select from ${fixture.schema.name}.lock where wanted_until > '-infinity'`))
      .rowCount ?? 0
})

describe('renewal', () => {
  it('keeps a lock for far longer than its time', async () => {
    const lock = await fixture.dibs.lock('till', { leaseMs: 4_000 })
    const expiry = async () => (await fixture.dibs.locks.inspect('till'))[0]?.leaseUntil.getTime() ?? 0
    const first = await expiry()
    await until(async () => (await expiry()) > first + 3_000, 'it to be renewed several times')
    lock.assertHeld()
    expect(await fixture.other.tryLock('till')).toBeNull()
    expect(await lock.release()).toBe('released')
  })

  it('is one statement for all locks of a process', async () => {
    const send = vi.spyOn(DedicatedConnection.prototype, 'send')
    const locks = await Promise.all(
      Array.from({ length: 40 }, (_, n) => fixture.dibs.lock(`many:${n}`, { leaseMs: 3_000 })),
    )
    const sizes = () =>
      send.mock.calls
        .filter(([statement]) => statement === renewLocks)
        .map(([, values]) => JSON.parse(`${values[0]}`).length)
    // Locks taken first may be due before the others. After that, one statement renews all of them.
    await until(() => sizes().includes(40), 'all to be renewed at once')
    expect(sizes().length).toBeLessThanOrEqual(3)
    send.mockRestore()
    expect(await Promise.all(locks.map((lock) => lock.release()))).toEqual(locks.map(() => 'released'))
  })

  it('waits for whoever has the row, and does not hold the other locks up', async () => {
    const [a, b] = [
      await fixture.dibs.lock('a', { leaseMs: 3_000 }),
      await fixture.dibs.lock('b', { leaseMs: 3_000 }),
    ]
    const end = async (name: string) => Number((await fixture.dibs.locks.inspect(name))[0]?.leaseUntil)
    const first = [await end('a'), await end('b')]
    const client = await fixture.pool.connect()
    await client.query('begin')
    await client.query(`select from ${fixture.schema.name}.lock where name = 'a' for no key update`)
    await until(async () => (await end('b')) > Number(first[1]), 'the other to be renewed')
    expect(await end('a')).toBe(first[0])
    await client.query('commit')
    client.release()
    await until(async () => (await end('a')) > Number(first[0]), 'it to be renewed then')
    for (const lock of [a, b]) expect(await lock.release()).toBe('released')
  })

  it('that is on its way when the lock is released neither revives it nor says that it is lost', async () => {
    const lock = await fixture.dibs.lock('till', { leaseMs: 3_000 })
    const client = await fixture.pool.connect()
    await client.query('begin')
    await client.query(`select from ${fixture.schema.name}.lock for no key update`)
    const waiting = async () =>
      (
        await fixture.pool.query(
          `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%${fixture.schema.name}%lock_%'`,
        )
      ).rowCount
    await until(async () => (await waiting()) === 1, 'the renewal to wait')
    const releasing = lock.release()
    await until(async () => (await waiting()) === 2, 'the release to wait too')
    await client.query('commit')
    client.release()
    expect(await releasing).toBe('released')
    expect(lock.signal.aborted).toBe(false)
    expect(() => lock.assertHeld()).toThrow(FenceLostError)
    expect(await fixture.dibs.locks.inspect('till')).toEqual([])
    await using _ = (await fixture.other.tryLock('till')) as Lock
  })

  it('goes on though the whole pool is in use', async () => {
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
      { max: 1 },
    )
  })
})

describe('permits', () => {
  it('let so many in, and the next when one has left', async () => {
    const options = { permits: 3 }
    const held = await Promise.all([1, 2, 3].map(() => fixture.dibs.lock('pool', options)))
    expect(held.map(({ permit }) => permit).toSorted()).toEqual([0, 1, 2])
    expect(await fixture.other.tryLock('pool', options)).toBeNull()
    const next = fixture.other.lock('pool', options)
    const [one] = held
    await until(
      async () =>
        (await fixture.pool.query(`select from ${fixture.schema.name}.lock where wanted_until > '-infinity'`))
          .rowCount === 3,
      'somebody to wait',
    )
    await one?.release()
    expect((await next).permit).toBe(one?.permit)
    expect((await next).fence).toBeGreaterThan(one?.fence ?? 0)
    await Promise.all([...held, await next].map((lock) => lock.release()))
    expect(await fixture.dibs.locks.inspect('pool')).toEqual([])
  })

  it('that are fewer than before are respected by those who know', async () => {
    const held = await Promise.all([1, 2, 3].map(() => fixture.dibs.lock('pool', { permits: 3 })))
    expect(await fixture.other.tryLock('pool', { permits: 2 })).toBeNull()
    for (const lock of held.filter(({ permit }) => permit === 2)) await lock.release()
    expect(await fixture.other.tryLock('pool', { permits: 2 })).toBeNull()
    for (const lock of held) await lock.release()
  })
})

describe('waiting', () => {
  it('ends when the caller’s signal fires, and leaves nothing behind', async () => {
    await using _ = await fixture.dibs.lock('till')
    const controller = new AbortController()
    const waiting = [1, 2].map(() => fixture.other.lock('till', { signal: controller.signal }))
    controller.abort(new Error('enough'))
    for (const one of await Promise.allSettled(waiting))
      expect(one).toMatchObject({ status: 'rejected', reason: { message: 'enough' } })
    const aborted = AbortSignal.abort(new Error('before'))
    await expect(fixture.other.lock('free', { signal: aborted })).rejects.toThrow('before')
    expect(await fixture.dibs.locks.inspect('free')).toEqual([])
  })

  it('ends with the signal though the network is silent', realTime, async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        await dibs.now()
        const silence = proxy.inject({
          ...{ kind: 'cut', when: 'before', statement: 'lock_acquire', how: 'black-hole' },
        })
        const controller = new AbortController()
        const waiting = dibs.lock('till', { signal: controller.signal })
        waiting.catch(() => {})
        await silence.happened
        const before = performance.now()
        controller.abort(new Error('enough'))
        await expect(waiting).rejects.toThrow('enough')
        expect(performance.now() - before).toBeLessThan(4_000)
        silence.end()
      },
      { connectionString: proxy.url },
    )
  })

  it('is that of one call of a process at a time, in the order in which they came', async () => {
    const holder = await fixture.other.lock('till')
    const send = vi.spyOn(Database.prototype, 'send')
    const asking = () => send.mock.calls.filter(([statement]) => statement === acquireLock)
    const served: number[] = []
    const waiting = [1, 2, 3, 4, 5].map(async (n) => {
      await using _ = await fixture.dibs.lock('till')
      served.push(n)
    })
    await until(() => asking().length > 2, 'it to be asked for several times')
    expect(new Set(asking().map(([, values]) => (values as readonly string[])[2])).size).toBe(1)
    await holder.release()
    await Promise.all(waiting)
    send.mockRestore()
    expect(served).toEqual([1, 2, 3, 4, 5])
  })

  it('goes on past those of a process that have left', async () => {
    const holder = await fixture.other.lock('till')
    const first = fixture.dibs.lock('till')
    await expect(fixture.dibs.lock('till', { waitMs: 100 })).rejects.toThrow(BusyError)
    const last = fixture.dibs.lock('till', { waitMs: HOUR_MS })
    await holder.release()
    await (await first).release()
    await (await last).release()
  })

  it('gives a lock back that comes when nobody wants it any more', async () => {
    const controller = new AbortController()
    const client = await fixture.pool.connect()
    await client.query('begin')
    // The call cannot be answered before this ends.
    await client.query(`lock table ${fixture.schema.name}.lock in access exclusive mode`)
    const waiting = fixture.dibs.lock('till', { signal: controller.signal })
    await until(
      async () =>
        (
          await fixture.pool.query(
            `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%${fixture.schema.name}%lock_acquire%'`,
          )
        ).rowCount === 1,
      'the call to wait',
    )
    waiting.catch(() => {})
    controller.abort(new Error('enough'))
    await client.query('commit')
    client.release()
    await expect(waiting).rejects.toThrow('enough')
    const isTaken = async () =>
      (await fixture.pool.query(`select from ${fixture.schema.name}.lock where name = 'till'`)).rowCount === 1
    await until(isTaken, 'it to have come')
    await until(async () => (await fixture.dibs.locks.inspect('till')).length === 0, 'it to be given back')
  })

  it('goes on behind one that has left', async () => {
    const held = await fixture.other.lock('till')
    const first = fixture.dibs.lock('till')
    const left = refused(fixture.dibs.lock('till', { waitMs: 50 }))
    const last = fixture.dibs.lock('till', { waitMs: 5_000 })
    await left
    await held.release()
    await (await first).release()
    expect(await (await last).release()).toBe('released')
  })

  it('of one that has less time ends without those before it', async () => {
    await using _ = await fixture.other.lock('till')
    const going = new AbortController()
    const first = fixture.dibs.lock('till', { waitMs: 60_000, signal: going.signal })
    first.catch(() => {})
    const second = await refused(fixture.dibs.lock('till', { waitMs: 100 }))
    expect(second.waitedMs).toBeLessThan(10_000)
    expect(second.cause).toBeInstanceOf(LockHeldError)
    going.abort(new Error('enough'))
    await expect(first).rejects.toThrow('enough')
  })
})

describe('events', () => {
  it('tell of waits, holds and timeouts, and not of names', async () => {
    const events = await fixture.eventsOf(async () => {
      const mine = await fixture.dibs.lock('till:ann@example.com', { leaseMs: HOUR_MS })
      await fixture.other.tryLock('till:ann@example.com')
      await refused(fixture.other.lock('till:ann@example.com', { waitMs: 1_000 }))
      await mine.release()
      const lost = await fixture.dibs.lock('till:ann@example.com', { leaseMs: HOUR_MS })
      await fixture.schema.clock.advance(2 * HOUR_MS)
      await using _ = await fixture.other.lock('till:ann@example.com')
      await lost.release()
    })
    expect(JSON.stringify(events)).not.toContain('ann@')
    const at = { template: 'till:*', keyHash: expect.any(String) }
    expect(events).toEqual([
      ['dibs:lock.acquired', { ...at, fence: expect.any(Number), waitedMs: expect.any(Number), tries: 1 }],
      ['dibs:lock.timed-out', { ...at, waitedMs: 0, tries: 1 }],
      ['dibs:lock.contended', { ...at, state: 'held' }],
      ['dibs:lock.timed-out', { ...at, waitedMs: expect.any(Number), tries: expect.any(Number) }],
      ['dibs:lock.released', { ...at, fence: expect.any(Number), heldMs: expect.any(Number) }],
      ['dibs:lock.acquired', { ...at, fence: expect.any(Number), waitedMs: expect.any(Number), tries: 1 }],
      ['dibs:lock.acquired', { ...at, fence: expect.any(Number), waitedMs: expect.any(Number), tries: 1 }],
      [
        'dibs:lock.stolen',
        { ...at, how: 'takeover', fromFence: expect.any(Number), idleMs: expect.any(Number) },
      ],
      ['dibs:lock.lost', { ...at, fence: expect.any(Number), reason: 'stolen', heldMs: expect.any(Number) }],
      ['dibs:lock.released', { ...at, fence: expect.any(Number), heldMs: expect.any(Number) }],
    ])
    const [, stolen] = events[7] ?? []
    expect(stolen?.idleMs).toBeGreaterThanOrEqual(HOUR_MS - 60_000)
  })

  it('tell of each who waits, also behind another of its process, and once', async () => {
    await using _ = await fixture.other.lock('till')
    const contended = async (calls: readonly number[]) => {
      const events = await fixture.eventsOf(() =>
        Promise.all(calls.map((waitMs) => refused(fixture.dibs.lock('till', { waitMs })))),
      )
      return events.filter(([name]) => name === 'dibs:lock.contended')
    }
    expect(await contended([1_500, 200])).toHaveLength(2)
    // This one comes to its turn, and finds it held.
    expect(await contended([1_000, 2_500])).toHaveLength(2)
  })
})
