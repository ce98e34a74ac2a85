import { describe, expect, it } from 'vitest'
import { NOW, openQuotas } from '../../../test/claims/open-quotas.js'
import {
  BusyError,
  FingerprintMismatchError,
  HoldEndedError,
  InvalidInputError,
  NeverFitsError,
  QuotaExceededError,
} from '../../errors.js'
import { onEvent } from '../../postgres/events.js'
import { countTraffic } from '../../testing/index.js'
import type { QuotaAttempt } from './quota-result.js'

const fixture = openQuotas()
/** A busy machine is no reason to give up here. */
const patient = { waitMs: 15_000 }
const daily = { limit: 50, per: 'day', ...patient } as const
const startsAt = new Date('2026-03-10T00:00:00Z')
const resetsAt = new Date('2026-03-11T00:00:00Z')
const HOUR = 3_600_000

const thrownBy = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => expect.unreachable('it should have been refused'),
    (error: unknown) => error,
  )

describe('take', () => {
  it('lets exactly one of ten have what is left of a cap', async () => {
    const points = fixture.dibs.quota('points', daily)
    const elsewhere = fixture.other.quota('points', daily)
    await points.take('child', 45)
    const attempts = await Promise.all(
      Array.from({ length: 10 }, (_, n) => (n % 2 ? points : elsewhere).tryTake('child', 5)),
    )
    expect(attempts.filter(({ ok }) => ok)).toEqual([
      { ok: true, limit: 50, used: 50, held: 0, remaining: 0, startsAt, resetsAt, replayed: false },
    ])
    const refused = {
      ...{ ok: false, limit: 50, used: 50, held: 0, remaining: 0, startsAt, resetsAt },
      ...{ requested: 5, retryAfterMs: 12 * HOUR },
    }
    for (const attempt of attempts) if (!attempt.ok) expect(attempt).toEqual(refused)
    expect((await points.peek('child')).used).toBe(50)
  })

  it('sells one piece to one of a hundred buyers', async () => {
    const stock = [fixture.dibs, fixture.other].map((dibs) => dibs.quota('stock', { limit: 1, ...patient }))
    const sales = await Promise.allSettled(Array.from({ length: 100 }, (_, n) => stock[n % 2]?.take('sku')))
    const [sale, ...none] = sales.filter(({ status }) => status === 'fulfilled')
    expect(sale).toMatchObject({ value: { used: 1, remaining: 0 } })
    expect(none).toEqual([])
    for (const { reason } of sales.filter((one) => one.status === 'rejected'))
      expect(reason).toBeInstanceOf(QuotaExceededError)
    expect(await stock[0]?.peek('sku')).toEqual({ limit: 1, used: 1, held: 0, remaining: 0 })
  })

  it('counts each subject, and each quota, for itself', async () => {
    const [points, stars] = [fixture.dibs.quota('points', daily), fixture.dibs.quota('stars', daily)]
    await points.take('ann', 50)
    expect(await points.take('bob', 3)).toMatchObject({ used: 3, remaining: 47 })
    expect(await stars.take('ann', 4)).toMatchObject({ used: 4, remaining: 46 })
    expect(await points.take('bob')).toMatchObject({ used: 4 })
    expect(points.name).toBe('points')
  })

  it('says how full it is, and when this very amount fits', async () => {
    const points = fixture.dibs.quota('points', daily)
    await points.take('child', 30)
    await points.reserve('child', 8, { leaseMs: 1_000 })
    const error = await thrownBy(points.take('child', 20))
    expect(error).toBeInstanceOf(QuotaExceededError)
    expect(error).toMatchObject({
      ...{ quota: 'points', subject: 'child', limit: 50, used: 30, held: 8, requested: 20, remaining: 12 },
      ...{ resetsAt, retryAfterMs: 1_000, code: 'DIBS_QUOTA_EXCEEDED', status: 429, retryable: true },
    })
    expect(`${error}`).toMatch(
      /Quota "points" of "child" has 12 left, and 20 were asked for: 30 of 50 used and 8 reserved\. .* fits in 1000 ms/,
    )
    // More than the reservation will give back.
    expect(await thrownBy(points.take('child', 21))).toMatchObject({ retryAfterMs: 12 * HOUR })
    expect(await points.take('child', 12)).toMatchObject({ used: 42, held: 8, remaining: 0 })
  })

  it('says so where it does not empty by itself', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 3 })
    await stock.take('sku', 2)
    const error = (await thrownBy(stock.take('sku', 2))) as QuotaExceededError
    expect(error).toMatchObject({ used: 2, remaining: 1, status: 409, retryable: false })
    expect(error).not.toHaveProperty('retryAfterMs')
    expect(error).not.toHaveProperty('resetsAt')
    expect(error.message).toMatch(/Nothing becomes free by itself/)
  })

  it('can be retried while a reservation of a stock may run out', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 3 })
    await stock.reserve('sku', 3, { leaseMs: 1_000 })
    expect(await thrownBy(stock.take('sku', 1))).toMatchObject({
      ...{ status: 429, retryable: true, retryAfterMs: 1_000 },
    })
  })

  it('refuses what can never fit, before it asks', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 3 })
    const { roundTrips } = await countTraffic(fixture.pool, async () => {
      expect(await thrownBy(stock.take('sku', 4))).toMatchObject({
        ...{ name: NeverFitsError.name, requested: 4, limit: 3, subject: 'quota "stock" of "sku"' },
      })
      expect(await thrownBy(stock.reserve('sku', 4))).toBeInstanceOf(NeverFitsError)
      expect(await thrownBy(stock.take('sku', 3, { limit: 2 }))).toBeInstanceOf(NeverFitsError)
    })
    expect(roundTrips).toBe(0)
  })

  it('tells of what it refuses, without the name of the subject', async () => {
    const stock = fixture.dibs.quota('stock:blue', { limit: 3 })
    await stock.take('sku', 2)
    const told: unknown[] = []
    const stop = onEvent('dibs:quota.refused', (event) => told.push(event))
    await stock.tryTake('sku', 2)
    stop()
    expect(told).toEqual([expect.objectContaining({ template: 'stock:*', requested: 2, remaining: 1 })])
    expect(JSON.stringify(told)).not.toContain('sku')
  })
})

