import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it, onTestFinished } from 'vitest'
import { acquirersOf, HOUR_MS } from '../../../test/claims/acquirers.js'
import { callersOf } from '../../../test/claims/callers.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { until } from '../../../test/database.js'
import { realTime } from '../../../test/real-time.js'
import {
  type AcquireRefusedError,
  BusyError,
  FenceLostError,
  FingerprintMismatchError,
  type InProgressError,
} from '../../errors.js'
import { onEvent } from '../../postgres/events.js'
import { claim, type QuotaGrant } from './acquire-claims.js'
import type { AcquireLease } from './leased-acquire-call.js'

const fixture = openClaims()
const { query, slowly, untilRenewed } = acquirersOf(fixture)
const { inTransaction } = callersOf(fixture, { scope: 's', key: 'k' })

const leased = { mode: 'leased', leaseMs: HOUR_MS } as const
const points = () => fixture.dibs.quota('points', { limit: 10 })
const once = () => claim.once({ scope: 'ask', key: 'k' })
const named = (amount = 4) => points().claim('ann', amount, { id: 'event-1' })

type HeldGrants = [AcquireLease, [...unknown[], QuotaGrant]]
const hold = (list: readonly unknown[], options: object = leased) =>
  slowly<HeldGrants>((work) => fixture.dibs.acquire(list as never, options as never, work as never))
const entries = () => query('select state, holder, is_done, amount::int from {schema}.quota_entry')
const readUsage = async () => {
  const { used, held } = await points().peek('ann')
  expect((await points().verify()).items).toEqual([])
  return { used, held }
}

