import { describe, expect, it, vi } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, viaPgBouncer } from '../../test/database.js'
import { claim } from '../claims/acquire/acquire-claims.js'
import { BusyError, FenceLostError, InvalidInputError } from '../errors.js'
import { encodeCursor } from '../postgres/page.js'
import { Wakeups } from '../postgres/wakeups.js'
import type { Lock } from './lock.js'

const fixture = openClaims()
const HOUR_MS = 3_600_000

describe('list', () => {
  it('shows what is held, by name, and in pages', async () => {
    const names = ['b', 'a', 'a:2', 'c']
    const locks = await Promise.all(
      names.map((name) => fixture.dibs.lock(name, { leaseMs: HOUR_MS, holder: 'ann' })),
    )
    const semaphore = await Promise.all([1, 2].map(() => fixture.dibs.lock('s', { permits: 2 })))
    const { items: all } = await fixture.dibs.locks.list()
    expect(all.map(({ name, permit }) => [name, permit])).toEqual([
      ['a', 0],
      ['a:2', 0],
      ['b', 0],
      ['c', 0],
      ['s', 0],
      ['s', 1],
    ])
    const [first] = all
    const held = locks.find(({ name }) => name === 'a') as Lock
    expect(first).toEqual({
      ...{ name: 'a', permit: 0, holder: 'ann', fence: held.fence, acquiredAt: held.acquiredAt },
      leaseUntil: new Date(held.acquiredAt.getTime() + HOUR_MS),
    })
    const names_ = async (filter: object, page = {}) =>
      (await fixture.dibs.locks.list(filter, page)).items.map(({ name }) => name)
    expect(await names_({ prefix: 'a' })).toEqual(['a', 'a:2'])
    expect(await names_({}, { limit: 2 })).toEqual(['a', 'a:2'])
    expect(
      await names_({}, { limit: 2, cursor: (await fixture.dibs.locks.list({}, { limit: 2 })).nextCursor }),
    ).toEqual(['b', 'c'])
    const { nextCursor } = await fixture.dibs.locks.list({}, { limit: 5 })
    expect(await names_({}, { cursor: nextCursor })).toEqual(['s'])
    await locks[0]?.release()
    await fixture.schema.clock.advance(40_000) // those of half a minute have run out
    expect(await names_({})).toEqual(['a', 'a:2', 'c'])
    for (const lock of [...locks, ...semaphore]) await lock.release()
  })

  it.each([
    [{}, { limit: 0 }, 'limit'],
    [{}, { limit: 1_001 }, 'limit'],
    [{ prefix: 7 }, {}, 'prefix'],
    [{ prefix: 'a\0' }, {}, 'prefix'],
    [{}, { cursor: 'a' }, 'cursor'],
    [{}, { cursor: encodeCursor('locks', ['a', '10000000']) }, 'cursor'],
    [{ pre: 'a' }, {}, 'pre'],
  ])('refuses %o, %o', async (filter, page, field) => {
    const error = await fixture.dibs.locks.list(filter as never, page as never).catch((e) => e)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.field).toBe(field)
  })
})

describe('inspect', () => {
  it('shows who holds each permit, and nobody if it is free', async () => {
    expect(await fixture.dibs.locks.inspect('till')).toEqual([])
    const lock = await fixture.dibs.lock('till', { holder: 'ann' })
    expect(await fixture.other.locks.inspect('till')).toMatchObject([{ holder: 'ann', fence: lock.fence }])
    await lock.release()
    expect(await fixture.dibs.locks.inspect('till')).toEqual([])
    await expect(fixture.dibs.locks.inspect('')).rejects.toThrow(InvalidInputError)
  })
})