describe('peek', () => {
  it('looks and changes nothing', async () => {
    const points = fixture.dibs.quota('points', daily)
    expect(await points.peek('child')).toEqual({
      ...{ limit: 50, used: 0, held: 0, remaining: 50, startsAt, resetsAt },
    })
    await points.take('child', 5)
    await points.reserve('child', 7, { leaseMs: 1_000 })
    expect(await points.peek('child')).toMatchObject({ used: 5, held: 7, remaining: 38 })
    expect(await points.peek('child', { limit: 10 })).toMatchObject({ limit: 10, remaining: 0 })
    await fixture.advance(1_000)
    expect(await points.peek('child')).toMatchObject({ used: 5, held: 0, remaining: 45 })
    expect(await fixture.rowOf('child')).toMatchObject({ used: 5, held: 7 })
    await fixture.advance(24 * HOUR)
    expect(await points.peek('child')).toMatchObject({ used: 0, remaining: 50, startsAt: resetsAt })
    expect(await fixture.rowOf('child')).toMatchObject({ used: 5 })
  })

  it('waits for nobody', async () => {
    const points = fixture.dibs.quota('points', daily)
    await points.take('child', 5)
    await fixture.dibs.transaction(async (tx) => {
      await points.take('child', 5, { tx })
      expect((await points.peek('child', { tx })).used).toBe(10)
      expect((await points.peek('child')).used).toBe(5)
    })
  })
})