describe('reserved under a lease, while a transaction of others has the counter', () => {
  /** The outcome is stored, and the transaction is still open. */
  async function finishDuring(how: () => unknown, during = async () => {}) {
    await points().take('ann', 1)
    const holder = hold([once(), named()])
    await holder.began
    const ended = await inTransaction(async (tx) => {
      await points().take('ann', 1, { tx })
      holder.finish(how)
      const answer = await holder.ended.catch((error) => error)
      await during()
      return answer
    })
    return ended
  }

  it('is used when the work is done, and its outcome is stored', async () => {
    const ended = await finishDuring(
      () => 'done',
      async () => expect((await fixture.dibs.claims.get({ scope: 'ask', key: 'k' }))?.status).toBe('active'),
    )
    expect(ended).toBe('done')
    expect(await readUsage()).toEqual({ used: 2, held: 4 })
    await fixture.schema.clock.advance(2 * HOUR_MS)
    expect(await readUsage()).toEqual({ used: 2, held: 4 })
    const refused = await points().tryTake('ann', 5)
    expect(refused).toEqual({ ok: false, limit: 10, used: 6, held: 0, remaining: 4, requested: 5 })
    await points().take('ann', 1)
    expect(await readUsage()).toEqual({ used: 7, held: 0 })
    expect(await entries()).toMatchObject([{ state: 'taken', amount: 4 }])
  })

  it('does not count as what runs out soon', async () => {
    await finishDuring(() => 'done')
    const refused = await points().tryTake('ann', 5)
    expect(refused).toEqual({ ok: false, limit: 10, used: 2, held: 4, remaining: 4, requested: 5 })
  })

  it('can be refunded, and ends in no other way', async () => {
    await finishDuring(() => 'done')
    await expect(points().void('event-1')).rejects.toMatchObject({ name: 'HoldEndedError', state: 'taken' })
    await expect(points().settle('event-1', 1)).rejects.toMatchObject({ name: 'HoldEndedError' })
    await points().settle('event-1', 4)
    expect(await points().refund('event-1', { amount: 3 })).toEqual({ replayed: false })
    expect(await points().refund('event-1', { amount: 3 })).toEqual({ replayed: true })
    expect(await readUsage()).toEqual({ used: 3, held: 0 })
  })

  it.each([1, 2 * HOUR_MS])('is known by its id %d ms later, and charged once', async (laterMs) => {
    await finishDuring(() => 'done')
    await fixture.schema.clock.advance(laterMs)
    const seen = await fixture.dibs.acquire([named()], leased, async (_, [use]) => use)
    expect(seen).toMatchObject({ replayed: true })
    await fixture.schema.clock.advance(2 * HOUR_MS)
    await points().take('ann', 1)
    expect(await readUsage()).toEqual({ used: 7, held: 0 })
  })

  it('stays used when its id is forgotten', async () => {
    const short = fixture.dibs.quota('points', { limit: 10, keepMs: 1_000 })
    await short.take('ann', 1)
    const holder = hold([once(), short.claim('ann', 4, { id: 'event-1' })])
    await holder.began
    await inTransaction(async (tx) => {
      await short.take('ann', 1, { tx })
      holder.finish()
      await holder.ended
    })
    await fixture.schema.clock.advance(30 * 24 * HOUR_MS)
    await fixture.dibs.maintain({ once: true })
    expect(await entries()).toEqual([])
    expect(await readUsage()).toEqual({ used: 6, held: 0 })
  })

  it('runs out when the work has failed', async () => {
    const ended = await finishDuring(() => {
      throw new Error('no')
    })
    expect(ended).toMatchObject({ message: 'no' })
    await fixture.schema.clock.advance(HOUR_MS)
    expect(await readUsage()).toEqual({ used: 2, held: 0 })
  })

  it('is free for the next with its id as soon as the work has failed', async () => {
    await finishDuring(() => {
      throw new Error('no')
    })
    expect(await fixture.dibs.acquire([named()], leased, async (_, [use]) => use.replayed)).toBe(false)
    expect(await readUsage()).toEqual({ used: 6, held: 0 })
  })

  it('is renewed all the same', async () => {
    await points().take('ann', 1)
    const holder = hold([once(), named()], { mode: 'leased', leaseMs: 3_000 })
    const [lease] = await holder.began
    await inTransaction(async (tx) => {
      await points().take('ann', 1, { tx })
      await untilRenewed(lease, 'max(expires_at) from {schema}.quota_entry')
      expect(
        await query(
          "select 1 from {schema}.quota_entry where state = 'held' and expires_at > {schema}.clock()",
        ),
      ).toHaveLength(1)
    })
    holder.finish()
    await holder.ended
    expect(await readUsage()).toEqual({ used: 6, held: 0 })
  })

  it.each([
    ['counts as used, when it has run out since', { limit: 10 }, 0, 4],
    ['is charged to the window of now, when its own is over', { limit: 10, per: 'day' }, 4, 0],
  ] as const)('%s', async (_, rule, used, held) => {
    await fixture.schema.clock.freeze(new Date('2026-06-10T22:00:00Z'))
    const quota = fixture.dibs.quota('points', rule)
    await quota.take('ann', 1)
    const holder = hold([once(), quota.claim('ann', 4, { id: 'event-1' })])
    await holder.began
    await inTransaction(async (tx) => {
      await quota.take('ann', 1, { tx })
      await fixture.schema.clock.advance(3 * HOUR_MS)
      holder.finish()
      await until(
        async () => (await fixture.dibs.claims.get({ scope: 'ask', key: 'k' }))?.status === 'active',
        'the outcome',
      )
    })
    expect(await holder.ended).toBe('done')
    const before = 'per' in rule ? 0 : 2
    expect(await quota.peek('ann')).toMatchObject({ used: before + used, held })
    await quota.take('ann', 1)
    expect(await quota.peek('ann')).toMatchObject({ used: before + 5, held: 0 })
    expect((await quota.verify()).items).toEqual([])
  })

  describe('which has found it run out', () => {
    async function outlive(): Promise<ReturnType<typeof hold>> {
      await points().take('ann', 1)
      const holder = hold([once(), named()])
      await holder.began
      await fixture.schema.clock.advance(HOUR_MS)
      return holder
    }

    it.each(['this one', 'an earlier one'])(
      '(%s) the outcome is stored, and it is charged later',
      async (who) => {
        const holder = await outlive()
        await points().take('ann', who === 'this one' ? 1 : 7)
        await inTransaction(async (tx) => {
          await points().take('ann', who === 'this one' ? 7 : 1, { tx })
          holder.finish()
          await until(
            async () => (await fixture.dibs.claims.get({ scope: 'ask', key: 'k' }))?.status === 'active',
            'the outcome',
          )
        })
        expect(await holder.ended).toBe('done')
        expect(await readUsage()).toEqual({ used: 13, held: 0 })
      },
    )

    it('it is charged though the lock beside it has another holder by then', async () => {
      await points().take('ann', 1)
      const holder = hold([claim.lock('x'), named()])
      await holder.began
      await fixture.schema.clock.advance(HOUR_MS)
      await points().take('ann', 7)
      const next = await inTransaction(async (tx) => {
        await points().take('ann', 1, { tx })
        holder.finish()
        await until(
          async () => (await query("select from {schema}.lock where expires_at > '-infinity'")).length === 0,
          'the release',
        )
        const next = hold([claim.lock('x')])
        await next.began
        return next
      })
      expect(await holder.ended).toBe('done')
      expect(await readUsage()).toEqual({ used: 13, held: 0 })
      next.finish()
      await next.ended
    })

    it('the other leases are renewed', async () => {
      await points().take('ann', 1)
      const holder = hold([once(), named()], { mode: 'leased', leaseMs: 3_000 })
      const [lease] = await holder.began
      await fixture.schema.clock.advance(HOUR_MS)
      await inTransaction(async (tx) => {
        await points().take('ann', 1, { tx })
        await untilRenewed(lease)
        expect(lease.signal.aborted).toBe(false)
      })
    })

    it('it is charged also where short transactions come one after the other', async () => {
      const heard: unknown[] = []
      const stop = onEvent('dibs:acquire.unsettled', (event) => void heard.push(event))
      const many = (dibs = fixture.dibs) => dibs.quota('points', { limit: 1_000_000, waitMs: 10_000 })
      const works = Array.from({ length: 5 }, (_, n) =>
        hold([claim.once({ scope: 'ask', key: `${n}` }), many().claim('bob', 1)]),
      )
      await Promise.all(works.map(({ began }) => began))
      await fixture.schema.clock.advance(HOUR_MS)
      await many().take('bob', 1) // finds that all of them have expired
      let others = 1
      let isOver = false
      await fixture.beside(async (dibs, pool) => {
        const strangers = Array.from({ length: 3 }, async () => {
          while (!isOver) {
            const tx = await pool.connect()
            try {
              await tx.query('begin')
              await many(dibs).take('bob', 1, { tx })
              await sleep(20)
              await tx.query('commit')
            } finally {
              tx.release()
            }
            others++
          }
        })
        for (const { finish } of works) finish()
        const worked = Promise.all(works.map(({ ended }) => ended)).finally(() => {
          isOver = true
        })
        await Promise.all([worked, ...strangers])
      })
      stop()
      expect(heard).toEqual([])
      expect(await many().peek('bob')).toMatchObject({ used: others + works.length, held: 0 })
      expect((await many().verify()).items).toEqual([])
    })

    it('and if it does not end: the outcome is stored, and it is told that nothing was charged', async () => {
      const heard: unknown[] = []
      const stop = onEvent('dibs:acquire.unsettled', (event) => void heard.push(event))
      const holder = await outlive()
      await inTransaction(async (tx) => {
        await points().take('ann', 8, { tx })
        holder.finish()
        expect(await holder.ended).toBe('done')
      })
      stop()
      expect(heard).toMatchObject([{ quota: 'points', id: 'event-1' }])
      expect(await readUsage()).toEqual({ used: 9, held: 0 })
    })
  })
})

