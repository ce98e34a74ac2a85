import { describe, expect, it } from 'vitest'
import { NOW, openQuotas } from '../../../test/claims/open-quotas.js'
import {
  FingerprintMismatchError,
  HoldEndedError,
  InvalidInputError,
  type QuotaEntryState,
  QuotaExceededError,
} from '../../errors.js'
import { countTraffic } from '../../testing/index.js'

const fixture = openQuotas()
const daily = { limit: 50, per: 'day' } as const
const HOUR = 3_600_000
const DAY = 24 * HOUR

const thrownBy = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => expect.unreachable('it should have been refused'),
    (error: unknown) => error,
  )

const expectEnded = async (promise: Promise<unknown>, state: QuotaEntryState): Promise<void> => {
  const error = await thrownBy(promise)
  expect(error).toBeInstanceOf(HoldEndedError)
  expect(error).toMatchObject({ state })
}

describe('a reservation', () => {
  it('counts as used until it is settled, and then with what was needed', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    await tokens.take('tenant', 10)
    const hold = await tokens.reserve('tenant', 30, { leaseMs: 5_000, id: 'request-1' })
    expect(hold).toMatchObject({ id: 'request-1', amount: 30, leaseUntil: new Date(NOW.getTime() + 5_000) })
    expect(await tokens.peek('tenant')).toMatchObject({ used: 10, held: 30, remaining: 10 })
    expect(await tokens.tryTake('tenant', 11)).toMatchObject({ ok: false, used: 10, held: 30 })
    expect(await hold.settle(12)).toMatchObject({ limit: 50, used: 22, held: 0, remaining: 28 })
    await fixture.expectClean(tokens)
  })

  it('is settled with all of it where nothing is said, with nothing, and never with more', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    const [all, none] = [await tokens.reserve('tenant', 7), await tokens.reserve('tenant', 8)]
    const error = await thrownBy(all.settle(8))
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error).toMatchObject({ field: 'actual', message: expect.stringContaining('at most the 7') })
    expect(await tokens.peek('tenant')).toMatchObject({ used: 0, held: 15 })
    expect(await all.settle()).toMatchObject({ used: 7, held: 8 })
    expect(await none.settle(0)).toMatchObject({ used: 7, held: 0 })
    await fixture.expectClean(tokens)
  })

  it('is settled once: the same again changes nothing, another amount is refused', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    const hold = await tokens.reserve('tenant', 7)
    await hold.settle(5)
    expect(await hold.settle(5)).toMatchObject({ used: 5 })
    await expectEnded(hold.settle(4), 'taken')
    await expectEnded(hold.void(), 'taken')
    await tokens.refund(hold.id)
    await expectEnded(hold.settle(5), 'refunded')
    expect(await tokens.peek('tenant')).toMatchObject({ used: 0, held: 0 })
    await tokens.take('tenant', 5, { id: 'event-1' })
    await expectEnded(tokens.settle('event-1', 5), 'taken')
    await expectEnded(tokens.void('event-1'), 'taken')
    await fixture.expectClean(tokens)
  })

  it('is given back, and stays so', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    const hold = await tokens.reserve('tenant', 7)
    await hold.void()
    await hold.void()
    expect(await tokens.peek('tenant')).toMatchObject({ used: 0, held: 0 })
    await expectEnded(hold.settle(7), 'void')
    await expectEnded(hold.settle(0), 'void')
    await fixture.expectClean(tokens)
  })

  it('is settled and given back by its id, in another process', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    const elsewhere = fixture.other.quota('tokens', daily)
    await tokens.reserve('tenant', 7, { id: 'a' })
    await tokens.reserve('tenant', 8, { id: 'b' })
    expect(await elsewhere.settle('a', 6)).toMatchObject({ used: 6, held: 8 })
    await elsewhere.void('b')
    expect(await tokens.peek('tenant')).toMatchObject({ used: 6, held: 0 })
    await expectEnded(elsewhere.settle('c', 1), 'unknown')
    await expectEnded(elsewhere.void('c'), 'unknown')
  })

  it('is made once for an id', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    const first = await tokens.reserve('tenant', 7, { id: 'a', leaseMs: 1_000 })
    await fixture.advance(10)
    const again = await fixture.other.quota('tokens', daily).reserve('tenant', 7, { id: 'a', leaseMs: 9_000 })
    expect(again.leaseUntil).toEqual(first.leaseUntil)
    expect(await tokens.peek('tenant')).toMatchObject({ held: 7 })
    await first.settle(3)
    await expectEnded(tokens.reserve('tenant', 7, { id: 'a' }), 'taken')
    expect(await thrownBy(tokens.reserve('tenant', 8, { id: 'a' }))).toBeInstanceOf(FingerprintMismatchError)
  })

  it('is not made again after it has run out, in this window or the next', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    await tokens.reserve('tenant', 7, { id: 'a', leaseMs: 1_000 })
    await fixture.advance(1_000)
    await expectEnded(tokens.reserve('tenant', 7, { id: 'a' }), 'expired')
    await tokens.reserve('tenant', 7, { id: 'b', leaseMs: 1_000 })
    await fixture.advance(DAY)
    await expectEnded(tokens.reserve('tenant', 7, { id: 'b' }), 'expired')
    expect(await tokens.peek('tenant')).toMatchObject({ held: 0 })
  })

  it('does not fit where there is no room', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    await tokens.take('tenant', 45)
    const error = await thrownBy(tokens.reserve('tenant', 6))
    expect(error).toBeInstanceOf(QuotaExceededError)
    expect(error).toMatchObject({ used: 45, requested: 6, remaining: 5, retryAfterMs: 12 * HOUR })
    expect(await tokens.reserve('tenant', 5)).toMatchObject({ amount: 5 })
  })

  it('costs one round trip, and so does its end', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    await tokens.take('tenant')
    const { value: hold, ...made } = await countTraffic(fixture.pool, () => tokens.reserve('tenant', 1))
    const { value: _, ...ended } = await countTraffic(fixture.pool, () => hold.settle())
    expect([made, ended]).toEqual(Array(2).fill({ roundTrips: 1, commits: 1 }))
  })

  it('is given back at the end of its block, unless it was settled', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    {
      await using _ = await tokens.reserve('tenant', 5)
      expect(await tokens.peek('tenant')).toMatchObject({ held: 5 })
    }
    expect(await tokens.peek('tenant')).toMatchObject({ used: 0, held: 0 })
    {
      await using hold = await tokens.reserve('tenant', 5)
      await hold.settle(3)
    }
    {
      await using hold = await tokens.reserve('tenant', 5)
      await tokens.settle(hold.id, 4)
    }
    {
      await using hold = await tokens.reserve('tenant', 5)
      await hold.void()
    }
    expect(await tokens.peek('tenant')).toMatchObject({ used: 7, held: 0 })
    const { roundTrips } = await countTraffic(fixture.pool, async () => {
      await using hold = await tokens.reserve('tenant', 1)
      await hold.settle()
    })
    expect(roundTrips).toBe(2)
    await fixture.expectClean(tokens)
  })

  it('is given back at the end of its block if the transaction that settled it was rolled back', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    {
      await using hold = await tokens.reserve('tenant', 10, { leaseMs: DAY })
      const failed = fixture.dibs.transaction(async (tx) => {
        await hold.settle(5, { tx })
        throw new Error('no')
      })
      await expect(failed).rejects.toThrow('no')
      expect(await tokens.peek('tenant')).toMatchObject({ used: 0, held: 10 })
    }
    expect(await tokens.peek('tenant')).toMatchObject({ used: 0, held: 0 })
    {
      await using hold = await tokens.reserve('tenant', 10, { leaseMs: DAY })
      await fixture.dibs.transaction((tx) => hold.settle(5, { tx }))
    }
    expect(await tokens.peek('tenant')).toMatchObject({ used: 5, held: 0 })
    await fixture.expectClean(tokens)
  })

  it('at the end of a block in a transaction does not wait for that', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    await tokens.reserve('tenant', 10, { id: 'ask-1' })
    await fixture.dibs.transaction(async (tx) => {
      await using hold = await tokens.reserve('tenant', 10, { id: 'ask-1', tx })
      await tokens.settle(hold.id, 5, { tx })
    })
    await fixture.dibs.transaction(async (tx) => {
      await using hold = await tokens.reserve('tenant', 10, { tx })
      await hold.settle(6, { tx })
    })
    expect(await tokens.peek('tenant')).toMatchObject({ used: 11, held: 0 })
    await fixture.expectClean(tokens)
  })

  it('keeps the limit and the zone that it was made with', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    const of = { limit: 500, timeZone: 'Asia/Tokyo' }
    const hold = await tokens.reserve('tenant', 400, { ...of, leaseMs: 1_000 })
    const late = await tokens.reserve('tenant', 100, { ...of, leaseMs: 1_000 })
    expect(await hold.settle(300)).toMatchObject({ limit: 500, used: 300, held: 100, remaining: 100 })
    await fixture.advance(2 * DAY)
    expect(await late.settle(70)).toMatchObject({
      ...{ limit: 500, used: 70, remaining: 430, resetsAt: new Date('2026-03-12T15:00:00Z') },
    })
  })
})