describe('an id', () => {
  it('is taken once, however often it comes', async () => {
    const points = fixture.dibs.quota('points', daily)
    expect(await points.take('child', 5, { id: 'event-1' })).toMatchObject({
      ...{ id: 'event-1', used: 5, replayed: false },
    })
    const again = await points.take('child', 5, { id: 'event-1' })
    expect(again).toMatchObject({ id: 'event-1', used: 5, replayed: true })
    expect(again).not.toHaveProperty('granted')
    // Also where nothing would fit any more.
    await points.take('child', 45)
    expect(await points.take('child', 5, { id: 'event-1' })).toMatchObject({ used: 50, replayed: true })
    await fixture.expectClean(points)
  })

  it('is taken once by ten at a time, of two processes', async () => {
    const points = [fixture.dibs, fixture.other].map((dibs) => dibs.quota('points', daily))
    const takes = await Promise.all(
      Array.from({ length: 10 }, (_, n) => points[n % 2]?.take('child', 5, { id: 'event-1' })),
    )
    expect(takes.filter((take) => take?.replayed === false)).toHaveLength(1)
    expect((await points[0]?.peek('child'))?.used).toBe(5)
  })

  it('is taken once where it stands twice in one statement', async () => {
    const points = fixture.dibs.quota('points', daily)
    const { value, commits } = await countTraffic(fixture.pool, () =>
      Promise.all([
        points.take('child', 1),
        points.take('child', 5, { id: 'event-1' }),
        points.take('child', 5, { id: 'event-1' }),
        points.take('child', 5, { id: 'event-2' }),
      ]),
    )
    expect(commits).toBe(2)
    expect(value.map(({ used, replayed }) => [used, replayed])).toEqual([
      [1, false],
      [6, false],
      [6, true],
      [11, false],
    ])
    await fixture.expectClean(points)
  })

  it('belongs to one subject and one amount', async () => {
    const points = fixture.dibs.quota('points', daily)
    await points.take('ann', 5, { id: 'event-1' })
    await points.reserve('ann', 5, { id: 'hold-1' })
    for (const other of [
      () => points.take('ann', 6, { id: 'event-1' }),
      () => points.take('bob', 5, { id: 'event-1' }),
      () => points.reserve('ann', 5, { id: 'event-1' }),
      () => points.take('ann', 5, { id: 'hold-1' }),
      () => points.reserve('ann', 6, { id: 'hold-1' }),
    ])
      expect(await thrownBy(other())).toBeInstanceOf(FingerprintMismatchError)
    expect((await points.peek('ann')).used).toBe(5)
    expect((await points.peek('bob')).used).toBe(0)
    // Ids are per quota: this id is new in another quota.
    const stars = fixture.dibs.quota('stars', daily)
    expect(await stars.take('bob', 1, { id: 'event-1' })).toMatchObject({ replayed: false })
    await fixture.expectClean(points, stars)
  })

  it('of another subject whose transaction is open is waited for', async () => {
    const points = fixture.dibs.quota('points', daily)
    let waiting: Promise<unknown> | undefined
    await fixture.dibs.transaction(async (tx) => {
      await points.take('ann', 5, { id: 'event-1', tx })
      waiting = thrownBy(points.take('bob', 5, { id: 'event-1' }))
      await fixture.waiting(1)
    })
    expect(await waiting).toBeInstanceOf(FingerprintMismatchError)
    expect((await points.peek('bob')).used).toBe(0)
  })

  it('does not hold up those who were sent along with it', async () => {
    const points = fixture.dibs.quota('points', { ...daily, waitMs: 2_000 })
    await points.take('bob', 1)
    await fixture.dibs.transaction(async (tx) => {
      await points.take('ann', 5, { id: 'event-1', tx })
      const [first, stuck, free, other] = await Promise.allSettled([
        points.take('bob', 1),
        points.take('bob', 5, { id: 'event-1' }),
        points.take('bob', 2),
        points.take('bob', 3, { id: 'event-2' }),
      ])
      expect(stuck).toMatchObject({ status: 'rejected', reason: expect.any(BusyError) })
      for (const one of [first, free, other]) expect(one).toMatchObject({ status: 'fulfilled' })
    })
    expect((await points.peek('bob')).used).toBe(7)
    await fixture.expectClean(points)
  })

  it('is new after it was refused', async () => {
    const points = fixture.dibs.quota('points', { limit: 5 })
    await points.take('child', 5)
    expect(await points.tryTake('child', 1, { id: 'event-1' })).toMatchObject({ ok: false })
    expect(await points.take('child', 1, { id: 'event-1', limit: 6 })).toMatchObject({ replayed: false })
  })
})

