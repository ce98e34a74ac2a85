import { describe, expect, it } from 'vitest'
import { openQuotas } from '../../test/claims/open-quotas.js'
import { deferred } from '../../test/deferred.js'
import {
  AcquireRefusedError,
  BusyError,
  InProgressError,
  InvalidInputError,
  NeverFitsError,
  PermanentError,
  QuotaExceededError,
  SingletonConflictError,
} from '../errors.js'
import { claim } from './acquire/acquire-claims.js'

// Each claim has a form that throws and one that returns a refusal: with the same details, and without hiding any other error.

const fixture = openQuotas()
const slot = { scope: 'report', per: 'day', holder: 'pod-1' } as const

/** Starts a call of `use` and leaves it inside its function until `end`. */
function held(use: (fn: () => Promise<number>) => Promise<unknown>) {
  const inside = deferred()
  const gate = deferred()
  const done = use(async () => {
    inside.resolve()
    await gate.promise
    return 1
  })
  return {
    begun: inside.promise,
    async end(): Promise<void> {
      gate.resolve()
      await done
    },
  }
}

describe('trySingleton', () => {
  it('returns the value to the first, and who was first to the others', async () => {
    expect(await fixture.dibs.trySingleton(slot, async () => ({ n: 1 }))).toEqual({
      ok: true,
      value: { n: 1 },
    })
    const second = await fixture.other.trySingleton({ ...slot, holder: 'pod-2' }, async () => ({ n: 2 }))
    const thrown = await fixture.other.singleton(slot, async () => 2).catch((error) => error)
    expect(thrown).toBeInstanceOf(SingletonConflictError)
    const { state, slot: period, id, holder, since, result } = thrown
    expect(second).toEqual({ ok: false, state, slot: period, id, holder, since, result })
    expect(second).toMatchObject({ state: 'active', holder: 'pod-1', result: { n: 1 } })
  })

  it.each(['joined', 'leased'] as const)('does not throw while the first is at it: %s', async (mode) => {
    const first = held((fn) => fixture.dibs.singleton({ ...slot, mode } as never, fn))
    await first.begun
    const second = await fixture.other.trySingleton({ ...slot, mode, waitMs: 50 } as never, async () => 2)
    expect(second).toMatchObject({ ok: false, state: 'pending', retryAfterMs: expect.any(Number) })
    await first.end()
  })

  it('does not throw while a call of the same process is at it', async () => {
    const first = held((fn) => fixture.dibs.singleton(slot, fn))
    await first.begun
    const second = await fixture.dibs.trySingleton({ ...slot, waitMs: 50 }, async () => 2)
    expect(second).toMatchObject({ ok: false, state: 'pending' })
    await first.end()
  })

  it('throws what its function throws, also if that is a refusal of something else', async () => {
    for (const error of [
      new PermanentError('no'),
      new BusyError('a lock', 5, 5),
      new SingletonConflictError({
        scope: 'other',
        slot: { key: 'k', startsAt: new Date(0), endsAt: new Date(1) },
        state: 'active',
      }),
    ])
      await expect(fixture.dibs.trySingleton(slot, () => Promise.reject(error))).rejects.toBe(error)
  })

  it('throws for a mistake of the caller', async () => {
    await expect(fixture.dibs.trySingleton({ scope: 's' } as never, async () => 1)).rejects.toThrow(
      InvalidInputError,
    )
  })

  it('leaves the transaction of the caller usable', async () => {
    await fixture.dibs.singleton(slot, async () => 1)
    await fixture.dibs.transaction(async (tx) => {
      expect(await fixture.dibs.trySingleton({ ...slot, tx }, async () => 2)).toMatchObject({ ok: false })
      expect(await fixture.dibs.trySingleton({ ...slot, scope: 'b', tx }, async () => 2)).toEqual({
        ok: true,
        value: 2,
      })
    })
  })
})