describe('forceRelease', () => {
  it('takes a lock away, and its holder learns of it', async () => {
    const mine = await fixture.dibs.lock('till', { leaseMs: 9_000 })
    const events = await fixture.eventsOf(async () => {
      expect(await fixture.other.locks.forceRelease('till')).toEqual({ released: 1 })
      await until(() => mine.signal.aborted, 'the holder to learn of it')
    })
    expect(mine.signal.reason).toMatchObject({ reason: 'stolen' })
    expect(events.map(([name]) => name)).toEqual(['dibs:lock.stolen', 'dibs:lock.lost'])
    expect(events[0]?.[1]).toMatchObject({ how: 'force', fromFence: mine.fence, idleMs: 0 })
    const next = (await fixture.other.tryLock('till')) as Lock
    expect(next.fence).toBeGreaterThan(mine.fence)
    expect(next.tookOver).toBeUndefined()
    await next.release()
  })

  it('does so only for the fence that was seen, and wakes those who wait', async () => {
    const mine = await fixture.dibs.lock('till')
    const waiting = fixture.other.lock('till')
    await until(
      async () =>
        (await fixture.pool.query(`select from ${fixture.schema.name}.lock where wanted_until > '-infinity'`))
          .rowCount === 1,
      'the other to wait',
    )
    expect(await fixture.dibs.locks.forceRelease('till', { ifFence: mine.fence - 1 })).toEqual({
      released: 0,
    })
    mine.assertHeld()
    const notify = vi.spyOn(Wakeups.prototype, 'notify')
    expect(await fixture.dibs.locks.forceRelease('till', { ifFence: mine.fence })).toEqual({ released: 1 })
    expect(notify.mock.calls).toEqual([['lock:till']])
    notify.mockRestore()
    await using next = await waiting
    expect(await fixture.dibs.locks.forceRelease('till', { ifFence: mine.fence })).toEqual({ released: 0 })
    next.assertHeld()
    expect(await mine.release()).toBe('lost')
    expect(await fixture.dibs.locks.forceRelease('nobody has made it')).toEqual({ released: 0 })
  })

  it('takes one permit, or all', async () => {
    const held = await Promise.all([1, 2, 3].map(() => fixture.dibs.lock('pool', { permits: 3 })))
    expect(await fixture.dibs.locks.forceRelease('pool', { ifFence: held[1]?.fence })).toEqual({
      released: 1,
    })
    expect((await fixture.dibs.locks.inspect('pool')).length).toBe(2)
    expect(await fixture.dibs.locks.forceRelease('pool')).toEqual({ released: 2 })
    for (const lock of held) await lock.release()
  })

  it('waits for no guarded transaction; the next holder does, and the old one can begin none', async () => {
    const mine = await fixture.dibs.lock('till')
    const client = await fixture.pool.connect()
    await client.query('begin')
    await mine.guard(client)
    expect(await fixture.other.locks.forceRelease('till')).toEqual({ released: 1 })
    expect(await fixture.other.tryLock('till')).toBeNull()
    const waiting = fixture.other.lock('till')
    await expect(fixture.dibs.transaction((tx) => mine.guard(tx))).rejects.toMatchObject({
      reason: 'stolen',
    })
    await client.query(`insert into ${fixture.log} (name) values ('in time')`)
    await client.query('commit')
    client.release()
    await using next = await waiting
    expect(next.fence).toBeGreaterThan(mine.fence)
    expect(await fixture.logged()).toEqual(['in time'])
    expect(await mine.release()).toBe('lost')
  })

  it.each([true, false])('is a loss for a release, and for withLock (guarded: %s)', async (isGuarded) => {
    const run = fixture.dibs.withLock('till', (lock) =>
      fixture.dibs.transaction(async (tx) => {
        if (isGuarded) await lock.guard(tx)
        await fixture.other.locks.forceRelease('till')
      }),
    )
    await expect(run).rejects.toMatchObject({ code: 'DIBS_FENCE_LOST', reason: 'stolen' })
    const semaphore = await Promise.all(
      [1, 2].map(() => fixture.dibs.lock('pool', { permits: 2, leaseMs: 3_000 })),
    )
    await fixture.other.locks.forceRelease('pool', { ifFence: semaphore[0]?.fence })
    await until(() => semaphore[0]?.signal.aborted, 'its holder to learn of it')
    expect(await semaphore[1]?.release()).toBe('released')
  })

  // Five seconds, which are the same through a pooler.
  it.skipIf(viaPgBouncer)('waits for an open transaction that holds it, and says so', async () => {
    await (await fixture.dibs.lock('till')).release()
    await fixture.dibs.transaction((tx) =>
      fixture.dibs.acquire([claim.lock('till'), claim.lock('new')], { tx }, async () => {
        expect((await fixture.other.locks.list()).items).toEqual([])
        const error = await fixture.other.locks.forceRelease('till').catch((e) => e)
        expect(error).toBeInstanceOf(BusyError)
        expect(error.message).toBe(
          'Waited 5000 ms for an open transaction that holds lock "till", which cannot be taken away from it. Try again in 1000 ms.',
        )
        // Nobody knows of one that was never held before.
        expect(await fixture.other.locks.forceRelease('new')).toEqual({ released: 0 })
      }),
    )
  })

  it('takes away what is claimed with other things, too', async () => {
    const run = fixture.dibs.acquire([claim.lock('till')], { mode: 'leased' }, async () => {
      expect(await fixture.other.locks.forceRelease('till')).toEqual({ released: 1 })
    })
    await expect(run).rejects.toThrow(FenceLostError)
  })

  it.each([
    [{ ifFence: 1.5 }, 'ifFence', 'not 1.5'],
    [{ ifFence: '7' }, 'ifFence', 'not "7"'],
    [{ ifFenced: 1 }, 'ifFenced', 'Unknown option'],
  ])('refuses %o', async (options, field, reason) => {
    const error = await fixture.dibs.locks.forceRelease('till', options as never).catch((e) => e)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.field).toBe(field)
    expect(error.message).toContain(reason)
  })
})
