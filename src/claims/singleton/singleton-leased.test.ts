import { describe, expect, it } from 'vitest'
import { acquirersOf, HOUR_MS } from '../../../test/claims/acquirers.js'
import { callersOf } from '../../../test/claims/callers.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { until } from '../../../test/database.js'
import { deferred } from '../../../test/deferred.js'
import {
  AmbiguousOutcomeError,
  BusinessRuleError,
  FenceLostError,
  InProgressError,
  InvalidOutcomeError,
  PermanentError,
  SingletonConflictError,
  TransientError,
} from '../../errors.js'
import { countTraffic } from '../../testing/count-traffic.js'
import type { SingletonFields } from '../acquire/acquire-claims.js'

const fixture = openClaims()
const { holdSlot } = acquirersOf(fixture)
const { inTransaction } = callersOf(fixture, { scope: 's', key: 'k' })
/** One period for the whole test, however its clock is moved. */
const at = { scope: ['payout', 'ann'], perMs: 800_000 * HOUR_MS } as const
const leased = { ...at, mode: 'leased', leaseMs: HOUR_MS } as const

const conflictOf = async (call: Promise<unknown>): Promise<SingletonConflictError> => {
  const error = await call.catch((reason) => reason)
  expect(error).toBeInstanceOf(SingletonConflictError)
  return error as SingletonConflictError
}
const slot = async () => (await fixture.dibs.claims.list()).items[0]

/** A holder that is never heard of again: its lease has run out. */
async function abandon(spec: Partial<SingletonFields> = {}) {
  const holder = holdSlot({ ...at, ...spec })
  const [lease, given] = await holder.began
  await fixture.schema.clock.advance(HOUR_MS)
  return { holder, lease, slot: given }
}