describe('an id that two calls give', () => {
  const holdersOf = async () => (await entries()).map(({ holder }) => holder)

  it('is one call’s at a time, and charged once', async () => {
    const first = hold([named()])
    await first.began
    const refused: AcquireRefusedError = await fixture.other
      .acquire([named()], leased, async () => 2)
      .catch((error) => error)
    expect(refused.failures.map(({ error }) => error.constructor)).toEqual([BusyError])
    expect(refused.retryable).toBe(true)
    first.finish()
    await first.ended
    expect(await fixture.other.acquire([named()], leased, async (_, [use]) => use.replayed)).toBe(true)
    expect(await readUsage()).toEqual({ used: 4, held: 0 })
  })

  it('that was reserved otherwise is left alone', async () => {
    const reserved = await points().reserve('ann', 4, { id: 'event-1' })
    // Refused at once, because no wait would help.
    const error = await fixture.dibs.acquire([named()], leased, async () => 2).catch((reason) => reason)
    expect(error).toMatchObject({
      retryable: false,
      failures: [{ error: expect.any(FingerprintMismatchError) }],
    })
    await reserved.settle(3)
    expect(await readUsage()).toEqual({ used: 3, held: 0 })
  })

  it('is not reserved by others meanwhile, nor under its id', async () => {
    const first = hold([named()])
    await first.began
    await expect(points().reserve('ann', 4, { id: 'event-1' })).rejects.toThrow(FingerprintMismatchError)
    first.finish()
    await first.ended
    expect(await readUsage()).toEqual({ used: 4, held: 0 })
  })

  it('is found by whoever has outlived it, also if ids are not kept for long', async () => {
    const short = fixture.dibs.quota('points', { limit: 10, keepMs: 1_000 })
    const first = hold([once(), short.claim('ann', 4, { id: 'event-1' })])
    await first.began
    await fixture.schema.clock.advance(2 * HOUR_MS)
    await fixture.dibs.maintain({ once: true })
    first.finish()
    await first.ended
    expect(await readUsage()).toEqual({ used: 4, held: 0 })
  })

  it('is another’s when its lease has run out: the first ends without a word about it', async () => {
    const first = hold([named()])
    await first.began
    await fixture.schema.clock.advance(HOUR_MS)
    const second = hold([named()])
    await second.began
    const [holder] = await holdersOf()
    first.finish()
    await expect(first.ended).rejects.toThrow(FenceLostError)
    expect(await entries()).toMatchObject([{ state: 'held', holder, is_done: false }])
    second.finish()
    expect(await second.ended).toBe('done')
    expect(await readUsage()).toEqual({ used: 4, held: 0 })
  })

  it('and whose first fails late gives nothing of the second back', async () => {
    const first = hold([named()])
    await first.began
    await fixture.schema.clock.advance(HOUR_MS)
    const second = hold([named()])
    await second.began
    first.finish(() => {
      throw new Error('late')
    })
    await expect(first.ended).rejects.toThrow('late')
    expect(await readUsage()).toEqual({ used: 0, held: 4 })
  })

  it('is charged to the first, if the second has done nothing with it', async () => {
    const first = hold([once(), named()])
    await first.began
    await fixture.schema.clock.advance(HOUR_MS)
    await fixture.dibs.acquire([named()], leased, () => Promise.reject(new Error('no'))).catch(() => {})
    first.finish()
    expect(await first.ended).toBe('done')
    expect(await readUsage()).toEqual({ used: 4, held: 0 })
    expect(await fixture.dibs.acquire([named()], leased, async (_, [use]) => use.replayed)).toBe(true)
  })

  it('is charged to it also if others have the counter', async () => {
    const first = hold([once(), named()])
    await first.began
    await fixture.schema.clock.advance(HOUR_MS)
    await fixture.dibs.acquire([named()], leased, () => Promise.reject(new Error('no'))).catch(() => {})
    await inTransaction(async (tx) => {
      await points().take('ann', 1, { tx })
      first.finish()
      await until(
        async () => (await fixture.dibs.claims.get({ scope: 'ask', key: 'k' }))?.status === 'active',
        'the outcome',
      )
    })
    expect(await first.ended).toBe('done')
    expect(await readUsage()).toEqual({ used: 5, held: 0 })
  })

  it('fires the signal at the next renewal', async () => {
    const first = hold([named()], { mode: 'leased', leaseMs: 4_500 })
    const [lease] = await first.began
    await fixture.schema.clock.advance(HOUR_MS)
    const second = hold([named()])
    await second.began
    await until(() => lease.signal.aborted, 'the signal')
    expect(lease.signal.reason).toBeInstanceOf(FenceLostError)
  })

  it('does not fire it while there is a key', async () => {
    const first = hold([once(), named()], { mode: 'leased', leaseMs: 3_000 })
    const [lease] = await first.began
    await fixture.schema.clock.advance(HOUR_MS)
    const second = hold([named()])
    await second.began
    await untilRenewed(lease)
    expect(lease.signal.aborted).toBe(false)
  })

  it('does not cost the first its key', async () => {
    const first = hold([once(), named()])
    await first.began
    await fixture.schema.clock.advance(HOUR_MS)
    const second = hold([named()])
    await second.began
    first.finish(() => 'first')
    expect(await first.ended).toBe('first')
    expect(await readUsage()).toEqual({ used: 0, held: 4 })
    second.finish()
    await second.ended
    expect(await readUsage()).toEqual({ used: 4, held: 0 })
  })
})

