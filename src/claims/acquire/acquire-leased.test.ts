import { describe, expect, it, vi } from 'vitest'
import { acquirersOf, HOUR_MS } from '../../../test/claims/acquirers.js'
import { callersOf } from '../../../test/claims/callers.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { until, url } from '../../../test/database.js'
import type { Dibs } from '../../dibs.js'
import {
  AcquireRefusedError,
  AmbiguousOutcomeError,
  BusyError,
  FenceLostError,
  InProgressError,
  InvalidOutcomeError,
  LockHeldError,
  OutcomeNotStoredError,
  PermanentError,
  QuotaExceededError,
  SingletonConflictError,
  TransientError,
} from '../../errors.js'
import { onEvent } from '../../postgres/events.js'
import { countTraffic } from '../../testing/count-traffic.js'
import { PgProxy } from '../../testing/proxy/pg-proxy.js'
import {
  claim,
  type LockGrant,
  type OnceClaimSpec,
  type OnceGrant,
  type QuotaGrant,
  type Slot,
} from './acquire-claims.js'
import type { AcquireLease } from './leased-acquire-call.js'

const fixture = openClaims()
const { query, everything, lockedRows, slowly, untilRenewed } = acquirersOf(fixture)
const { inTransaction } = callersOf(fixture, { scope: 's', key: 'k' })

const key = { scope: 'payments', key: 'k' }
/** One period for the whole test, wherever its clock is set. */
const slot = { scope: ['payout', 'ann'], perMs: 800_000 * HOUR_MS } as const
const points = () => fixture.dibs.quota('points', { limit: 10 })
const all = (spec: Partial<OnceClaimSpec> = {}, by = 'ann') =>
  [
    claim.once({ ...key, ...spec }),
    claim.singleton({ ...slot, holder: by }),
    points().claim('ann', 4),
    claim.lock('till-7'),
  ] as const
const leased = { mode: 'leased', leaseMs: HOUR_MS } as const

type HeldGrants = [AcquireLease, [OnceGrant, Slot, QuotaGrant, LockGrant]]
const hold = (list: readonly unknown[] = all(), options: object = leased, dibs: Dibs = fixture.dibs) =>
  slowly<HeldGrants>((work) => dibs.acquire(list as never, options as never, work as never))

/** A dead holder, whose leases have expired. */
async function abandon(list: readonly unknown[] = all()) {
  const holder = hold(list)
  const [lease, grants] = await holder.began
  await fixture.schema.clock.advance(HOUR_MS)
  return { holder, lease, grants }
}

const refusalOf = async (call: Promise<unknown>): Promise<AcquireRefusedError> => {
  const error = await call.catch((reason) => reason)
  expect(error).toBeInstanceOf(AcquireRefusedError)
  return error as AcquireRefusedError
}
const typesOf = ({ failures }: AcquireRefusedError) => failures.map(({ error }) => error.constructor)
const states = async () => (await fixture.dibs.claims.list()).items.map(({ status, held }) => held ?? status)
const isLockHeld = async () =>
  (await query('select from {schema}.lock where expires_at > {schema}.clock()')).length > 0