describe('a reservation that has run out', () => {
  it('is free for others at that very moment, without maintenance', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    await tokens.take('tenant', 20)
    await tokens.reserve('tenant', 10, { leaseMs: 3_000 })
    await tokens.reserve('tenant', 5, { leaseMs: 1_000 })
    await tokens.reserve('tenant', 15, { leaseMs: 2_000 })
    // After one, after two, after all, and only with the next window.
    const waits = { 1: 1_000, 5: 1_000, 6: 2_000, 20: 2_000, 21: 3_000, 30: 3_000, 31: 12 * HOUR }
    for (const [amount, retryAfterMs] of Object.entries(waits))
      expect(await tokens.tryTake('tenant', Number(amount))).toMatchObject({ ok: false, retryAfterMs })
    await fixture.advance(1_999)
    expect(await tokens.peek('tenant')).toMatchObject({ used: 20, held: 25 })
    expect(await tokens.tryTake('tenant', 20)).toMatchObject({ ok: false, held: 25, retryAfterMs: 1 })
    await fixture.advance(1)
    expect(await tokens.take('tenant', 20)).toMatchObject({ used: 40, held: 10 })
    await fixture.advance(999)
    expect(await tokens.tryTake('tenant', 10)).toMatchObject({ ok: false, retryAfterMs: 1 })
    await fixture.advance(1)
    expect(await tokens.take('tenant', 10)).toMatchObject({ used: 50, held: 0 })
    await fixture.expectClean(tokens)
  })

  it('of a window that is over takes nothing from the next', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    await tokens.reserve('tenant', 5, { leaseMs: 13 * HOUR })
    await fixture.advance(12 * HOUR)
    await tokens.take('tenant', 1)
    await tokens.reserve('tenant', 7, { leaseMs: 2 * HOUR })
    await fixture.advance(2 * HOUR)
    expect(await tokens.peek('tenant')).toMatchObject({ used: 1, held: 0 })
    expect(await tokens.take('tenant', 1)).toMatchObject({ used: 2, held: 0 })
    await fixture.expectClean(tokens)
  })

  it('leaves those of other subjects as they are', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    await tokens.reserve('tenant', 5, { leaseMs: 1_000 })
    await tokens.reserve('tenant', 20, { leaseMs: 5_000 })
    await tokens.reserve('other', 7, { leaseMs: 1_000 })
    await fixture.advance(1_000)
    expect(await tokens.take('tenant', 1)).toMatchObject({ used: 1, held: 20 })
    await fixture.expectClean(tokens)
    expect(await tokens.take('other', 50)).toMatchObject({ used: 50, held: 0 })
    await fixture.expectClean(tokens)
  })

  it('is held to the last microsecond, and told to come back no earlier', async () => {
    const { pool, schema } = fixture
    const set = (time: string) =>
      pool.query(`create or replace function ${schema.name}.clock() returns timestamptz
        language sql volatile as $$ select timestamptz '2026-03-10 12:00:${time}Z' $$`)
    const tokens = fixture.dibs.quota('tokens', daily)
    await set('00.000250')
    await tokens.reserve('tenant', 50, { leaseMs: 1_000 })
    await set('00.000251')
    expect(await tokens.tryTake('tenant')).toMatchObject({ ok: false, retryAfterMs: 1_000 })
    await set('00.999251')
    expect(await tokens.tryTake('tenant')).toMatchObject({ ok: false, retryAfterMs: 1 })
    await set('01.000249')
    expect(await tokens.tryTake('tenant')).toMatchObject({ ok: false, held: 50, retryAfterMs: 1 })
    await set('01.000250')
    expect(await tokens.tryTake('tenant')).toMatchObject({ ok: true, held: 0 })
  })

  it('waits for the next window where that comes first', async () => {
    const tokens = fixture.dibs.quota('tokens', { limit: 10, perMs: 1_000, from: NOW })
    await tokens.reserve('tenant', 10, { leaseMs: 5_000 })
    expect(await tokens.tryTake('tenant', 1)).toMatchObject({ ok: false, retryAfterMs: 1_000 })
    await fixture.advance(1_000)
    expect(await tokens.take('tenant', 10)).toMatchObject({ used: 10, held: 0 })
    await fixture.expectClean(tokens)
  })

  it('of a stock waits for reservations alone', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 10 })
    await stock.take('sku', 4)
    await stock.reserve('sku', 6, { leaseMs: 5_000 })
    expect(await stock.tryTake('sku', 6)).toMatchObject({ ok: false, retryAfterMs: 5_000 })
    expect(await stock.tryTake('sku', 7)).not.toHaveProperty('retryAfterMs')
  })

  it('may be given back, and cannot be refunded', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    const [one, two] = [
      await tokens.reserve('tenant', 5, { leaseMs: 1_000 }),
      await tokens.reserve('tenant', 6, { leaseMs: 1_000 }),
    ]
    await fixture.advance(1_000)
    await one.void()
    await expectEnded(tokens.refund(two.id), 'expired')
    expect(await tokens.take('tenant', 50)).toMatchObject({ used: 50, held: 0 })
    await two.void()
    expect(await tokens.peek('tenant')).toMatchObject({ used: 50, held: 0 })
    await fixture.expectClean(tokens)
  })

  it('lets others be settled, and is not counted in their answer', async () => {
    const tokens = fixture.dibs.quota('tokens', daily)
    await tokens.reserve('tenant', 5, { leaseMs: 1_000 })
    const hold = await tokens.reserve('tenant', 6, { leaseMs: 2_000 })
    await fixture.advance(1_000)
    expect(await hold.settle(4)).toMatchObject({ used: 4, held: 0, remaining: 46 })
    await fixture.expectClean(tokens)
  })
})