it('a reservation alone that nobody has taken over is charged, however late', async () => {
  const late = hold([named()])
  await late.began
  await fixture.schema.clock.advance(HOUR_MS)
  await points().take('ann', 9)
  late.finish()
  expect(await late.ended).toBe('done')
  expect(await readUsage()).toEqual({ used: 13, held: 0 })
})

it('nobody else ends what a call works under', async () => {
  const holder = hold([once(), named()])
  await holder.began
  const message =
    'A call of dibs.acquire works under "event-1" of quota "points" just now, and ends it itself. Nothing was changed.'
  for (const end of [
    () => points().void('event-1'),
    () => points().settle('event-1', 1),
    () => points().refund('event-1'),
    () => fixture.dibs.transaction((tx) => points().void('event-1', { tx })),
  ]) {
    const error = await end().catch((reason: InProgressError) => reason)
    expect(error).toMatchObject({ name: 'InProgressError', message, id: 'event-1' })
    expect((error as InProgressError).retryAfterMs).toBeGreaterThan(HOUR_MS - 60_000)
  }
  holder.finish()
  expect(await holder.ended).toBe('done')
  expect(await readUsage()).toEqual({ used: 4, held: 0 })
})

it('what was given back by hand after it had run out is charged when the work ends', async () => {
  const holder = hold([once(), named()])
  await holder.began
  await fixture.schema.clock.advance(HOUR_MS)
  await points().void('event-1')
  await points().take('ann', 10)
  holder.finish()
  expect(await holder.ended).toBe('done')
  expect(await readUsage()).toEqual({ used: 14, held: 0 })
})

