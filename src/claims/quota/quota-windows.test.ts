import { describe, expect, it } from 'vitest'
import { NOW, openQuotas } from '../../../test/claims/open-quotas.js'
import { until } from '../../../test/database.js'
import { movingClock } from '../../../test/moving-clock.js'
import { HoldEndedError, QuotaExceededError } from '../../errors.js'

const fixture = openQuotas()
const HOUR = 3_600_000
const DAY = 24 * HOUR
const daily = { limit: 50, per: 'day' } as const

describe('a window', () => {
  it('begins anew with nothing used', async () => {
    const points = fixture.dibs.quota('points', { limit: 50, per: 'day', timeZone: 'Europe/Berlin' })
    expect(await points.take('child', 50, { id: 'event-1' })).toMatchObject({
      ...{ startsAt: new Date('2026-03-09T23:00:00Z'), resetsAt: new Date('2026-03-10T23:00:00Z') },
    })
    await fixture.advance(11 * HOUR - 1)
    expect(await points.tryTake('child', 1)).toMatchObject({ ok: false, retryAfterMs: 1 })
    await fixture.advance(1)
    expect(await points.take('child', 20)).toMatchObject({
      ...{ used: 20, startsAt: new Date('2026-03-10T23:00:00Z'), resetsAt: new Date('2026-03-11T23:00:00Z') },
    })
    await fixture.expectClean(points)
  })

  it.each([
    ['hour', '2026-03-10T13:00:00Z'],
    ['day', '2026-03-11T00:00:00Z'],
    ['week', '2026-03-16T00:00:00Z'],
    ['month', '2026-04-01T00:00:00Z'],
    ['year', '2027-01-01T00:00:00Z'],
  ] as const)('may be an %s', async (per, resetsAt) => {
    const points = fixture.dibs.quota('points', { limit: 50, per })
    expect(await points.take('child', 5)).toMatchObject({ resetsAt: new Date(resetsAt) })
    expect(await points.peek('child')).toMatchObject({ used: 5, resetsAt: new Date(resetsAt) })
  })

  it('may be of any length, from any time', async () => {
    const points = fixture.dibs.quota('points', {
      ...{ limit: 50, perMs: 90_000, from: new Date(NOW.getTime() + 30_000) },
    })
    expect(await points.take('child', 5)).toMatchObject({
      startsAt: new Date(NOW.getTime() - 60_000),
      resetsAt: new Date(NOW.getTime() + 30_000),
    })
  })

  it('of one subject is by the zone that is said of it', async () => {
    const points = fixture.dibs.quota('points', daily)
    expect(await points.take('child', 5, { timeZone: 'Asia/Tokyo' })).toMatchObject({
      resetsAt: new Date('2026-03-10T15:00:00Z'),
    })
    expect(await points.take('other', 5)).toMatchObject({ resetsAt: new Date('2026-03-11T00:00:00Z') })
    expect(await points.peek('third', { timeZone: 'America/New_York' })).toMatchObject({
      resetsAt: new Date('2026-03-11T04:00:00Z'),
    })
  })

  it('lasts as it began: another zone counts from the next one on, and there is no gap', async () => {
    const zoned = (timeZone: string) => fixture.dibs.quota('points', { ...daily, timeZone })
    const [tokyo, york] = [zoned('Asia/Tokyo'), zoned('America/New_York')]
    await tokyo.take('child', 50)
    const ends = new Date('2026-03-10T15:00:00Z')
    expect(await york.tryTake('child', 1)).toMatchObject({ ok: false, resetsAt: ends })
    expect(await york.peek('child')).toMatchObject({ used: 50, resetsAt: ends })
    await fixture.advance(3 * HOUR)
    const next = { startsAt: ends, resetsAt: new Date('2026-03-11T04:00:00Z') }
    expect(await york.peek('child')).toMatchObject({ used: 0, ...next })
    expect(await york.take('child', 50)).toMatchObject({ used: 50, ...next })
    // Back again: the day of Tokyo that has begun meanwhile gives nothing.
    expect(await tokyo.tryTake('child', 1)).toMatchObject({ ok: false, ...next })
    await fixture.expectClean(york)
  })

  it('lasts as it began: so does another length', async () => {
    await fixture.dibs.quota('points', daily).take('child', 50)
    const yearly = fixture.dibs.quota('points', { limit: 50, per: 'year' })
    expect(await yearly.tryTake('child', 1)).toMatchObject({ ok: false, retryAfterMs: 12 * HOUR })
    await fixture.advance(12 * HOUR)
    expect(await yearly.take('child', 1)).toMatchObject({
      ...{ used: 1, startsAt: new Date('2026-03-11T00:00:00Z'), resetsAt: new Date('2027-01-01T00:00:00Z') },
    })
  })

  it('grants nothing twice when the clock goes back', async () => {
    const points = fixture.dibs.quota('points', daily)
    await points.take('child', 50)
    await fixture.advance(12 * HOUR)
    await points.take('child', 30)
    await fixture.advance(-12 * HOUR)
    expect(await points.tryTake('child', 21)).toMatchObject({
      ok: false,
      used: 30,
      retryAfterMs: 36 * HOUR,
    })
    expect(await points.take('child', 20)).toMatchObject({ used: 50 })
    await fixture.advance(12 * HOUR)
    expect(await points.tryTake('child', 1)).toMatchObject({ ok: false, used: 50 })
    await fixture.dibs.maintain({ once: true })
    expect(await points.tryTake('child', 1)).toMatchObject({ ok: false, used: 50 })
  })

  it.each(['take', 'settle'] as const)('is the one of the moment when its turn came: %s', async (call) => {
    const { pool, schema } = fixture
    const points = fixture.dibs.quota('points', { ...daily, waitMs: 10_000 })
    const clock = await movingClock(pool, schema.name, NOW)
    await points.take('child', 45)
    const hold = await points.reserve('child', 5, { leaseMs: 1_000 })
    const holder = await pool.connect()
    await holder.query(`begin; select from ${schema.name}.quota for update`)
    const waiting = call === 'take' ? points.take('child', 3) : hold.settle(3)
    await fixture.waiting(1)
    await clock.set(new Date(NOW.getTime() + 12 * HOUR))
    await holder.query('commit')
    holder.release()
    expect(await waiting).toMatchObject({ used: 3, held: 0, startsAt: new Date('2026-03-11T00:00:00Z') })
    await fixture.expectClean(points)
  })

  it('that is made is the one of the moment when its turn came', async () => {
    const { pool, schema } = fixture
    const points = fixture.dibs.quota('points', { ...daily, waitMs: 10_000 })
    const clock = await movingClock(pool, schema.name, NOW)
    const holder = await pool.connect()
    await holder.query('begin')
    await points.take('child', 1, { tx: holder })
    const waiting = fixture.other.quota('points', { ...daily, waitMs: 10_000 }).take('child', 3)
    await fixture.waiting(1)
    await clock.set(new Date(NOW.getTime() + 12 * HOUR))
    await holder.query('rollback')
    holder.release()
    expect(await waiting).toMatchObject({ used: 3, startsAt: new Date('2026-03-11T00:00:00Z') })
  })
})