describe('acquire, leased', () => {
  it('commits all claims before the function runs, and their end after it, in two round trips', async () => {
    await fixture.dibs.acquire([claim.once({ ...key, key: 'warm' })], leased, async () => 1)
    await fixture.dibs.claims.forget({ ...key, key: 'warm' })
    const first = await countTraffic(fixture.pool, () => fixture.dibs.acquire(all(), leased, async () => 1))
    expect(first).toMatchObject({ roundTrips: 2, commits: 2, value: 1 })
    expect(await states()).toEqual(['active', 'active'])
    expect(await points().peek('ann')).toMatchObject({ used: 4, held: 0 })
    expect(await isLockHeld()).toBe(false)
    const replay = await countTraffic(fixture.pool, () => fixture.dibs.acquire(all(), leased, async () => 2))
    expect(replay).toMatchObject({ roundTrips: 1, value: 1 })
  })

  it('gives the function its lease and its grants, and holds all meanwhile', async () => {
    const holder = hold(all({}, 'bob'))
    const [lease, [once, period, use, lock]] = await holder.began
    expect(lease).toMatchObject({ idempotencyKey: once.id, attempt: 1 })
    expect(lease.signal.aborted).toBe(false)
    expect(once).toMatchObject({ attempt: 1, fence: expect.any(Number) })
    expect(period).toMatchObject({ key: expect.stringMatching(/^slot:/), startsAt: expect.any(Date) })
    expect(use).toMatchObject({ limit: 10, used: 0, held: 4, remaining: 6, id: expect.any(String) })
    expect(lock).toEqual({ name: 'till-7', fence: expect.any(Number) })
    expect(await states()).toEqual(['held', 'held'])
    expect(await points().peek('ann')).toMatchObject({ used: 0, held: 4 })
    // Meanwhile, a call with the same key finds it in progress, and each claim refuses a call with another key.
    await expect(fixture.dibs.acquire(all(), leased, async () => 2)).rejects.toThrow(InProgressError)
    const [, otherSlot, , otherLock] = all()
    const others = [...[claim.once({ ...key, key: 'other' }), otherSlot, otherLock], points().claim('ann', 7)]
    for (const options of [leased, {}] as const) {
      const refusal = await refusalOf(fixture.dibs.acquire(others, options as object, async () => 2))
      expect(typesOf(refusal)).toEqual([SingletonConflictError, LockHeldError, QuotaExceededError])
      expect(refusal.failures[0]?.error).toMatchObject({ state: 'pending', holder: 'bob' })
      for (const { error } of refusal.failures) {
        expect(error.retryAfterMs).toBeGreaterThan(HOUR_MS - 60_000)
        expect(error.retryAfterMs).toBeLessThanOrEqual(HOUR_MS)
      }
      expect(refusal).toMatchObject({ isFinal: false, retryAfterMs: expect.any(Number) })
    }
    holder.finish(() => 'done')
    expect(await holder.ended).toBe('done')
    expect((await points().verify()).items).toEqual([])
  })

  it('refuses without a trace, and leaves no lock', async () => {
    await points().take('ann', 8)
    const before = await everything()
    const refusal = await refusalOf(fixture.dibs.acquire(all(), leased, async () => 1))
    expect(typesOf(refusal)).toEqual([QuotaExceededError])
    expect(await everything()).toEqual(before)
    expect(await lockedRows()).toEqual([])
  })

  it('stores a refusal under its key if it is final', async () => {
    await fixture.dibs.singleton(slot, async () => 'was first')
    expect(await refusalOf(fixture.dibs.acquire(all(), leased, async () => 1))).toMatchObject({
      replayed: false,
    })
    const again = await refusalOf(fixture.dibs.acquire(all(), leased, async () => 1))
    expect(again).toMatchObject({ replayed: true, isFinal: true })
    expect(again.failures).toMatchObject([{ index: 1, kind: 'singleton', error: { result: 'was first' } }])
  })

  it('gives all of it back after an error, and the next attempt has the same id', async () => {
    const ids: unknown[] = []
    for (const attempt of [1, 2, 3]) {
      const failed = fixture.dibs.acquire(all(), leased, async (lease, [once, , use]) => {
        ids.push(lease.idempotencyKey)
        expect([lease.attempt, once.attempt]).toEqual([attempt, attempt])
        expect(use).toMatchObject({ used: 0, held: 4, remaining: 6 })
        throw new TransientError('the bank is down')
      })
      await expect(failed).rejects.toThrow('the bank is down')
      expect(await states()).toEqual(['released', 'released'])
      expect(await points().peek('ann')).toMatchObject({ used: 0, held: 0 })
      expect(await isLockHeld()).toBe(false)
      expect((await points().verify()).items).toEqual([])
    }
    expect(new Set(ids).size).toBe(1)
    expect(await fixture.dibs.acquire(all(), leased, async () => 'done')).toBe('done')
    expect(await points().peek('ann')).toMatchObject({ used: 4, held: 0 })
  })

  it('refuses an attempt whose reservation was given back and does not fit any more, with its reason', async () => {
    await fixture.dibs.acquire(all(), leased, () => Promise.reject(new Error('no'))).catch(() => {})
    await points().take('ann', 8)
    const refusal = await refusalOf(fixture.dibs.acquire(all(), leased, async () => 1))
    expect(refusal.failures).toMatchObject([{ kind: 'quota', error: { used: 8, held: 0, requested: 4 } }])
    expect(await states()).toEqual(['released', 'released'])
    expect((await points().verify()).items).toEqual([])
  })

  it('stores a final error under its key, and gives back the rest', async () => {
    const declined = new PermanentError('declined')
    await expect(fixture.dibs.acquire(all(), leased, () => Promise.reject(declined))).rejects.toBe(declined)
    await expect(fixture.dibs.acquire(all(), leased, async () => 1)).rejects.toThrow('declined')
    expect(await fixture.dibs.claims.get(key)).toMatchObject({ status: 'failed' })
    expect(await points().peek('ann')).toMatchObject({ used: 0, held: 0 })
    expect(await isLockHeld()).toBe(false)
    expect(await fixture.dibs.acquire(all({ key: 'other' }), leased, async () => 1)).toBe(1)
  })

  it('keeps a slot that is to be kept', async () => {
    const list = [claim.singleton({ ...slot, ifFailed: 'keep' }), points().claim('ann', 4)]
    await expect(fixture.dibs.acquire(list, leased, () => Promise.reject(new Error('boom')))).rejects.toThrow(
      'boom',
    )
    expect(await states()).toEqual(['failed'])
    expect(await points().peek('ann')).toMatchObject({ used: 0, held: 0 })
  })

  it('does not do it again if what came of it is no JSON, and charges for it', async () => {
    await expect(fixture.dibs.acquire(all(), leased, async () => 1n as never)).rejects.toThrow(
      InvalidOutcomeError,
    )
    expect(await states()).toEqual(['failed', 'failed'])
    expect(await points().peek('ann')).toMatchObject({ used: 4, held: 0 })
    expect(await isLockHeld()).toBe(false)
    await expect(fixture.dibs.acquire(all(), leased, async () => 2)).rejects.toThrow('`outcome` is a bigint')
    // A result that is not stored may be any value.
    expect(await fixture.dibs.acquire([claim.lock('x')], leased, async () => 1n)).toBe(1n)
  })

  it('with hold, an error that does not say so may have had its effect', async () => {
    const run = (error: Error) =>
      fixture.dibs
        .acquire(all({ onAmbiguous: 'hold' }), leased, () => Promise.reject(error))
        .catch((reason) => reason)
    expect(await run(new TransientError('refused'))).toBeInstanceOf(TransientError)
    expect(await run(new Error('socket hang up'))).toMatchObject({ message: 'socket hang up' })
    expect(await run(new Error('again'))).toBeInstanceOf(AmbiguousOutcomeError)
  })

  it('charges an id once, in whatever attempt', async () => {
    const claim = () => [points().claim('ann', 4, { id: 'event-1' })]
    await fixture.dibs.acquire(claim(), leased, async () => 1)
    await fixture.dibs.acquire(claim(), leased, async () => 2)
    await fixture.dibs.acquire(claim(), leased, () => Promise.reject(new Error('no'))).catch(() => {})
    expect(await points().peek('ann')).toMatchObject({ used: 4, held: 0 })
    await points().refund('event-1', { amount: 1 })
    const refused = await fixture.dibs.acquire(claim(), leased, async () => 3).catch((error) => error)
    expect(refused).toMatchObject({ isFinal: true, retryable: false, status: 409 })
    expect(refused.failures[0].error).toMatchObject({ name: 'HoldEndedError', state: 'refunded' })
    expect(await points().peek('ann')).toMatchObject({ used: 3, held: 0 })
    expect((await points().verify()).items).toEqual([])
  })

  it('has a name of its own without a key or a slot', async () => {
    const seen: string[] = []
    for (let n = 0; n < 2; n++)
      await fixture.dibs.acquire([claim.lock('x')], leased, async (lease) => seen.push(lease.idempotencyKey))
    expect(new Set(seen).size).toBe(2)
  })
})