it('is charged though another call has had its id since, and let it run out', async () => {
  const late = hold([claim.lock('l'), named()])
  await late.began
  await fixture.schema.clock.advance(HOUR_MS)
  const second = hold([named()])
  await second.began
  await fixture.schema.clock.advance(2 * HOUR_MS)
  await points().take('ann', 10)
  late.finish()
  expect(await late.ended).toBe('done')
  expect(await readUsage()).toEqual({ used: 14, held: 0 })
  second.finish()
  await expect(second.ended).rejects.toThrow(FenceLostError)
  expect(await readUsage()).toEqual({ used: 14, held: 0 })
})

it('is charged with its own amount, whatever another has reserved under the id meanwhile', async () => {
  const late = hold([claim.lock('l'), named(9)])
  await late.began
  await fixture.schema.clock.advance(HOUR_MS)
  const failed = fixture.dibs.acquire([named(3)], leased, () => Promise.reject(new Error('no')))
  await expect(failed).rejects.toThrow('no')
  late.finish()
  await late.ended
  expect(await readUsage()).toEqual({ used: 9, held: 0 })
  expect(await points().refund('event-1')).toEqual({ replayed: false })
  expect(await readUsage()).toEqual({ used: 0, held: 0 })
})

it('a renewal goes by the clock after the wait, and leaves what another has locked to the next', async () => {
  const expiresIn = async () => {
    const [row] = await query(
      'select extract(epoch from expires_at - {schema}.clock())::float as s from {schema}.quota_entry',
    )
    return Number(row?.s)
  }
  const holder = hold([named()], { mode: 'leased', leaseMs: 6_000 })
  const [{ signal }] = await holder.began
  await inTransaction(async (tx) => {
    await tx.query(`select from ${fixture.schema.name}.quota_entry for update`)
    // The reservation is renewed after a third of its lease.
    await sleep(2_600)
  })
  await fixture.schema.clock.advance(HOUR_MS)
  await until(async () => (await expiresIn()) > 0, 'a renewal')
  expect(signal.aborted).toBe(false)
  holder.finish()
  expect(await holder.ended).toBe('done')
})