describe('a stock', () => {
  it('never fills up by itself', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 10 })
    await stock.take('sku', 10)
    await fixture.advance(1_000 * DAY)
    await fixture.dibs.maintain({ once: true })
    expect(await stock.tryTake('sku', 1)).toMatchObject({ ok: false, used: 10 })
  })

  it('that becomes a window keeps what was used, and so does a window that becomes a stock', async () => {
    const stock = fixture.dibs.quota('points', { limit: 50 })
    const points = fixture.dibs.quota('points', daily)
    const resetsAt = new Date('2026-03-11T00:00:00Z')
    await stock.take('child', 30, { id: 'event-1' })
    await stock.reserve('child', 5, { id: 'hold-1' })
    expect(await points.peek('child')).toMatchObject({ used: 30, held: 5, resetsAt })
    expect(await points.tryTake('child', 20)).toMatchObject({ ok: false, used: 30, resetsAt })
    expect(await points.take('child', 10)).toMatchObject({ used: 40, held: 5, resetsAt })
    expect(await stock.peek('child')).toEqual({ limit: 50, used: 40, held: 5, remaining: 5 })
    expect(await stock.take('child', 5)).not.toHaveProperty('resetsAt')
    await points.refund('event-1', { amount: 20 })
    await points.settle('hold-1', 5)
    await fixture.expectClean(points)
    expect(await points.take('child', 20)).toMatchObject({ used: 50, resetsAt })
    await fixture.advance(DAY)
    expect(await points.take('child', 1)).toMatchObject({ used: 1 })
    await fixture.expectClean(points)
  })
})

