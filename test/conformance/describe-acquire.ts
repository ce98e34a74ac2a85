import { afterAll, beforeAll, expect, it } from 'vitest'
import { claim } from '../../src/claims/acquire/acquire-claims.js'
import type { Quota } from '../../src/claims/quota/quota.js'
import { Dibs } from '../../src/dibs.js'
import { AcquireRefusedError, QuotaExceededError, SingletonConflictError } from '../../src/errors.js'
import { dropSchema, freshName, throughPool } from '../database.js'
import type { Context, OpenTransaction } from './harness.js'

/** Quotas, slots and all of them together in a transaction of the library: they live and die with it. */
export function describeAcquire({ admin, transaction, ids }: Context): void {
  const own = freshName('acquire')
  let dibs: Dibs
  let points: Quota

  beforeAll(async () => {
    dibs = await Dibs.open({ pool: admin, schema: own, ...throughPool, listen: false })
    points = dibs.quota('points', { limit: 10, per: 'day', timeZone: 'Europe/Berlin' })
  })
  afterAll(async () => {
    await dibs.close()
    await dropSchema(own)
  })

  const used = async (subject: string): Promise<number> => (await points.peek(subject)).used
  const award = (open: OpenTransaction, key: string, child: string) =>
    dibs.acquire(
      [
        points.claim(child, 6, { id: `it's ${key}` }),
        claim.once({ scope: 'awards', key, fingerprint: { key } }),
        claim.singleton({ scope: ['prayer', child], per: 'day', holder: "it's {me}" }),
        claim.lock(`till of ${child}`),
      ],
      { tx: open.tx },
      async (_, [use, once, slot]) => {
        await open.insert(key, key)
        return { left: use.remaining, slot: slot.key, attempt: once.attempt }
      },
    )

  it('a quota: taken with the commit, not with a rollback, and a refusal leaves the transaction usable', async () => {
    await transaction((_, { tx }) => points.take('a', 4, { tx }))
    await expect(
      transaction(async (_, { tx }) => {
        await points.take('a', 6, { tx, id: 'r' })
        throw new Error('changed its mind')
      }),
    ).rejects.toThrow('changed its mind')
    await transaction(async (_, { tx, insert }) => {
      await expect(points.take('a', 7, { tx })).rejects.toBeInstanceOf(QuotaExceededError)
      const hold = await points.reserve('a', 6, { tx })
      await hold.settle(2, { tx })
      await insert('beside', 'beside')
    })
    expect([await used('a'), await ids()]).toEqual([6, ['beside']])
  })

  it('several claims: commit together, and are replayed', async () => {
    let first: unknown
    await transaction(async (_, open) => {
      first = await award(open, 'k', 'ann')
      expect(await used('ann')).toBe(0)
    })
    expect(first).toMatchObject({ left: 4, attempt: 1 })
    expect([await used('ann'), await ids()]).toEqual([6, ['k']])
    await transaction(async (_, open) => expect(await award(open, 'k', 'ann')).toEqual(first))
    expect(await used('ann')).toBe(6)
  })

  it('several claims: nothing is left of them after a rollback', async () => {
    await expect(
      transaction(async (_, open) => {
        await award(open, 'gone', 'bob')
        throw new Error('changed its mind')
      }),
    ).rejects.toThrow('changed its mind')
    expect([await used('bob'), await ids()]).toEqual([0, []])
    await transaction((_, open) => award(open, 'gone', 'bob'))
    expect([await used('bob'), await ids()]).toEqual([6, ['gone']])
  })

  it('several claims: a refusal says why, each, and leaves the transaction usable', async () => {
    await dibs.singleton({ scope: ['prayer', 'eve'], per: 'day', holder: 'eve' }, async () => 'done')
    await points.take('eve', 5)
    await transaction(async (_, open) => {
      const refusal = await award(open, 'refused', 'eve').catch((error) => error)
      expect(refusal).toBeInstanceOf(AcquireRefusedError)
      const [quota, slot] = refusal.failures
      expect(quota.error).toBeInstanceOf(QuotaExceededError)
      expect(slot.error).toBeInstanceOf(SingletonConflictError)
      expect(slot.error).toMatchObject({ holder: 'eve', result: 'done', state: 'active' })
      await open.insert('beside', 'beside')
    })
    expect([await used('eve'), await ids()]).toEqual([5, ['beside']])
    expect((await points.verify()).items).toEqual([])
  })
}