it('a reservation alone that has run out and was found so is lost at the next renewal', async () => {
  const late = hold([named()], { mode: 'leased', leaseMs: 1_500 })
  const [{ signal }] = await late.began
  await query("update {schema}.quota_entry set state = 'expired', amount = 0")
  await query('update {schema}.quota set held = 0')
  await until(() => signal.aborted, 'the signal')
  late.finish()
  await late.ended.catch(() => {})
})

it('many counters that others have do not keep an outcome from being stored', realTime, async () => {
  const subjects = Array.from({ length: 10 }, (_, n) => `s${n}`)
  const unsettled: unknown[] = []
  onTestFinished(onEvent('dibs:acquire.unsettled', (event) => void unsettled.push(event)))
  const holder = hold([once(), ...subjects.map((subject) => points().claim(subject, 1))])
  await holder.began
  await fixture.schema.clock.advance(HOUR_MS)
  await inTransaction(async (tx) => {
    for (const subject of subjects.slice(1)) await points().take(subject, 1, { tx })
    holder.finish()
    const stored = performance.now() + 4_000
    await until(
      async () => (await fixture.dibs.claims.get({ scope: 'ask', key: 'k' }))?.status === 'active',
      'the outcome',
    )
    expect(performance.now()).toBeLessThan(stored)
    // Callers of other subjects do not wait.
    await points().take('s0', 1)
  })
  await holder.ended
  const used = await Promise.all(subjects.map(async (subject) => (await points().peek(subject)).used))
  // A use that is not charged in time emits an event. The test takes seconds, during which a busy machine does nothing else.
  expect(used.filter((amount) => amount === 1)).toHaveLength(unsettled.length)
  expect(used.filter((amount) => amount === 2)).toHaveLength(subjects.length - unsettled.length)
  expect(unsettled.length).toBeLessThan(subjects.length - 1)
})

it('a reservation that lasts longer than the key goes over to the next attempt, and is charged once', async () => {
  const first = hold([once(), points().claim('ann', 4)])
  await first.began
  await query("update {schema}.claim set lease_until = {schema}.clock() - interval '1 second'")
  const second = hold([once(), points().claim('ann', 4)])
  await second.began
  expect(await readUsage()).toEqual({ used: 0, held: 4 })
  first.finish()
  await expect(first.ended).rejects.toThrow(FenceLostError)
  second.finish()
  await second.ended
  expect(await readUsage()).toEqual({ used: 4, held: 0 })
})