describe('maintenance', () => {
  const entries = async (): Promise<string[]> =>
    (await fixture.pool.query(`select id from ${fixture.schema.name}.quota_entry order by id`)).rows.map(
      ({ id }) => id,
    )

  it('removes windows a day after their end, and ids when they may be forgotten', async () => {
    const points = fixture.dibs.quota('points', { ...daily, keepMs: 36 * HOUR })
    await points.take('child', 5, { id: 'event-1' })
    await points.reserve('child', 5, { id: 'hold-1', leaseMs: 1_000 })
    await points.take('other', 5)
    await fixture.advance(36 * HOUR - 1)
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 0 })
    await fixture.advance(1)
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 2 })
    expect(await fixture.rowOf('child')).toBeUndefined()
    expect(await entries()).toEqual(['event-1', 'hold-1'])
    expect(await points.take('child', 5, { id: 'event-1' })).toMatchObject({ replayed: true, used: 0 })
    await fixture.advance(12 * HOUR - 1)
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 0 })
    await fixture.advance(1)
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 2 })
    expect(await entries()).toEqual([])
    // The id is forgotten, so the take counts as a new one.
    expect(await points.take('child', 5, { id: 'event-1' })).toMatchObject({ replayed: false, used: 5 })
    await expect(points.settle('hold-1', 1)).rejects.toThrow(HoldEndedError)
    await fixture.expectClean(points)
  })

  it('forgets the ids of a stock, and what they took stays taken', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 50, keepMs: 1_000 })
    await stock.take('sku', 10)
    await stock.take('sku', 5, { id: 'order-1' })
    await stock.take('sku', 6, { id: 'order-2' })
    await stock.refund('order-2', { amount: 4 })
    await stock.reserve('sku', 7, { id: 'hold-1', leaseMs: 500 })
    await stock.reserve('sku', 8, { id: 'hold-2', leaseMs: 5_000 })
    const hold = await stock.reserve('sku', 9, { id: 'hold-3', leaseMs: 5_000 })
    await hold.settle(3)
    await fixture.advance(1_000)
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 4 })
    // The open hold stays.
    expect(await entries()).toEqual(['hold-2'])
    expect(await stock.peek('sku')).toMatchObject({ used: 20, held: 8 })
    expect(await fixture.rowOf('sku')).toMatchObject({ used: 20, held: 8, unlisted: 20 })
    await fixture.expectClean(stock)
    expect(await stock.settle('hold-2', 8)).toMatchObject({ used: 28, held: 0 })
    await fixture.expectClean(stock)
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 1 })
    await fixture.expectClean(stock)
  })

  it('forgets a batch of one subject at once', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 50, keepMs: 1_000 })
    for (let n = 0; n < 30; n++) await stock.take('sku', 1, { id: `order-${n}` })
    await fixture.advance(1_000)
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 30 })
    expect(await fixture.rowOf('sku')).toMatchObject({ used: 30, unlisted: 30 })
    await fixture.expectClean(stock)
  })

  it('passes over what another has locked, and comes to the rest', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 50, keepMs: 1_000 })
    await stock.take('locked', 1, { id: 'order-1' })
    await fixture.advance(1)
    await stock.take('free', 1, { id: 'order-2' })
    await fixture.advance(1_000)
    const other = await fixture.pool.connect()
    try {
      await other.query('begin')
      await stock.take('locked', 1, { tx: other })
      const batch = `select * from ${fixture.schema.name}.quota_delete_expired(1)`
      expect((await fixture.pool.query(batch)).rows).toEqual([{ count: 1, is_busy: false }])
      expect((await fixture.pool.query(batch)).rows).toEqual([{ count: 0, is_busy: true }])
      expect(await entries()).toEqual(['order-1'])
      await other.query('commit')
    } finally {
      other.release()
    }
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 1 })
    await fixture.expectClean(stock)
  })

  it('passes over any number of a subject that another has locked', async () => {
    const { pool, schema } = fixture
    const stock = fixture.dibs.quota('stock', { limit: 50, keepMs: 1_000 })
    for (let n = 0; n < 30; n++) await stock.take('locked', 1, { id: `order-${n}` })
    await stock.take('free', 1, { id: 'last' })
    await fixture.advance(2_000)
    const other = await pool.connect()
    try {
      await other.query('begin')
      await stock.take('locked', 1, { tx: other })
      const { rows } = await pool.query(`select * from ${schema.name}.quota_delete_expired(1)`)
      expect(rows).toEqual([{ count: 1, is_busy: false }])
      expect(await entries()).not.toContain('last')
    } finally {
      await other.query('rollback')
      other.release()
    }
    await fixture.expectClean(stock)
  })

  it('comes back to a subject that others have just then', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 50, keepMs: 1_000 })
    await stock.take('sku', 1, { id: 'order-1' })
    await fixture.advance(2_000)
    const other = await fixture.pool.connect()
    try {
      await other.query('begin')
      await stock.take('sku', 1, { tx: other })
      const forgotten = fixture.dibs.maintain({ once: true })
      const asked = `select from pg_stat_activity where query like '%${fixture.schema.name}%quota_delete_expired%' and pid <> pg_backend_pid()`
      await until(async () => (await fixture.pool.query(asked)).rowCount !== 0, 'maintenance')
      await other.query('commit')
      expect(await forgotten).toMatchObject({ quotasForgotten: 1 })
    } finally {
      other.release()
    }
    await fixture.expectClean(stock)
  })

  it('needs no row for ids of windows that are over', async () => {
    const points = fixture.dibs.quota('points', { ...daily, keepMs: 1_000 })
    await points.take('child', 5, { id: 'event-1' })
    await points.reserve('child', 3, { id: 'hold-1', leaseMs: 1_000 })
    await fixture.advance(2 * DAY)
    await points.take('child', 1, { id: 'event-2' })
    await fixture.dibs.transaction(async (tx) => {
      await points.take('child', 1, { tx })
      expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 2 })
    })
    expect(await entries()).toEqual(['event-2'])
    await fixture.expectClean(points)
  })

  it('keeps for ever what it was told to', async () => {
    const points = fixture.dibs.quota('points', { ...daily, keepMs: Number.POSITIVE_INFINITY })
    await points.take('child', 5, { id: 'event-1' })
    await fixture.advance(5_000 * DAY)
    await fixture.dibs.maintain({ once: true })
    expect(await entries()).toEqual(['event-1'])
    expect(await points.take('child', 5, { id: 'event-1' })).toMatchObject({ replayed: true })
  })

  it('keeps ids for a day after their window, and of a stock for thirty, where nothing is said', async () => {
    await fixture.dibs.quota('points', daily).take('child', 5, { id: 'event-1' })
    await fixture.dibs.quota('stock', { limit: 5 }).take('sku', 5, { id: 'order-1' })
    await fixture.advance(36 * HOUR - 1)
    await fixture.dibs.maintain({ once: true })
    expect(await entries()).toEqual(['event-1', 'order-1'])
    await fixture.advance(1)
    await fixture.dibs.maintain({ once: true })
    expect(await entries()).toEqual(['order-1'])
    await fixture.advance(30 * DAY - 36 * HOUR - 1)
    await fixture.dibs.maintain({ once: true })
    expect(await entries()).toEqual(['order-1'])
    await fixture.advance(1)
    await fixture.dibs.maintain({ once: true })
    expect(await entries()).toEqual([])
  })

  it('knows an id that was settled late for as long after the window that pays', async () => {
    const points = fixture.dibs.quota('points', daily)
    const stock = fixture.dibs.quota('stock', { limit: 10, keepMs: 2 * DAY })
    const [hold, piece] = [
      await points.reserve('child', 5, { leaseMs: 1_000 }),
      await stock.reserve('sku', 5, { leaseMs: 1_000 }),
    ]
    await fixture.advance(DAY)
    await hold.settle(5)
    await piece.settle(5)
    await fixture.advance(36 * HOUR - 1)
    await fixture.dibs.maintain({ once: true })
    expect(await entries()).toEqual([hold.id])
    expect(await points.refund(hold.id)).toEqual({ replayed: false })
    await fixture.advance(1)
    await fixture.dibs.maintain({ once: true })
    expect(await entries()).toEqual([])
    await fixture.expectClean(points, stock)
  })

  it('waits for nobody', async () => {
    const points = fixture.dibs.quota('points', { ...daily, keepMs: 1_000, waitMs: 5_000 })
    const hold = await points.reserve('child', 5, { id: 'hold-1', leaseMs: 1_000 })
    await points.take('other', 5, { id: 'event-1' })
    await fixture.advance(2 * DAY)
    // Its row is gone by then, and its entry locked.
    const { schema, pool } = fixture
    await pool.query(`delete from ${schema.name}.quota where subject = 'child'`)
    await fixture.dibs.transaction(async (tx) => {
      await hold.settle(5, { tx })
      await tx.query(`select from ${schema.name}.quota where subject = 'other' for update`)
      expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 0 })
    })
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ quotasForgotten: 2 })
    await fixture.expectClean(points)
  })

  it('removes no more at once than it was told to', async () => {
    const { pool, schema } = fixture
    const points = fixture.dibs.quota('points', daily)
    for (const subject of ['a', 'b', 'c']) await points.take(subject, 1, { id: subject })
    await fixture.advance(3 * DAY)
    const { rows } = await pool.query(`select * from ${schema.name}.quota_delete_expired(2)`)
    expect(rows).toEqual([{ count: 4, is_busy: false }])
    expect(await entries()).toHaveLength(1)
    for (const subject of ['a', 'b']) await points.take(subject, 1, { id: `${subject} again` })
    await fixture.advance(3 * DAY)
    await pool.query(`delete from ${schema.name}.quota`)
    expect((await pool.query(`select * from ${schema.name}.quota_delete_expired(2)`)).rows).toEqual([
      { count: 2, is_busy: false },
    ])
    expect(await entries()).toHaveLength(1)
    const stock = fixture.dibs.quota('stock', { limit: 50, keepMs: 1_000 })
    for (const id of ['d', 'e', 'f']) await stock.take('sku', 1, { id })
    await fixture.advance(2_000)
    await pool.query(`select * from ${schema.name}.quota_delete_expired(2)`)
    expect(await entries()).toHaveLength(2)
    await fixture.expectClean(stock)
  })

  it('does not wait for an id that another has locked, though its row is free', async () => {
    const { pool, schema } = fixture
    const stock = fixture.dibs.quota('stock', { limit: 50, keepMs: 1_000 })
    for (const id of ['a', 'b']) await stock.take('sku', 1, { id })
    await fixture.advance(2_000)
    await fixture.dibs.transaction(async (tx) => {
      await tx.query(`select from ${schema.name}.quota_entry where id = 'a' for update`)
      const { rows } = await pool.query(`select * from ${schema.name}.quota_delete_expired(2)`)
      expect(rows).toEqual([{ count: 1, is_busy: true }])
    })
    expect(await entries()).toEqual(['a'])
    await fixture.expectClean(stock)
  })
})

