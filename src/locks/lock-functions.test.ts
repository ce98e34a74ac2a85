import { describe, expect, it } from 'vitest'
import { callersOf } from '../../test/claims/callers.js'
import { openClaims } from '../../test/claims/open-claims.js'
import { until } from '../../test/database.js'
import { movingClock } from '../../test/moving-clock.js'
import type { Executor } from '../postgres/executor.js'

/** Tests what sql/0016_lock_acquire.sql guarantees about rows that others have locked. */

const fixture = openClaims()
const { inTransaction, waiters } = callersOf(fixture, { scope: 's', key: 'k' })
const START = new Date('2026-06-15T12:00:00Z')
const at = (ms: number) => new Date(START.getTime() + ms)
const MINUTE_MS = 60_000

interface LockResult {
  state: string
  permit?: number
  fence: number
  acquiredAt?: number
  leftMs?: number
  isWanted?: boolean
}

const send = async <T = LockResult>(
  sql: string,
  values: unknown[],
  on: Executor = fixture.pool,
): Promise<T> =>
  (await on.query(`select ${fixture.schema.name}.${sql} as result`, values)).rows[0]?.result as T
const acquire = (holder: string, { permits = 1, wantedMs = 0, leaseMs = MINUTE_MS } = {}) =>
  send("lock_acquire('x', $1, $2, $3, $4)", [permits, holder, leaseMs, wantedMs])
const release = (fence: number, waitMs = 5_000) =>
  send("lock_release('x', 0, 'ann', $1, $2)", [fence, waitMs])
const renewAll = (...fences: number[]) =>
  send<string[]>('lock_renew_many($1)', [
    JSON.stringify(fences.map((fence, permit) => ({ name: 'x', permit, fence, ttlMs: MINUTE_MS }))),
  ])
const renewOne = (fence: number, waitMs = 5_000) =>
  send<string>("lock_renew_one('x', 0, $1, 60000, $2)", [fence, waitMs])
const guard = (fence: number | null, tx: Executor, waitMs = 5_000) =>
  send<string>("lock_guard('x', 0, $1, 60000, $2, false)", [fence, waitMs], tx)
const row = async (permit = 0) =>
  (
    await fixture.pool.query(
      `select holder, fence::float8, expires_at, wanted_until from ${fixture.schema.name}.lock where permit = $1`,
      [permit],
    )
  ).rows[0]
const lockRow = (tx: Executor, mode = 'for update', permit = 0) =>
  tx.query(`select from ${fixture.schema.name}.lock where permit = ${permit} ${mode}`)

/** Calls `fn` while a transaction has locked the row. Moves the clock to `to` before that transaction ends without a change. */
async function whileLocked<T>(to: Date, mode: string, fn: () => Promise<T>): Promise<T> {
  const clock = await movingClock(fixture.pool, fixture.schema.name, await now())
  await fixture.schema.waits.never()
  let result: Promise<T> | undefined
  await inTransaction(async (tx) => {
    await lockRow(tx, mode)
    result = fn()
    result.catch(() => {})
    await until(async () => (await waiters()) === 1, 'somebody to wait')
    await clock.set(to)
  })
  return await (result as Promise<T>)
}
const now = async (): Promise<Date> =>
  (await fixture.pool.query(`select ${fixture.schema.name}.clock() as now`)).rows[0].now