describe('tryAcquire', () => {
  const quota = () => fixture.dibs.quota('points', { limit: 5 })

  it('returns what acquire returns, or the failures that it throws', async () => {
    expect(await fixture.dibs.tryAcquire([quota().claim('ann', 5)], async () => 'done')).toEqual({
      ok: true,
      value: 'done',
    })
    const claims = [claim.lock('free'), quota().claim('ann', 1)] as const
    const refused = await fixture.dibs.tryAcquire(claims, async () => 'again')
    const thrown = await fixture.dibs.acquire(claims, async () => 'again').catch((error) => error)
    expect(thrown).toBeInstanceOf(AcquireRefusedError)
    expect(refused).toMatchObject({ ok: false, isFinal: thrown.isFinal, replayed: false })
    expect(refused.ok ? [] : refused.failures.map(({ index, kind }) => [index, kind])).toEqual([[1, 'quota']])
    expect(refused.ok ? [] : refused.failures[0]?.error).toBeInstanceOf(QuotaExceededError)
    // Nothing was taken: the lock is free.
    await using lock = await fixture.dibs.tryLock('free')
    expect(lock).not.toBeNull()
  })

  it('returns a lock that another holds, with options and a lease', async () => {
    await using _ = await fixture.other.lock('till', { holder: 'pod-2' })
    const refused = await fixture.dibs.tryAcquire([claim.lock('till')], { mode: 'leased' }, async () => 1)
    expect(refused).toMatchObject({ ok: false, failures: [{ index: 0, kind: 'lock' }] })
  })

  it('returns an idempotency key on which another works', async () => {
    const key = claim.once({ scope: 's', key: 'k', waitMs: 0 })
    const first = held((fn) => fixture.dibs.acquire([claim.once({ scope: 's', key: 'k' })], fn))
    await first.begun
    const refused = await fixture.other.tryAcquire([claim.lock('x'), key], async () => 2)
    expect(refused).toMatchObject({
      ok: false,
      failures: [{ index: 1, kind: 'once', error: expect.any(InProgressError) }],
      isFinal: false,
      retryAfterMs: expect.any(Number),
    })
    await first.end()
    expect(await fixture.other.tryAcquire([claim.lock('x'), key], async () => 2)).toEqual({
      ok: true,
      value: 1,
    })
  })

  it('throws what its function throws, also if that is a refusal', async () => {
    const error = new AcquireRefusedError([], true)
    await expect(fixture.dibs.tryAcquire([claim.lock('x')], () => Promise.reject(error))).rejects.toBe(error)
  })
})

describe('tryOnce', () => {
  const at = { scope: 'orders', key: 'k' } as const

  it('returns the value and how it came about', async () => {
    expect(await fixture.dibs.tryOnce(at, async () => 1)).toMatchObject({
      ok: true,
      value: 1,
      replayed: false,
    })
    expect(await fixture.dibs.tryOnce(at, async () => 2)).toMatchObject({
      ok: true,
      value: 1,
      replayed: true,
    })
  })

  it.each([
    ['joined', 0],
    ['joined', 50],
    ['leased', 0],
    ['leased', 50],
  ] as const)('does not throw while another works on the key: %s, waits %s ms', async (mode, waitMs) => {
    const first = held((fn) => fixture.dibs.once({ ...at, mode } as never, fn))
    await first.begun
    const second = await fixture.other.tryOnce({ ...at, mode, waitMs } as never, async () => 2)
    expect(second).toMatchObject({ ok: false, retryAfterMs: expect.any(Number) })
    await first.end()
  })

  it('throws what its function throws', async () => {
    const error = new InProgressError('another key', 5)
    await expect(fixture.dibs.tryOnce(at, () => Promise.reject(error))).rejects.toBe(error)
  })
})

describe('tryReserve', () => {
  it('returns the hold, or how much is left', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 3 })
    const first = await stock.tryReserve('sku', 2)
    if (!first.ok) throw new Error('refused')
    const refused = await stock.tryReserve('sku', 2)
    expect(refused).toEqual({
      ok: false,
      limit: 3,
      used: 0,
      held: 2,
      remaining: 1,
      requested: 2,
      retryAfterMs: 60_000,
    })
    await expect(stock.reserve('sku', 2)).rejects.toMatchObject({
      code: 'DIBS_QUOTA_EXCEEDED',
      remaining: 1,
      held: 2,
    })
    await first.hold.settle(1)
    expect(await stock.tryReserve('sku', 2)).toMatchObject({ ok: true, hold: { amount: 2, replayed: false } })
    const never = { ok: false, limit: 3, used: 1, held: 2, remaining: 0, requested: 4 }
    expect(await stock.tryReserve('sku', 4)).toEqual(never)
    expect(await stock.tryTake('sku', 4)).toEqual(never)
    await expect(stock.reserve('sku', 4)).rejects.toThrow(NeverFitsError)
    const daily = fixture.dibs.quota('daily', { limit: 3, per: 'day' })
    expect(await daily.tryTake('sku', 4)).toMatchObject({ ok: false, resetsAt: expect.any(Date) })
    expect(await daily.tryTake('sku', 4)).not.toHaveProperty('retryAfterMs')
  })
})