describe('after a crash', () => {
  it('another caller with the same key takes all of it over, and is charged once', async () => {
    const dead = await abandon()
    const [anew, slotAnew, useAnew, lockAnew] = all({}, 'bob')
    const holder = hold([useAnew, lockAnew, anew, slotAnew])
    const [lease, grants] = await holder.began
    const [use, lock, once, period] = grants as unknown as [QuotaGrant, LockGrant, OnceGrant, Slot]
    const [oldOnce, oldPeriod, oldUse, oldLock] = dead.grants
    expect(lease).toMatchObject({ attempt: 2, idempotencyKey: dead.lease.idempotencyKey })
    expect([once.id, period.id, use.id]).toEqual([oldOnce.id, oldPeriod.id, oldUse.id])
    expect([once.fence > oldOnce.fence, period.fence > oldPeriod.fence, lock.fence > oldLock.fence]).toEqual([
      true,
      true,
      true,
    ])
    expect(use).toMatchObject({ used: 0, held: 4, remaining: 6 })
    expect(await points().peek('ann')).toMatchObject({ used: 0, held: 4 })
    expect((await points().verify()).items).toEqual([])
    holder.finish(() => 'second')
    expect(await holder.ended).toBe('second')
    expect(await points().peek('ann')).toMatchObject({ used: 4, held: 0 })
    expect(await states()).toEqual(['active', 'active'])
  })

  it('goes on with a reservation that has not run out', async () => {
    // The test releases the key before the reservation has expired.
    const dead = await abandon([claim.once(key), points().claim('ann', 8)])
    await fixture.schema.clock.advance(-HOUR_MS / 2)
    await query("update {schema}.claim set lease_until = '-infinity'")
    const holder = hold([claim.once(key), points().claim('ann', 8)])
    const [, grants] = await holder.began
    expect(grants[1]).toMatchObject({ held: 8, id: (dead.grants as unknown as QuotaGrant[])[1]?.id })
    await fixture.schema.clock.advance(HOUR_MS - 1_000)
    expect(await points().peek('ann')).toMatchObject({ held: 8 })
  })

  it.each([
    ['its outcome', () => 'late', FenceLostError],
    ['an error', () => Promise.reject(new TransientError('late')), TransientError],
    ['a final error', () => Promise.reject(new PermanentError('late')), PermanentError],
  ])('a holder that wakes up late writes nothing: %s', async (_, how, errorClass) => {
    const late = await abandon()
    const other = hold()
    await other.began
    const before = await everything()
    late.holder.finish(how)
    await expect(late.holder.ended).rejects.toThrow(errorClass)
    expect(await everything()).toEqual(before)
    other.finish(() => 'other')
    expect(await other.ended).toBe('other')
    expect(await points().peek('ann')).toMatchObject({ used: 4, held: 0 })
    expect((await points().verify()).items).toEqual([])
  })

  it('one of the claims that is lost is enough', async () => {
    const late = await abandon()
    // Another caller has the lock by now, and nothing else.
    const thief = hold([claim.lock('till-7')])
    await thief.began
    const before = await everything()
    late.holder.finish(() => 'late')
    await expect(late.holder.ended).rejects.toThrow(FenceLostError)
    expect(await everything()).toEqual(before)
  })

  it('what nobody has taken over is stored, however late, and charged though its reservation has run out', async () => {
    const late = await abandon()
    await points().take('ann', 9) // takes the amount of the expired reservation
    await fixture.schema.clock.advance(10 * HOUR_MS)
    late.holder.finish(() => 'late')
    expect(await late.holder.ended).toBe('late')
    expect(await points().peek('ann')).toMatchObject({ used: 13, held: 0 })
    expect((await points().verify()).items).toEqual([])
    expect(await states()).toEqual(['active', 'active'])
  })

  it('the key is given up after as many attempts as were allowed', async () => {
    const list = () => all({ maxAttempts: 2 })
    await abandon(list())
    await abandon(list())
    await expect(fixture.dibs.acquire(list(), leased, async () => 3)).rejects.toThrow(
      'Given up after 2 attempts',
    )
    await expect(fixture.dibs.acquire(all(), leased, async () => 3)).rejects.toThrow(
      'Given up after 2 attempts',
    )
    expect((await fixture.dibs.claims.list({ gaveUp: true })).items.length).toBe(1)
  })

  it('a slot is given up, which is final for the key, and stays so', async () => {
    const list = (name: string) => [
      claim.once({ ...key, key: name }),
      claim.singleton({ ...slot, maxAttempts: 1 }),
      claim.lock('till-7'),
    ]
    await abandon(list('first'))
    const refusal = await refusalOf(fixture.dibs.acquire(list('second'), leased, async () => 1))
    expect(refusal).toMatchObject({
      isFinal: true,
      failures: [{ kind: 'singleton', error: { state: 'failed' } }],
    })
    const { items: given } = await fixture.dibs.claims.list({ gaveUp: true })
    expect(given).toMatchObject([{ singleton: 'payout:ann', lost: 1 }])
  })

  it('with hold nobody runs, joined or leased, until it is decided', async () => {
    await abandon()
    for (const options of [leased, {}] as const) {
      const call = fixture.dibs.acquire(all({ onAmbiguous: 'hold' }), options as object, async () => 2)
      await expect(call).rejects.toThrow(AmbiguousOutcomeError)
    }
    expect(await fixture.dibs.claims.resolve(key, { outcome: 'was done' })).toEqual({ ok: true })
    expect(await fixture.dibs.acquire(all(), leased, async () => 2)).toBe('was done')
  })

  it('a lock alone is another’s when its lease has run out', async () => {
    const late = await abandon([claim.lock('till-7')])
    await inTransaction(async (tx) => {
      await fixture.dibs.acquire([claim.lock('till-7')], { tx }, async () => 1)
      expect(
        await refusalOf(fixture.dibs.acquire([claim.lock('till-7')], leased, async () => 2)),
      ).toMatchObject({
        retryAfterMs: 100,
      })
    })
    late.holder.finish(() => 'late')
    await expect(late.holder.ended).rejects.toThrow(FenceLostError)
  })
})