describe('the clock is read when the row is locked', () => {
  it('by whoever takes over', async () => {
    await fixture.schema.clock.freeze(START)
    await acquire('ann', { leaseMs: 1_000 })
    await fixture.schema.clock.freeze(at(2_000))
    const taken = await whileLocked(at(10_000), 'for no key update', () => acquire('bob'))
    expect(taken).toMatchObject({
      state: 'taken',
      acquiredAt: at(10_000).getTime() * 1000,
      leftMs: MINUTE_MS,
    })
    expect((await row()).expires_at).toEqual(at(10_000 + MINUTE_MS))
  })

  it('by whoever renews', async () => {
    await fixture.schema.clock.freeze(START)
    const { fence } = await acquire('ann')
    expect(await whileLocked(at(10_000), 'for update', () => renewOne(fence))).toBe('held')
    expect((await row()).expires_at).toEqual(at(10_000 + MINUTE_MS))
  })

  it('by whoever guards, also if the lease ran out meanwhile', async () => {
    await fixture.schema.clock.freeze(START)
    const { fence } = await acquire('ann')
    const late = whileLocked(at(2 * MINUTE_MS), 'for update', () => inTransaction((tx) => guard(fence, tx)))
    await expect(late).rejects.toThrow('the lock is expired')
  })

  it('by whoever gives it back, and so a wait that is over is no matter', async () => {
    await fixture.schema.clock.freeze(START)
    const { fence } = await acquire('ann')
    expect(await acquire('bob', { wantedMs: 1_000 })).toMatchObject({ state: 'held' })
    const result = await whileLocked(at(10_000), 'for update', () => release(fence))
    expect(result).toEqual({ state: 'released', isWanted: false })
  })
})

describe('a mark of whoever waits', () => {
  it('is made once, lasts for half of its time at the least, and outlives the holder', async () => {
    await fixture.schema.clock.freeze(START)
    const { fence } = await acquire('ann')
    expect(await acquire('bob', { wantedMs: 1_000 })).toMatchObject({ state: 'held', leftMs: MINUTE_MS })
    const xmin = async () =>
      (await fixture.pool.query(`select xmin::text from ${fixture.schema.name}.lock`)).rows[0].xmin
    const first = await xmin()
    await fixture.schema.clock.advance(499)
    await acquire('eve', { wantedMs: 1_000 })
    expect(await xmin()).toBe(first) // nothing was written
    await fixture.schema.clock.advance(2)
    await acquire('eve', { wantedMs: 1_000 })
    expect((await row()).wanted_until).toEqual(at(1_501))
    expect(await release(fence)).toEqual({ state: 'released', isWanted: true })
    await acquire('bob')
    expect((await row()).wanted_until).toEqual(at(1_501))
  })

  it('that cannot be made is not waited for: look again', async () => {
    await acquire('ann')
    await inTransaction(async (tx) => {
      await lockRow(tx, 'for no key update')
      expect(await acquire('bob', { wantedMs: 1_000 })).toMatchObject({ state: 'busy' })
      expect(await acquire('bob')).toMatchObject({ state: 'held' })
    })
    await acquire('eve', { permits: 2 })
    await inTransaction(async (tx) => {
      await lockRow(tx, 'for no key update', 1)
      expect(await acquire('bob', { permits: 2, wantedMs: 1_000 })).toMatchObject({ state: 'busy' })
    })
    expect(await acquire('bob', { permits: 2, wantedMs: 1_000 })).toMatchObject({ state: 'held' })
  })

  it('does not wait for a guard', async () => {
    const { fence } = await acquire('ann')
    await inTransaction(async (tx) => {
      await guard(fence, tx)
      expect(await acquire('bob', { wantedMs: 1_000 })).toMatchObject({ state: 'held' })
      expect((await row()).wanted_until.getTime()).toBeGreaterThan(0)
    })
  })
})