describe('refund', () => {
  it('gives back once, and the id stays used', async () => {
    const points = fixture.dibs.quota('points', daily)
    await points.take('child', 5, { id: 'event-1' })
    expect(await points.refund('event-1')).toEqual({ replayed: false })
    expect((await points.peek('child')).used).toBe(0)
    expect(await points.refund('event-1')).toEqual({ replayed: true })
    expect(await thrownBy(points.take('child', 5, { id: 'event-1' }))).toMatchObject({
      name: 'HoldEndedError',
      state: 'refunded',
    })
    await fixture.expectClean(points)
  })

  it('gives a part back, and no more than was taken', async () => {
    const points = fixture.dibs.quota('points', daily)
    await points.take('child', 5, { id: 'event-1' })
    expect(await thrownBy(points.refund('event-1', { amount: 6 }))).toMatchObject({
      ...{ name: InvalidInputError.name, field: 'amount' },
      message: expect.stringContaining('at most the 5 that were taken, not 6'),
    })
    expect(await points.refund('event-1', { amount: 2 })).toEqual({ replayed: false })
    expect(await points.refund('event-1', { amount: 2 })).toEqual({ replayed: true })
    expect((await points.peek('child')).used).toBe(3)
    await fixture.expectClean(points)
  })

  it('changes nothing for a window that did not pay', async () => {
    const points = fixture.dibs.quota('points', daily)
    await points.take('child', 5, { id: 'event-1' })
    await points.take('child', 5, { id: 'event-2' })
    await fixture.advance(24 * HOUR)
    // Nobody has begun the new window.
    expect(await points.refund('event-1')).toEqual({ replayed: false })
    await points.take('child', 7)
    expect(await points.refund('event-2')).toEqual({ replayed: false })
    expect((await points.peek('child')).used).toBe(7)
    await fixture.expectClean(points)
  })

  it('knows no id that was not taken', async () => {
    const points = fixture.dibs.quota('points', daily)
    const hold = await points.reserve('child', 5)
    expect(await thrownBy(points.refund('event-9'))).toMatchObject({
      ...{ name: HoldEndedError.name, quota: 'points', id: 'event-9', state: 'unknown', status: 409 },
    })
    expect(await thrownBy(points.refund(hold.id))).toMatchObject({ state: 'held' })
    await hold.void()
    expect(await thrownBy(points.refund(hold.id))).toMatchObject({ state: 'void' })
  })

  it('gives back what a reservation has taken in the end', async () => {
    const points = fixture.dibs.quota('points', daily)
    const hold = await points.reserve('child', 5)
    await hold.settle(3)
    expect(await points.refund(hold.id)).toEqual({ replayed: false })
    expect(await points.peek('child')).toMatchObject({ used: 0, held: 0 })
    await fixture.expectClean(points)
  })
})

