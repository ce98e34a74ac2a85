import type { PoolClient } from 'pg'
import { expectTypeOf, it } from 'vitest'
import type { Dibs } from '../../dibs.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import type { Quota } from '../quota/quota.js'
import { claim, type LockGrant, type OnceGrant, type QuotaGrant, type Slot } from './acquire-claims.js'
import type { AcquireLease } from './leased-acquire-call.js'

/** Never runs. The compiler checks the types inside. */
const neverRun = (_: (dibs: Dibs, client: PoolClient, points: Quota) => unknown): void => {}
const once = claim.once({ scope: 's', key: 'k' })
const slot = claim.singleton({ scope: ['a', 1, 2n], per: 'day' })
const lock = claim.lock('x')

it('acquire gives the function what was granted, each in its place', () => {
  neverRun(async (dibs, client, points) => {
    await dibs.acquire([lock, points.claim('ann', 1), slot, once], async (tx, grants) => {
      expectTypeOf(tx).toEqualTypeOf<Transaction>()
      expectTypeOf(grants).toEqualTypeOf<[LockGrant, QuotaGrant, Slot, OnceGrant]>()
    })
    await dibs.acquire([slot], { tx: client }, async (tx, [period]) => {
      expectTypeOf(tx).toEqualTypeOf<PoolClient>()
      expectTypeOf(period).toEqualTypeOf<Slot>()
    })
    await dibs.acquire([once], { mode: 'leased', leaseMs: 1_000 }, async (lease, [key]) => {
      expectTypeOf(lease).toEqualTypeOf<AcquireLease>()
      expectTypeOf(key).toEqualTypeOf<OnceGrant>()
    })
    // @ts-expect-error: a pool is no transaction
    await dibs.acquire([once], { tx: dibs.pool }, async () => 1)
    // @ts-expect-error: a lease is for mode: 'leased'
    await dibs.acquire([once], { leaseMs: 1_000 }, async () => 1)
    // @ts-expect-error: a transaction is for mode: 'joined'
    await dibs.acquire([once], { mode: 'leased', tx: client }, async () => 1)
    // @ts-expect-error: not made by claims
    await dibs.acquire([{ kind: 'thing' }], async () => 1)
    // @ts-expect-error: a question needs a claim of its own
    claim.once({ scope: 's', key: 'k', onAmbiguous: () => 'retry' })
    // @ts-expect-error: a slot needs a period
    claim.singleton({ scope: 's' })
    // @ts-expect-error: one of the two
    claim.singleton({ scope: 's', per: 'day', perMs: 1_000 })
    // @ts-expect-error: a time zone is for a period of the calendar
    claim.singleton({ scope: 's', perMs: 1_000, timeZone: 'UTC' })
    // @ts-expect-error: a slot needs a period
    await dibs.singleton({ scope: 's' }, async () => 1)
    // @ts-expect-error: a slot needs a period
    await dibs.trySingleton({ scope: 's', mode: 'leased' }, async () => 1)
    await dibs.acquire([once], undefined, async () => 1)
    // @ts-expect-error: one way to name a claim
    await dibs.claims.forget({ scope: 's', operation: 'o', key: 'k' })
    // @ts-expect-error: a bigint
    await dibs.claims.resolve({ scope: 's', key: 'k' }, { outcome: 1n })
    await dibs.claims.resolve({ scope: 's', key: 'k' }, { outcome: { at: new Date() } })
    await dibs.claims.resolve({ scope: 's', key: 'k' }, { outcome: undefined })
    // @ts-expect-error: misspelled
    claim.singleton({ scope: 's', per: 'dya' })
  })
})

it('acquire answers with what JSON makes of it, where that is stored', () => {
  neverRun(async (dibs, _, points) => {
    expectTypeOf(await dibs.acquire([lock, once], async () => new Date())).toEqualTypeOf<string>()
    expectTypeOf(await dibs.acquire([slot], async () => ({ at: new Date() }))).toEqualTypeOf<{ at: string }>()
    expectTypeOf(await dibs.acquire([lock, points.claim('a')], async () => new Date())).toEqualTypeOf<Date>()
    expectTypeOf(await dibs.acquire([once], async () => {})).toEqualTypeOf<void>()
  })
})

it('limits tell by the same word whether they have granted, and their claims take what they can use', () => {
  neverRun(async (dibs, _, points) => {
    const api = dibs.rateLimit('api', { algorithm: 'gcra', limit: 1, perMs: 1 })
    for (const answer of [await points.tryTake('a'), await api.tryTake('a')]) {
      if (answer.ok) expectTypeOf(answer.remaining).toEqualTypeOf<number>()
      else expectTypeOf(answer.retryAfterMs).toEqualTypeOf<number | undefined>()
    }
    expectTypeOf(await points.take('a')).not.toHaveProperty('granted')
    expectTypeOf(await api.take('a')).not.toHaveProperty('granted')
    // @ts-expect-error: the transaction is that of acquire
    points.claim('a', 1, { tx: _ })
    // @ts-expect-error: the same, and there is nothing else to say
    api.claim('a', 1, { tx: _ })
  })
})

it('singleton gives the function its slot', () => {
  neverRun(async (dibs, client) => {
    const at = { scope: 's', per: 'day' } as const
    await dibs.singleton(at, async (tx, period) => {
      expectTypeOf(tx).toEqualTypeOf<Transaction>()
      expectTypeOf(period).toEqualTypeOf<Slot>()
    })
    await dibs.singleton({ ...at, tx: client }, async (tx) => expectTypeOf(tx).toEqualTypeOf<PoolClient>())
    await dibs.singleton({ ...at, mode: 'leased', leaseMs: 1_000 }, async (lease) => {
      expectTypeOf(lease).toEqualTypeOf<AcquireLease>()
    })
    expectTypeOf(await dibs.singleton(at, async () => new Date())).toEqualTypeOf<string>()
    // @ts-expect-error: a lease is for mode: 'leased'
    await dibs.singleton({ ...at, leaseMs: 1_000 }, async () => 1)
    const told = await dibs.voidSlot({ scope: 's', slot: { key: 'k', id: 'i' } }, async (tx) => {
      expectTypeOf(tx).toEqualTypeOf<Transaction>()
      return 1
    })
    if (told.ok) expectTypeOf(told.value).toEqualTypeOf<number | undefined>()
    await dibs.voidSlot({ scope: 's', slot: { key: 'k', id: 'i' }, tx: client }, async (tx) => {
      expectTypeOf(tx).toEqualTypeOf<PoolClient>()
    })
  })
})