describe('nobody is waited for without a bound', () => {
  it('by whoever acquires', async () => {
    const { fence } = await acquire('ann')
    await release(fence)
    await inTransaction(async (tx) => {
      await lockRow(tx, 'for no key update')
      expect(await acquire('bob')).toMatchObject({ state: 'busy' })
    })
    await inTransaction(async (tx) => {
      await tx.query(`select ${fixture.schema.name}.lock_acquire('y', 1, 'ann', 60000, 0)`)
      expect(await send("lock_acquire('y', 1, 'bob', 60000, 0)", [])).toMatchObject({ state: 'busy' })
    })
  })

  it('but the table itself is waited for: a bound for a row is not one for that', async () => {
    await fixture.schema.clock.freeze(START)
    await acquire('ann', { leaseMs: 1_000 })
    await fixture.schema.clock.advance(2_000)
    let taken: Promise<LockResult> | undefined
    await inTransaction(async (tx) => {
      await tx.query(`lock table ${fixture.schema.name}.lock in share mode`)
      taken = acquire('bob')
      taken.catch(() => {})
      await until(async () => (await waiters()) === 1, 'the takeover to wait')
      // Longer than any wait for a row.
      await tx.query('select pg_sleep(0.05)')
    })
    expect(await taken).toMatchObject({ state: 'taken' })
  })

  it('by whoever passes a permit by that somebody has, and takes the next', async () => {
    const first = await acquire('ann', { permits: 2 })
    await release(first.fence)
    await inTransaction(async (tx) => {
      await lockRow(tx, 'for no key update')
      expect(await acquire('bob', { permits: 2 })).toMatchObject({ state: 'taken', permit: 1 })
    })
  })

  it('by whoever renews, gives back, guards or takes away', async () => {
    const { fence } = await acquire('ann')
    await inTransaction(async (tx) => {
      await lockRow(tx)
      expect(await renewAll(fence)).toEqual(['locked'])
      expect(await renewOne(fence, 20)).toBe('locked')
      await expect(release(fence, 20)).rejects.toMatchObject({ code: '55P03' })
      await expect(send("lock_force_release('x', null, 20)", [])).rejects.toMatchObject({ code: '55P03' })
      await expect(inTransaction((other) => guard(fence, other, 20))).rejects.toMatchObject({ code: '55P03' })
    })
    expect(await renewAll(fence)).toEqual(['held'])
  })
})

describe('what names a fence', () => {
  it('is renewed by that, and nothing else is', async () => {
    await fixture.schema.clock.freeze(START)
    const { fence } = await acquire('ann', { permits: 2 })
    const second = await acquire('bob', { permits: 2 })
    await fixture.schema.clock.advance(1_000)
    expect(await renewAll(fence + 1, second.fence)).toEqual(['lost', 'held'])
    expect((await row()).expires_at).toEqual(at(MINUTE_MS))
    expect((await row(1)).expires_at).toEqual(at(1_000 + MINUTE_MS))
    expect(await renewOne(fence + 1)).toBe('lost')
    expect((await row()).expires_at).toEqual(at(MINUTE_MS))
    expect(await renewAll(fence)).toEqual(['held'])
    expect(await send<unknown>("lock_renew_many('[]')", [])).toBeNull()
  })

  it('is taken away by that, and cannot be renewed, guarded or given back then', async () => {
    const { fence } = await acquire('ann')
    expect(await send("lock_force_release('x', $1, 20)", [fence + 1])).toEqual({ isWanted: false, taken: [] })
    expect(await send("lock_force_release('x', $1, 20)", [fence])).toEqual({
      isWanted: false,
      taken: [{ permit: 0, holder: 'ann', fence }],
    })
    expect(await renewAll(fence)).toEqual(['lost'])
    expect(await renewOne(fence)).toBe('lost')
    expect(await release(fence)).toEqual({ state: 'lost' })
    await expect(inTransaction((tx) => guard(fence, tx))).rejects.toThrow('the lock is lost')
    expect(await send("lock_force_release('x', null, 20)", [])).toMatchObject({ taken: [] })
  })

  it('is the same while it is guarded, and then nobody has it before the transaction has ended', async () => {
    const { fence } = await acquire('ann')
    await inTransaction(async (tx) => {
      await guard(fence, tx)
      expect(await send("lock_force_release('x', null, 20)", [])).toMatchObject({ taken: [{ fence }] })
      expect(await renewAll(fence)).toEqual(['lost'])
      expect(await renewOne(fence)).toBe('lost')
      await expect(inTransaction((other) => guard(fence, other))).rejects.toThrow('the lock is expired')
      expect(await acquire('bob')).toMatchObject({ state: 'guarded' })
    })
    expect(await release(fence)).toEqual({ state: 'lost' })
    expect(await acquire('bob')).toMatchObject({ state: 'taken' })
  })

  it.each(['given back', 'taken away'])(
    '%s while it is guarded, guards no transaction more, whatever it sees',
    async (how) => {
      const { fence } = await acquire('ann')
      await inTransaction(async (tx) => {
        await guard(fence, tx)
        if (how === 'taken away') await send("lock_force_release('x', null, 20)", [])
        else expect(await release(fence, 20)).toMatchObject({ state: 'released' })
        expect((await row()).fence).toBe(fence)
        await expect(inTransaction((other) => guard(fence, other))).rejects.toThrow('the lock is expired')
        const older = inTransaction(async (other) => {
          await other.query('set transaction isolation level repeatable read')
          await guard(fence, other)
        })
        await expect(older).rejects.toMatchObject({ code: '40001' })
        expect(await acquire('bob')).toMatchObject({ state: 'guarded' })
        expect(await renewAll(fence)).toEqual(['lost'])
        expect(await renewOne(fence)).toBe('lost')
      })
      const next = await acquire('bob')
      expect(next).toMatchObject({ state: 'taken', from: null })
      expect(next.fence).toBeGreaterThan(fence)
    },
  )
})