describe('the limit', () => {
  it('may rise and fall while it is in use', async () => {
    const [wide, narrow] = [50, 10].map((limit) => fixture.dibs.quota('points', { limit, per: 'day' }))
    await wide?.take('child', 40)
    expect(await narrow?.tryTake('child', 1)).toMatchObject({
      ok: false,
      used: 40,
      remaining: 0,
      limit: 10,
    })
    expect(await wide?.take('child', 10)).toMatchObject({ used: 50 })
    expect(await wide?.tryTake('child', 1)).toMatchObject({ ok: false })
    expect(await wide?.take('child', 1, { limit: 51 })).toMatchObject({ limit: 51, used: 51, remaining: 0 })
    await fixture.advance(24 * HOUR)
    expect(await narrow?.take('child', 10)).toMatchObject({ used: 10 })
  })

  it('of those who are sent together is each its own', async () => {
    const points = fixture.dibs.quota('points', { limit: 5, ...patient })
    await points.take('child', 5)
    const attempts = await Promise.all([
      points.tryTake('child', 2, { limit: 6 }),
      points.tryTake('child', 2, { limit: 6 }),
      points.tryTake('child', 5, { limit: 12 }),
    ])
    expect(attempts.map(({ ok }) => ok)).toEqual([false, false, true])
  })

  it('is kept by the table itself', async () => {
    const points = fixture.dibs.quota('points', { limit: 5 })
    await points.take('child', 3)
    const { name } = fixture.schema
    for (const change of [
      'used = 6',
      'held = 3',
      'used = -1',
      'held = -1',
      'overdrawn = -1',
      'unlisted = -1',
    ])
      await expect(fixture.pool.query(`update ${name}.quota set ${change}`)).rejects.toMatchObject({
        constraint: 'quota_within_its_limit',
      })
    await expect(
      fixture.pool.query(`insert into ${name}.quota select * from ${name}.quota`),
    ).rejects.toMatchObject({ constraint: 'quota_pkey' })
  })
})

describe('those who come at once', () => {
  it('share a few statements, and get exactly the limit', async () => {
    const points = fixture.dibs.quota('points', { limit: 123, per: 'day', ...patient })
    await points.take('other')
    const { value, roundTrips } = await countTraffic(fixture.pool, () =>
      Promise.all(Array.from({ length: 200 }, () => points.tryTake('child'))),
    )
    expect(roundTrips).toBeLessThanOrEqual(3)
    expect(value.filter(({ ok }) => ok)).toHaveLength(123)
    const used = value.filter(({ ok }) => ok).map((one) => one.used)
    expect(used).toEqual(Array.from({ length: 123 }, (_, n) => n + 1))
  })

  it('are counted each for its subject', async () => {
    const points = fixture.dibs.quota('points', daily)
    await Promise.all(['ann', 'bob', 'eve', 'bob'].map((subject) => points.take(subject)))
    const used = await Promise.all(['ann', 'bob', 'eve'].map((subject) => points.peek(subject)))
    expect(used.map((one) => one.used)).toEqual([1, 2, 1])
  })

  it('are taken in their order: what does not fit is left out, what comes after it is not', async () => {
    const points = fixture.dibs.quota('points', { limit: 10, waitMs: 10_000 })
    const attempts = await Promise.all([6, 5, 4, 1].map((amount) => points.tryTake('child', amount)))
    expect(attempts.map(({ ok: granted, used }: QuotaAttempt) => [granted, used])).toEqual([
      [true, 6],
      [false, 6],
      [true, 10],
      [false, 10],
    ])
  })

  it('make one round trip and one commit if there is one', async () => {
    const points = fixture.dibs.quota('points', daily)
    await points.take('child')
    for (const call of [() => points.take('child'), () => points.take('child', 1, { id: 'event-1' })]) {
      const { roundTrips, commits } = await countTraffic(fixture.pool, call)
      expect({ roundTrips, commits }).toEqual({ roundTrips: 1, commits: 1 })
    }
  })

  it('are told when it takes too long, and nothing was taken', async () => {
    const points = fixture.dibs.quota('points', { ...daily, waitMs: 60 })
    const elsewhere = fixture.other.quota('points', daily)
    await points.take('child')
    await fixture.dibs.transaction(async (tx) => {
      await elsewhere.take('child', 1, { tx })
      const errors = await Promise.all(Array.from({ length: 4 }, () => thrownBy(points.take('child'))))
      for (const error of errors) {
        expect(error).toBeInstanceOf(BusyError)
        expect(error).toMatchObject({
          ...{ subject: 'a turn at quota "points" of "child"', retryAfterMs: 100, retryable: true },
        })
      }
      expect(await thrownBy(points.reserve('child', 1))).toBeInstanceOf(BusyError)
    })
    expect((await points.peek('child')).used).toBe(2)
  })

  it('go on after one that failed', async () => {
    const points = fixture.dibs.quota('points', { ...daily, waitMs: 5_000 })
    await points.take('child')
    const locker = await fixture.pool.connect()
    await locker.query(`begin; lock table ${fixture.schema.name}.quota in access exclusive mode`)
    const first = thrownBy(points.take('child'))
    await fixture.waiting(1)
    const second = points.take('child')
    await fixture.pool.query(
      `select pg_cancel_backend(pid) from pg_stat_activity where wait_event_type = 'Lock' and query like '%${fixture.schema.name}%'`,
    )
    await first
    await fixture.waiting(1)
    await locker.query('rollback')
    locker.release()
    expect(await second).toMatchObject({ used: 2 })
  })
})