describe('the lease', () => {
  it('of all is renewed while the function runs', async () => {
    const holder = hold(all(), { mode: 'leased', leaseMs: 3_000 })
    const [lease] = await holder.began
    const ends = async () =>
      (
        await query(`select (extract(epoch from lease_until) * 1000)::float8 as ends from {schema}.claim
          union all select (extract(epoch from expires_at) * 1000)::float8 from {schema}.lock
          union all select (extract(epoch from expires_at) * 1000)::float8 from {schema}.quota_entry`)
      ).map((row) => Number(row.ends))
    const begun = Math.max(...(await ends()))
    await until(async () => Math.min(...(await ends())) > begun, 'all of them to be renewed')
    expect((await ends()).length).toBe(4)
    expect(lease.signal.aborted).toBe(false)
    await refusalOf(fixture.other.acquire(all({ key: 'other' }), leased, async () => 2))
    holder.finish(() => 1)
    expect(await holder.ended).toBe(1)
    expect((await points().verify()).items).toEqual([])
  })

  it('goes on though a transaction has the row of a quota all the while', async () => {
    await points().take('ann', 1)
    const holder = hold(all(), { mode: 'leased', leaseMs: 3_000 })
    const [lease] = await holder.began
    await inTransaction(async (tx) => {
      await points().take('ann', 1, { tx })
      await untilRenewed(lease)
      expect(lease.signal.aborted).toBe(false)
      expect(await states()).toEqual(['held', 'held'])
      expect(await isLockHeld()).toBe(true)
    })
    holder.finish(() => 1)
    expect(await holder.ended).toBe(1)
    expect(await points().peek('ann')).toMatchObject({ used: 6, held: 0 })
    expect((await points().verify()).items).toEqual([])
  })

  it.each([
    ['the slot', [claim.singleton(slot)]],
    ['the lock', [claim.lock('till-7')]],
    ['the key', [claim.once(key)]],
  ])('fires the signal at the next renewal if %s is taken over', async (_, list) => {
    const holder = hold(all(), { mode: 'leased', leaseMs: 4_500 })
    const [lease] = await holder.began
    await fixture.schema.clock.advance(HOUR_MS)
    await fixture.dibs.acquire(list, leased, async () => 2)
    await until(() => lease.signal.aborted, 'the signal')
    expect(lease.signal.reason).toBeInstanceOf(FenceLostError)
    const before = await everything()
    holder.finish(() => 'late')
    await expect(holder.ended).rejects.toThrow(FenceLostError)
    expect(await everything()).toEqual(before)
  })

  it('fires the signal when the server cannot be reached for as long as it lasts', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const startedAt = performance.now()
        const ended = dibs.acquire(
          [claim.lock('till-7'), points().claim('ann', 1)],
          { mode: 'leased', leaseMs: 1_500 },
          async (lease) => {
            proxy.inject({ kind: 'black-hole' })
            await new Promise((resolve) => lease.signal.addEventListener('abort', resolve))
            proxy.inject({ kind: 'heal' })
            proxy.inject({ kind: 'reset' })
            return performance.now() - startedAt
          },
        )
        expect(await ended).toBeGreaterThan(1_000)
      },
      { connectionString: proxy.url },
    )
  })
})