it('is bounded for the row alone: a take over may wait for the end of the table’s file', async () => {
  const { name } = fixture.schema
  await fixture.pool.query(`create table ${name}.heard (bound text);
    create function ${name}.hear() returns trigger language plpgsql as $$
      begin insert into ${name}.heard values (current_setting('lock_timeout')); return new; end $$;
    create trigger hear before update on ${name}.lock for each row execute function ${name}.hear()`)
  try {
    await fixture.schema.clock.freeze(START)
    await acquire('ann', { leaseMs: 1_000 })
    await fixture.schema.clock.freeze(at(2_000))
    expect(await acquire('bob')).toMatchObject({ state: 'taken' })
    expect((await fixture.pool.query(`select bound from ${name}.heard`)).rows).toEqual([{ bound: '0' }])
  } finally {
    await fixture.pool.query(
      `drop trigger hear on ${name}.lock; drop function ${name}.hear(); drop table ${name}.heard`,
    )
  }
})

describe('who asks again', () => {
  it('has the lock that it has, also if it would not wait', async () => {
    const first = await acquire('ann')
    expect(await acquire('ann')).toMatchObject({ state: 'taken', fence: first.fence })
    expect(await acquire('bob')).toMatchObject({ state: 'held' })
  })

  it('learns again from whom it has taken the lock over', async () => {
    await fixture.schema.clock.freeze(START)
    const { fence } = await acquire('ann', { leaseMs: 1_000 })
    await fixture.schema.clock.freeze(at(2_000))
    const from = { holder: 'ann', fence, expiredAt: at(1_000).getTime() * 1000 }
    expect([await acquire('bob'), await acquire('bob')]).toMatchObject([{ from }, { from }])
    await release((await acquire('bob')).fence)
    expect(await acquire('eve')).toMatchObject({ state: 'taken', from: null })
  })

  it('has given it back, and learns again that somebody waits', async () => {
    const { fence } = await acquire('ann')
    await acquire('bob', { wantedMs: MINUTE_MS })
    const released = { state: 'released', isWanted: true }
    expect([await release(fence), await release(fence)]).toEqual([released, released])
  })
})

it('what was taken away from somebody in a guarded transaction has another fence for the next', async () => {
  const { fence } = await acquire('ann')
  await inTransaction(async (tx) => {
    await guard(fence, tx)
    await send("lock_force_release('x', null, 5000)", [])
    expect(await row()).toMatchObject({ fence })
  })
  const next = await acquire('bob')
  expect(next.fence).toBeGreaterThan(fence)
  expect(await release(fence)).toEqual({ state: 'lost' })
})

it.each([
  ['taken', "lock_acquire('x', 1, 'ann', 60000, 0)"],
  ['renewed', "lock_renew_many('[]')"],
  ['renewed alone', "lock_renew_one('x', 0, 1, 60000, 5000)"],
])('a lock is %s for good, also where the session does not wait for the disk', async (_, sql) => {
  await inTransaction(async (tx) => {
    await tx.query('set local synchronous_commit = off')
    await send(sql, [], tx)
    expect((await tx.query('show synchronous_commit')).rows).toEqual([{ synchronous_commit: 'on' }])
    await tx.query('set local synchronous_commit = local')
    await send(sql, [], tx)
    expect((await tx.query('show synchronous_commit')).rows).toEqual([{ synchronous_commit: 'local' }])
  })
})