describe('settled late', () => {
  const later = { 'in the same window': 1_000, 'in a later window': DAY, 'after maintenance': 4 * DAY }
  const open = (ifLate: 'take' | 'overdraw' | 'fail') =>
    fixture.dibs.quota('tokens', { ...daily, ifLate, keepMs: 30 * DAY })

  describe.each(Object.entries(later))('%s', (_, ms) => {
    const reserveAndWait = async (quota: ReturnType<typeof open>, amount = 30) => {
      const hold = await quota.reserve('tenant', amount, { leaseMs: 1_000 })
      await fixture.advance(ms)
      if (ms > DAY) expect((await fixture.dibs.maintain({ once: true })).quotasForgotten).toBe(1)
      return hold
    }

    it('is taken anew if it fits', async () => {
      const tokens = open('take')
      const hold = await reserveAndWait(tokens)
      expect(await hold.settle(20)).toMatchObject({ used: 20, held: 0, remaining: 30 })
      expect(await hold.settle(20)).toMatchObject({ used: 20 })
      await fixture.expectClean(tokens)
      expect(await tokens.refund(hold.id)).toEqual({ replayed: false })
      expect(await tokens.peek('tenant')).toMatchObject({ used: 0 })
      await fixture.expectClean(tokens)
    })

    it('is refused if it does not, and may be tried again', async () => {
      const tokens = open('take')
      const hold = await reserveAndWait(tokens)
      await tokens.take('tenant', 40, { id: 'event-1' })
      const error = await thrownBy(hold.settle(11))
      expect(error).toBeInstanceOf(QuotaExceededError)
      expect(error).toMatchObject({ subject: 'tenant', used: 40, held: 0, requested: 11, remaining: 10 })
      expect((error as QuotaExceededError).retryAfterMs).toBeGreaterThan(0)
      expect(await tokens.peek('tenant')).toMatchObject({ used: 40, held: 0 })
      await fixture.expectClean(tokens)
      await tokens.refund('event-1', { amount: 1 })
      expect(await hold.settle(11)).toMatchObject({ used: 50 })
      await fixture.expectClean(tokens)
    })

    it('with nothing, always fits', async () => {
      const tokens = open('take')
      const hold = await reserveAndWait(tokens)
      await tokens.take('tenant', 50)
      expect(await hold.settle(0, { limit: 10 })).toMatchObject({ used: 50 })
      await fixture.expectClean(tokens)
    })

    it('is no more than was reserved', async () => {
      const hold = await reserveAndWait(open('take'))
      expect(await thrownBy(hold.settle(31))).toBeInstanceOf(InvalidInputError)
    })

    it('is taken whatever fits, where the limit may be overdrawn', async () => {
      const tokens = open('overdraw')
      const hold = await reserveAndWait(tokens)
      await tokens.take('tenant', 40)
      expect(await hold.settle(20)).toMatchObject({ used: 60, remaining: 0 })
      expect(await fixture.rowOf('tenant')).toMatchObject({ used: 40, over: 20, most: 50 })
      for (const id of [undefined, 'event-1'])
        expect(await tokens.tryTake('tenant', 1, { id })).toMatchObject({ ok: false, used: 60 })
      await fixture.expectClean(tokens)
      // A refund reduces the overdrawn amount first.
      expect(await tokens.refund(hold.id, { amount: 15 })).toEqual({ replayed: false })
      expect(await fixture.rowOf('tenant')).toMatchObject({ used: 40, over: 5 })
      expect(await tokens.tryTake('tenant', 6)).toMatchObject({ ok: false, used: 45 })
      expect(await tokens.take('tenant', 5)).toMatchObject({ used: 50 })
      await fixture.expectClean(tokens)
    })

    it('is not owed by the window after', async () => {
      const tokens = open('overdraw')
      const hold = await reserveAndWait(tokens)
      await tokens.take('tenant', 40)
      await hold.settle(20)
      await fixture.advance(DAY)
      expect(await tokens.take('tenant', 50)).toMatchObject({ used: 50, remaining: 0 })
      expect(await fixture.rowOf('tenant')).toMatchObject({ used: 50, over: 0 })
      await fixture.expectClean(tokens)
    })

    it('does not overdraw what fits', async () => {
      const tokens = open('overdraw')
      const hold = await reserveAndWait(tokens)
      expect(await hold.settle(20)).toMatchObject({ used: 20, remaining: 30 })
      expect(await fixture.rowOf('tenant')).toMatchObject({ used: 20, over: 0 })
    })

    it('is refused where that was said', async () => {
      const tokens = open('fail')
      const hold = await reserveAndWait(tokens)
      await expectEnded(hold.settle(1), 'expired')
      expect(await tokens.peek('tenant')).toMatchObject({ used: 0, held: 0 })
      await fixture.expectClean(tokens)
    })
  })

  it('does not fit beside what others have reserved', async () => {
    const tokens = open('take')
    const hold = await tokens.reserve('tenant', 30, { leaseMs: 1_000 })
    await fixture.advance(1_000)
    await tokens.reserve('tenant', 25, { leaseMs: 5_000 })
    expect(await thrownBy(hold.settle(26))).toMatchObject({ used: 0, held: 25, retryAfterMs: 5_000 })
    expect(await hold.settle(25)).toMatchObject({ used: 25, held: 25, remaining: 0 })
    await fixture.expectClean(tokens)
  })

  it('says nothing of when it fits if it never does', async () => {
    const tokens = open('take')
    const hold = await tokens.reserve('tenant', 30, { leaseMs: 1_000 })
    await fixture.advance(1_000)
    const error = await thrownBy(hold.settle(30, { limit: 20 }))
    expect(error).toMatchObject({ limit: 20, requested: 30 })
    expect(error).not.toHaveProperty('retryAfterMs')
  })

  it('is not late while its reservation is alive, though its window is over: that one pays', async () => {
    const tokens = open('fail')
    const hold = await tokens.reserve('tenant', 30, { leaseMs: 2 * DAY })
    const other = await tokens.reserve('tenant', 10, { leaseMs: 2 * DAY })
    await fixture.advance(DAY)
    expect(await hold.settle(20)).toMatchObject({
      used: 0,
      held: 0,
      resetsAt: new Date('2026-03-12T00:00:00Z'),
    })
    expect(await tokens.take('tenant', 50)).toMatchObject({ used: 50, held: 0 })
    await other.void()
    await tokens.refund(hold.id)
    expect(await tokens.peek('tenant')).toMatchObject({ used: 50, held: 0 })
    await fixture.expectClean(tokens)
  })
})