describe('singleton, leased', () => {
  it('commits its slot before the function runs, then stores what came of it, in two round trips', async () => {
    await fixture.dibs.singleton({ ...leased, scope: 'warm' }, async () => 1)
    const run = () =>
      fixture.dibs.singleton({ ...leased, holder: 'ann' }, async (lease, given) => {
        expect(lease).toMatchObject({ attempt: 1, idempotencyKey: given.id })
        expect(lease.signal.aborted).toBe(false)
        return given.id
      })
    const traffic = await countTraffic(fixture.pool, run)
    expect(traffic).toMatchObject({ roundTrips: 2, commits: 2 })
    expect(await slot()).toMatchObject({ status: 'active', holder: 'ann', outcome: traffic.value })
    expect(await conflictOf(run())).toMatchObject({ state: 'active', holder: 'ann', result: traffic.value })
  })

  it('while it runs is pending, under a lease', async () => {
    const holder = holdSlot({ ...at, holder: 'ann' })
    const [lease, given] = await holder.began
    const pending = await slot()
    expect(pending).toMatchObject({ status: 'pending', held: 'held', holder: 'ann' })
    expect(pending?.expiresAt?.getTime()).toBe(given.endsAt.getTime() + 7 * 24 * HOUR_MS)
    for (const call of [
      () => fixture.dibs.singleton(leased, async () => 2),
      () => fixture.dibs.singleton(at, async () => 2), // joined: one under a lease is not waited for
      () => inTransaction((tx) => fixture.dibs.singleton({ ...at, tx }, async () => 2)),
    ]) {
      const conflict = await conflictOf(call())
      expect(conflict).toMatchObject({ state: 'pending', holder: 'ann', id: lease.idempotencyKey })
      expect(conflict).not.toHaveProperty('result')
      expect(conflict.message).toContain('"ann" is at it')
      expect(conflict.retryAfterMs).toBeGreaterThan(HOUR_MS - 60_000)
      expect(conflict.retryAfterMs).toBeLessThanOrEqual(HOUR_MS)
    }
    const voiding = fixture.dibs.voidSlot({ scope: at.scope, slot: given })
    await expect(voiding).rejects.toThrow(InProgressError)
    const { retryAfterMs, message } = await voiding.catch((error) => error)
    expect(retryAfterMs).toBeGreaterThan(HOUR_MS - 60_000)
    expect(message).toMatch(
      /^Another caller works on slot .*, so there is nothing to undo yet\. Call again in \d+ ms\.$/,
    )
    holder.finish(() => 'done')
    expect(await holder.ended).toBe('done')
    expect(await fixture.dibs.voidSlot({ scope: at.scope, slot: given })).toMatchObject({ ok: true })
  })

  it('is taken over when its holder has died, under the same id and for who does it now', async () => {
    const dead = await abandon({ holder: 'ann' })
    const before = await fixture.dibs.now()
    const holder = holdSlot({ ...at, holder: 'bob' })
    const [lease, given] = await holder.began
    expect(lease).toMatchObject({ attempt: 2, idempotencyKey: dead.lease.idempotencyKey })
    expect(given.fence).toBeGreaterThan(dead.slot.fence)
    const conflict = await conflictOf(fixture.dibs.singleton(leased, async () => 3))
    expect(conflict).toMatchObject({ state: 'pending', holder: 'bob' })
    expect(Number(conflict.since)).toBeGreaterThanOrEqual(before.getTime())
  })

  it('is not undone while nobody knows whether it was done, and says how to decide', async () => {
    const dead = await abandon({ holder: 'ann' })
    const undo = () => fixture.dibs.voidSlot({ scope: at.scope, slot: dead.slot }, async () => 'undone')
    const error = await undo().catch((reason) => reason)
    expect(error).toBeInstanceOf(AmbiguousOutcomeError)
    expect(error).toMatchObject({ id: dead.slot.id, attempt: 1, retryable: false })
    const address = { singleton: 'payout:ann', key: dead.slot.key }
    expect(error.message).toBe(
      `The caller that worked on ${error.subject} has no recorded outcome (crash or expired lease), so nobody knows whether there is anything to undo. Find out, then say so: dibs.claims.resolve(${JSON.stringify(address)}, { outcome }) if it was done, and void it then; dibs.claims.resolve(${JSON.stringify(address)}, 'retry') if it was not.`,
    )
    await fixture.dibs.claims.resolve(address, { outcome: 1 })
    expect(await undo()).toEqual({ ok: true, value: 'undone' })
    dead.holder.finish(() => 'late')
    await expect(dead.holder.ended).rejects.toThrow(FenceLostError)
  })

  it('lets a holder that wakes up late store nothing', async () => {
    const late = await abandon({ holder: 'ann' })
    const other = holdSlot({ ...at, holder: 'bob' })
    await other.began
    late.holder.finish(() => 'late')
    await expect(late.holder.ended).rejects.toThrow(FenceLostError)
    expect(await slot()).toMatchObject({ status: 'pending', held: 'held', attempt: 2 })
    other.finish(() => 'other')
    expect(await other.ended).toBe('other')
    expect(await slot()).toMatchObject({ status: 'active', outcome: 'other', holder: 'bob' })
  })

  it.each([new TransientError('late'), new PermanentError('late')])(
    'lets a holder that wakes up late end nothing: %s',
    async (error) => {
      const late = await abandon({ ifFailed: error instanceof PermanentError ? 'keep' : 'free' })
      const other = holdSlot(at)
      await other.began
      late.holder.finish(() => Promise.reject(error))
      await expect(late.holder.ended).rejects.toBe(error)
      expect(await slot()).toMatchObject({ status: 'pending', held: 'held', attempt: 2 })
    },
  )

  it('stores what nobody has taken over, however late', async () => {
    const late = await abandon()
    await fixture.schema.clock.advance(10 * HOUR_MS)
    late.holder.finish(() => 'late')
    expect(await late.holder.ended).toBe('late')
  })

  it('is given up after as many attempts as were allowed, for good and to be seen', async () => {
    const last = await abandon({ maxAttempts: 2 }).then(() => abandon({ maxAttempts: 2 }))
    const conflict = await conflictOf(fixture.dibs.singleton({ ...leased, maxAttempts: 2 }, async () => 3))
    expect(conflict).toMatchObject({ state: 'failed' })
    expect(conflict.cause).toMatchObject({ message: expect.stringContaining('Given up after 2 attempts') })
    const { items: claims } = await fixture.dibs.claims.list({ gaveUp: true })
    expect(claims).toMatchObject([{ singleton: 'payout:ann', status: 'failed', lost: 2 }])
    // Also for one who would allow more, and for the last holder.
    await conflictOf(fixture.dibs.singleton({ ...leased, maxAttempts: 9 }, async () => 4))
    last.holder.finish(() => 'late')
    await expect(last.holder.ended).rejects.toThrow(FenceLostError)
  })

  it('is ambiguous where failures are kept and nobody knows whether it failed', async () => {
    const keep = { ifFailed: 'keep' } as const
    await abandon(keep)
    for (const call of [
      () => fixture.dibs.singleton({ ...leased, ...keep }, async () => 2),
      () => fixture.dibs.singleton(at, async () => 2), // joined: it would have no lease to be known by
    ])
      await expect(call()).rejects.toThrow(AmbiguousOutcomeError)
    expect(await slot()).toMatchObject({ held: 'abandoned', attempt: 1, lost: 0 })
    expect(await fixture.dibs.singleton(leased, async () => 'again')).toBe('again')
  })

  it('after an error is free at once for the next, under the same id', async () => {
    const ids: string[] = []
    for (const attempt of [1, 2, 3]) {
      const failed = fixture.dibs.singleton(leased, async (lease) => {
        ids.push(lease.idempotencyKey)
        expect(lease.attempt).toBe(attempt)
        throw new BusinessRuleError('no')
      })
      await expect(failed).rejects.toThrow('no')
      expect(await slot()).toMatchObject({ held: 'released', lost: 0 })
    }
    expect(new Set(ids).size).toBe(1)
    expect(await fixture.dibs.singleton(at, async () => 'joined')).toBe('joined')
  })

  it('after an error is kept if that was asked for', async () => {
    const failed = fixture.dibs.singleton({ ...leased, ifFailed: 'keep' }, () =>
      Promise.reject(new Error('boom')),
    )
    await expect(failed).rejects.toThrow('boom')
    const conflict = await conflictOf(fixture.dibs.singleton(leased, async () => 2))
    expect(conflict).toMatchObject({ state: 'failed', cause: { message: 'boom' } })
  })

  it('is not done again if what came of it is no JSON', async () => {
    await expect(fixture.dibs.singleton(leased, async () => 1n as never)).rejects.toThrow(InvalidOutcomeError)
    expect(await conflictOf(fixture.dibs.singleton(leased, async () => 2))).toMatchObject({ state: 'failed' })
  })

  it('is renewed while its function runs', async () => {
    const holder = holdSlot({ ...at, leaseMs: 3_000 })
    const [lease] = await holder.began
    const begun = Number((await slot())?.leaseUntil)
    await until(async () => Number((await slot())?.leaseUntil) > begun, 'the lease to be renewed')
    expect(lease.signal.aborted).toBe(false)
    holder.finish(() => 1)
    expect(await holder.ended).toBe(1)
  })

  it('that was taken over fires the signal at the next renewal', async () => {
    const holder = holdSlot({ ...at, leaseMs: 4_500 })
    const [lease] = await holder.began
    await fixture.schema.clock.advance(HOUR_MS)
    await fixture.dibs.singleton(leased, async () => 2)
    await until(() => lease.signal.aborted, 'the signal')
    expect(lease.signal.reason).toBeInstanceOf(FenceLostError)
  })

  it('begins its lease after the wait for a transaction that rolled back', async () => {
    const began = deferred()
    const goOn = deferred()
    const joined = inTransaction(
      (tx) =>
        fixture.dibs.singleton({ ...at, tx }, async () => {
          began.resolve()
          await goOn.promise
        }),
      { last: 'rollback' },
    )
    await began.promise
    const waiting = fixture.other.singleton({ ...leased, leaseMs: 4_000, waitMs: 10_000 }, async (lease) => {
      const leftMs = Number((await slot())?.leaseUntil) - (await fixture.dibs.now()).getTime()
      return { leftMs, isLost: lease.signal.aborted }
    })
    const waitedUntil = performance.now() + 4_300
    await until(() => performance.now() > waitedUntil, 'longer than the lease')
    goOn.resolve()
    await joined
    const { leftMs, isLost } = await waiting
    expect(leftMs).toBeGreaterThan(500)
    expect(isLost).toBe(false)
  })
})