describe('answers that are lost', () => {
  const cutOff = async (
    statement: string,
    times: number | 'always',
    run: (dibs: Dibs) => Promise<unknown>,
  ) => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const cut = proxy.inject({ kind: 'cut', when: 'after', statement, times })
        await run(dibs)
        expect(cut.strikes).toBeGreaterThan(0)
      },
      { connectionString: proxy.url },
    )
  }

  it('of the claims: the same call knows all of them again', async () => {
    let runs = 0
    await cutOff('acquire(', 1, async (dibs) => {
      const list = all({ onAmbiguous: 'hold' })
      const run = async (lease: AcquireLease, [, , use]: [OnceGrant, Slot, QuotaGrant, LockGrant]) => [
        ++runs,
        lease.attempt,
        use.replayed,
      ]
      expect(await dibs.acquire(list, leased, run as never)).toEqual([1, 1, false])
    })
    expect(await states()).toEqual(['active', 'active'])
    expect(await points().peek('ann')).toMatchObject({ used: 4, held: 0 })
    expect((await points().verify()).items).toEqual([])
  })

  it.each([
    ['a key', () => claim.once({ ...key, onAmbiguous: 'hold' })],
    ['a slot', () => claim.singleton(slot)],
    ['a lock', () => claim.lock('till-7')],
    ['a quota', () => points().claim('ann', 4)],
  ])('of %s and a rate limit: one attempt counts once', async (name, claim) => {
    const rule = { algorithm: 'fixed-window', limit: 1, perMs: 24 * HOUR_MS } as const
    await cutOff('acquire(', 1, async (dibs) => {
      const list = [claim(), dibs.rateLimit('calls', rule).claim(name)] as const
      const seen = await dibs.acquire(list as never, leased, async (_lease, grants) => grants[1])
      expect(seen).toMatchObject({ remaining: 0 })
    })
    expect(await fixture.dibs.rateLimit('calls', rule).peek(name)).toMatchObject({ remaining: 0 })
  })

  it.each([
    ['a key', () => [claim.once(key)]],
    ['a slot', () => [claim.singleton(slot)]],
    ['a lock', () => [claim.lock('till-7')]],
  ])('of %s: its lease is as old as the claim, and not as the call that found it again', async (_, list) => {
    const leaseMs = 30_000
    await cutOff('acquire(', 1, async (dibs) => {
      type Connect = (callback: (...answer: unknown[]) => void) => void
      const connect = dibs.pool.connect.bind(dibs.pool) as Connect
      const stop = onEvent('dibs:commit.unknown', () => {
        // Most of the lease passes before the call can send its statement again.
        const late: Connect = (callback) =>
          void fixture.schema.clock.advance(leaseMs - 5_000).then(() => connect(callback))
        vi.spyOn(dibs.pool, 'connect').mockImplementationOnce(late as never)
      })
      const left = async () => {
        const [row] =
          await query(`select extract(epoch from ends - {schema}.clock())::float8 * 1000 as left from (
          select lease_until as ends from {schema}.claim union all select expires_at from {schema}.lock) e`)
        return Number(row?.left)
      }
      await dibs.acquire(list(), { mode: 'leased', leaseMs }, async () => {
        await until(
          async () => (await left()) > leaseMs / 2,
          'the renewal of a lease that is about to run out',
          5_000,
        )
      })
      stop()
    })
  })

  it('of the end: it has ended, once, and the caller has its answer', async () => {
    await cutOff('acquire_end', 1, async (dibs) => {
      expect(await dibs.acquire(all(), leased, async () => 1)).toBe(1)
      expect(await dibs.acquire([claim.lock('x'), points().claim('bob', 1)], leased, async () => 2)).toBe(2)
    })
    expect(await states()).toEqual(['active', 'active'])
    expect([await points().peek('ann'), await points().peek('bob')]).toMatchObject([{ used: 4 }, { used: 1 }])
  })

  it('of the end of a lock alone: it has ended', async () => {
    await cutOff('acquire_end', 1, async (dibs) => {
      expect(await dibs.acquire([claim.lock('x'), points().claim('bob', 1)], leased, async () => 2)).toBe(2)
    })
    expect(await points().peek('bob')).toMatchObject({ used: 1, held: 0 })
    expect((await points().verify()).items).toEqual([])
  })

  it('of a release: it is released, once', async () => {
    await cutOff('acquire_end', 1, async (dibs) => {
      const failed = dibs.acquire(all(), leased, () => Promise.reject(new TransientError('not now')))
      await expect(failed).rejects.toThrow('not now')
    })
    expect(await states()).toEqual(['released', 'released'])
    expect(await points().peek('ann')).toMatchObject({ used: 0, held: 0 })
    expect((await points().verify()).items).toEqual([])
  })

  it('when the end cannot be stored nothing is given back', async () => {
    await using proxy = await PgProxy.start({ url })
    const heard: unknown[] = []
    const stops = [
      onEvent('dibs:once.not-stored', ({ template }) => void heard.push(template)),
      onEvent('dibs:acquire.not-stored', ({ kinds }) => void heard.push(kinds)),
    ]
    await fixture.beside(
      async (dibs) => {
        const done = dibs.acquire(all(), leased, async () => {
          proxy.inject({ kind: 'cut', when: 'before', statement: 'acquire_end', times: 'always' })
          return 1
        })
        const error = await done.catch((reason) => reason)
        expect(error).toBeInstanceOf(OutcomeNotStoredError)
        expect(error).toMatchObject({ retryable: true, id: (await fixture.dibs.claims.get(key))?.id })
        // No work was done that a second call could repeat, so no event is emitted.
        const failed = dibs.acquire([claim.lock('x')], leased, () => Promise.reject(new Error('not now')))
        await expect(failed).rejects.toThrow('not now')
      },
      { connectionString: proxy.url },
    )
    for (const stop of stops) stop()
    expect(heard).toEqual([key.scope, ['once', 'singleton', 'quota', 'lock']])
    await expect(fixture.dibs.acquire(all(), leased, async () => 2)).rejects.toThrow(InProgressError)
    expect(await points().peek('ann')).toMatchObject({ used: 0, held: 4 })
    await expect(
      fixture.dibs.acquire([claim.once({ ...key, waitMs: 40 })], leased, async () => 2),
    ).rejects.toThrow(BusyError)
  })
})