describe('a window that begins when another has begun that was forgotten', () => {
  const MONDAY = new Date('2026-03-09T12:00:00Z')
  const rules = {
    daily: { limit: 10, per: 'day', keepMs: 30 * DAY },
    weekly: { limit: 10, per: 'week' },
  } as const

  it('does not count what was used or reserved in that', async () => {
    await fixture.schema.clock.freeze(MONDAY)
    const daily = fixture.dibs.quota('points', rules.daily)
    await daily.take('child', 5, { id: 'monday' })
    await daily.reserve('child', 5, { id: 'hold-1', leaseMs: 60_000 })
    await fixture.advance(2.6 * DAY)
    await fixture.dibs.maintain({ once: true })
    expect(await fixture.rowOf('child')).toBeUndefined()

    const weekly = fixture.dibs.quota('points', rules.weekly)
    const hold = await weekly.reserve('child', 4, { leaseMs: 60_000 })
    await weekly.take('child', 6)
    expect((await weekly.peek('child')).resetsAt).toEqual(new Date('2026-03-16T00:00:00Z'))
    expect(await weekly.refund('monday')).toEqual({ replayed: false })
    await expect(weekly.take('child', 1)).rejects.toThrow(QuotaExceededError)
    await fixture.advance(120_000)
    expect(await weekly.peek('child')).toMatchObject({ used: 6, held: 0 })
    await weekly.take('child', 4)
    await expect(hold.settle(1)).rejects.toThrow(QuotaExceededError)
    await fixture.expectClean(weekly)
    await fixture.advance(60 * DAY)
    await fixture.dibs.maintain({ once: true })
    await fixture.expectClean(weekly)
  })

  it('nor one that a clock has begun which was a month ahead', async () => {
    await fixture.schema.clock.freeze(MONDAY)
    const daily = fixture.dibs.quota('points', rules.daily)
    await daily.reserve('child', 5, { id: 'hold-1', leaseMs: 60_000 })
    await daily.take('child', 3, { id: 'event-1' })
    await fixture.advance(20 * DAY)
    await fixture.dibs.maintain({ once: true })
    await fixture.schema.clock.freeze(new Date(MONDAY.getTime() + HOUR))
    await daily.reserve('child', 4, { leaseMs: 60_000 })
    await fixture.advance(120_000)
    await daily.take('child', 1)
    expect(await daily.peek('child')).toMatchObject({ used: 1, held: 0 })
    await fixture.expectClean(daily)
  })
})

it('what is refused after a wait is refused by the time that it is then', async () => {
  const points = fixture.dibs.quota('points', { limit: 10, per: 'day', waitMs: 10_000 })
  const clock = await movingClock(fixture.pool, fixture.schema.name, new Date('2026-06-10T23:59:00Z'))
  await points.take('child', 1)
  const other = await fixture.pool.connect()
  try {
    await other.query('begin')
    await points.take('child', 9, { tx: other })
    const waiting = points.tryTake('child', 1)
    await expect
      .poll(async () => {
        const { rows } = await fixture.pool.query(
          "select from pg_stat_activity where wait_event_type = 'Lock' and strpos(query, $1) > 0",
          [fixture.schema.name],
        )
        return rows.length
      })
      .toBeGreaterThan(0)
    await clock.set(new Date('2026-06-11T00:01:00Z'))
    await other.query('commit')
    expect(await waiting).toMatchObject({ ok: true, used: 1 })
  } finally {
    other.release()
  }
})