describe('verify', () => {
  it.each([
    ['used = 4', { used: 4, listed: 1, entriesTaken: 2 }],
    ['used = 6', { used: 6, listed: 3, entriesTaken: 2 }],
    ['held = 6', { held: 6, entriesHeld: 7 }],
    ['overdrawn = 1', { used: 6, listed: 3, entriesTaken: 2 }],
  ])('finds a counter that somebody has set to %s', async (change, found) => {
    const points = fixture.dibs.quota('points', daily)
    await points.take('child', 3)
    await points.take('child', 2, { id: 'event-1' })
    await points.reserve('child', 7, { id: 'hold-1' })
    await points.take('other', 2, { id: 'event-2' })
    await fixture.expectClean(points)
    await fixture.pool.query(`update ${fixture.schema.name}.quota set ${change} where subject = 'child'`)
    expect((await points.verify()).items).toEqual([expect.objectContaining({ subject: 'child', ...found })])
    expect((await points.verify({ subject: 'child' })).items).toHaveLength(1)
    expect((await points.verify({ subject: 'other' })).items).toEqual([])
    expect((await fixture.dibs.quota('stars', daily).verify()).items).toEqual([])
  })

  it('finds an entry that somebody has removed', async () => {
    const points = fixture.dibs.quota('points', { ...daily, ledger: true })
    await points.take('child', 3)
    await fixture.pool.query(`delete from ${fixture.schema.name}.quota_entry`)
    expect((await points.verify()).items).toEqual([
      { subject: 'child', used: 3, held: 0, listed: 3, entriesTaken: 0, entriesHeld: 0 },
    ])
  })

  it('counts each take where there is a ledger', async () => {
    const points = fixture.dibs.quota('points', { ...daily, ledger: true })
    const takes = await Promise.all(Array.from({ length: 5 }, () => points.take('child', 2)))
    expect(new Set(takes.map(({ id }) => id)).size).toBe(5)
    expect(await fixture.rowOf('child')).toMatchObject({ used: 10, unlisted: 0 })
    const { rows } = await fixture.pool.query(`select id from ${fixture.schema.name}.quota_entry`)
    expect(rows.map(({ id }) => id).sort()).toEqual(takes.map(({ id }) => id).sort())
    expect(await points.refund(`${takes[0]?.id}`)).toEqual({ replayed: false })
    expect((await points.peek('child')).used).toBe(8)
    // Others, who list nothing.
    expect(await fixture.dibs.quota('points', daily).take('child', 1)).not.toHaveProperty('id')
    expect(await fixture.rowOf('child')).toMatchObject({ used: 9, unlisted: 1 })
    await fixture.expectClean(points)
  })
})

it('defining a quota asks nothing, and the clock of this process does not count', async () => {
  const { roundTrips } = await countTraffic(fixture.pool, async () => fixture.dibs.quota('points', daily))
  expect(roundTrips).toBe(0)
  expect(Math.abs(Date.now() - NOW.getTime())).toBeGreaterThan(HOUR)
})
