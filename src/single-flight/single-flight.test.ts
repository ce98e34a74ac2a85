import { describe, expect, it, vi } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { realTime } from '../../test/real-time.js'
import { heldLoad } from '../../test/single-flight/held-load.js'
import type { Dibs } from '../dibs.js'
import {
  BusinessRuleError,
  BusyError,
  InvalidOutcomeError,
  PermanentError,
  StoredValueError,
  TransientError,
} from '../errors.js'
import { Database } from '../postgres/database.js'
import type { StandardSchema } from '../postgres/standard-schema.js'
import { Wakeups } from '../postgres/wakeups.js'
import { countTraffic } from '../testing/count-traffic.js'
import type { LoadContext } from './flight-spec.js'
import { beginFlight } from './flight-statements.js'

const fixture = openClaims()
const MINUTE_MS = 60_000
const flightRow = async (key = 'k') => {
  const { rows } = await fixture.pool.query(`select * from ${fixture.schema.name}.flight where key = $1`, [
    key,
  ])
  return rows[0]
}
const isWanted = async (key = 'k'): Promise<boolean> => {
  const { rows } = await fixture.pool.query(
    `select from ${fixture.schema.name}.lock where name = $1 and wanted_until > ${fixture.schema.name}.clock()`,
    [`flight:${key}`],
  )
  return rows.length > 0
}
const errorOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => undefined,
    (reason) => reason,
  )
const get = (dibs: Dibs, value: unknown, options = {}) =>
  dibs.singleFlight('k', { ttlMs: MINUTE_MS, ...options }, async () => value)

/** Reads numbers, as dates. */
const dates: StandardSchema<unknown, Date> = {
  '~standard': {
    version: 1,
    vendor: 'test',
    validate: (value: unknown) =>
      typeof value === 'number'
        ? { value: new Date(value), issues: undefined }
        : { issues: [{ message: 'no number' }] },
  },
}

describe('one load for all', () => {
  it('of one process, each with a value of its own', async () => {
    const held = heldLoad({ rate: [1.08] })
    const first = fixture.dibs.singleFlight('k', held.load)
    await held.begun
    const others = [1, 2, 3].map(() => fixture.dibs.singleFlight('k', held.load))
    held.land()
    const values = await Promise.all([first, ...others])
    expect(values).toEqual(Array(4).fill({ rate: [1.08] }))
    expect(new Set(values).size).toBe(4)
    expect(held.count).toBe(1)
  })

  it('of two processes, and the lead is free afterwards', async () => {
    const held = heldLoad('v')
    const first = fixture.dibs.singleFlight('k', held.load)
    await held.begun
    const second = fixture.other.singleFlight('k', held.load)
    await until(isWanted, 'the other to wait')
    expect(await fixture.dibs.locks.list({ prefix: 'flight:' })).toMatchObject({
      items: [{ name: 'flight:k' }],
    })
    held.land()
    expect(await Promise.all([first, second])).toEqual(['v', 'v'])
    expect(held.count).toBe(1)
    expect(await fixture.dibs.locks.inspect('flight:k')).toEqual([])
  })

  it('and nothing of it afterwards, unless it is kept', async () => {
    expect(await fixture.dibs.singleFlight('k', async () => 1)).toBe(1)
    expect(await fixture.dibs.singleFlight('k', async () => 2)).toBe(2)
    expect(await get(fixture.dibs, 3)).toBe(3)
    expect(await get(fixture.other, 4)).toBe(3)
    await fixture.schema.clock.advance(MINUTE_MS + 1)
    expect(await get(fixture.other, 5)).toBe(5)
  })

  it('whoever comes when a load has ended and is not kept begins another, or waits for that', async () => {
    await fixture.dibs.singleFlight('k', async () => 0)
    const held = heldLoad(1)
    const first = fixture.dibs.singleFlight('k', held.load)
    await held.begun
    const waiting = fixture.other.singleFlight('k', async () => 2)
    await until(isWanted, 'the other to wait')
    held.land()
    expect([await first, await waiting]).toEqual([1, 1])
    expect(await fixture.other.singleFlight('k', async () => 3)).toBe(3)
  })

  it('and a caller that waits for it does not get the earlier value, however often it polls', async () => {
    await fixture.dibs.singleFlight('k', async () => 0)
    const send = vi.spyOn(Database.prototype, 'send')
    try {
      const held = heldLoad(1)
      const first = fixture.dibs.singleFlight('k', held.load)
      await held.begun
      const waiting = fixture.other.singleFlight('k', async () => 2)
      const polls = () => send.mock.calls.filter(([statement]) => statement === beginFlight).length
      // A caller polls again only after a poll that returned no value.
      await until(() => polls() >= 4, 'it to poll again')
      held.land()
      expect(await Promise.all([first, waiting])).toEqual([1, 1])
    } finally {
      send.mockRestore()
    }
  })

  it('whatever JSON can say, and nothing at all', async () => {
    for (const value of [null, undefined, 0, '', false, [], { a: null, date: new Date(0) }]) {
      await fixture.dibs.singleFlight.forget('k')
      const stored = value === undefined ? undefined : JSON.parse(JSON.stringify(value))
      expect(await get(fixture.dibs, value)).toEqual(stored)
      expect(await get(fixture.other, 'another')).toEqual(stored)
    }
  })

  it('read by a schema, for whoever has loaded it as for the others', async () => {
    const result = dates
    const options = { ttlMs: MINUTE_MS, result }
    expect(await fixture.dibs.singleFlight('k', options, async () => 7)).toEqual(new Date(7))
    const other: Date = await fixture.other.singleFlight('k', options, async () => 8)
    expect(other).toEqual(new Date(7))
  })
})

describe('a value that does not fit `result`', () => {
  const kept = { ttlMs: MINUTE_MS, staleMs: MINUTE_MS }

  it('is not stored: whoever loads, and those who wait, are told so, and the next loads', async () => {
    const held = heldLoad<unknown>('x')
    const first = errorOf(fixture.dibs.singleFlight('k', { ...kept, result: dates }, held.load))
    await held.begun
    const same = errorOf(fixture.dibs.singleFlight('k', kept, held.load))
    const elsewhere = errorOf(fixture.other.singleFlight('k', kept, held.load))
    await until(isWanted, 'the other to wait')
    held.land()
    const error = await first
    expect(error).toBeInstanceOf(InvalidOutcomeError)
    expect(error).toMatchObject({
      message: '`value` does not fit its schema, and is not stored: no number.',
    })
    expect(await same).toBe(error)
    expect(await elsewhere).toMatchObject({ cause: { name: 'InvalidOutcomeError' } })
    expect(await flightRow()).toMatchObject({ fence: '0', value: null })
    expect(await get(fixture.other, 7, { result: dates })).toEqual(new Date(7))
  })

  it('and is loaded in the background leaves the old one there', async () => {
    await get(fixture.dibs, 7, { ttlMs: 1_000, staleMs: 10 * MINUTE_MS })
    await fixture.schema.clock.advance(2_000)
    const events = await fixture.eventsOf(async (told) => {
      expect(await get(fixture.dibs, 'x', { result: dates })).toEqual(new Date(7))
      await until(() => told.length > 0, 'it to fail')
    })
    expect(events).toMatchObject([['dibs:flight.failed', { isBackground: true }]])
    expect(await flightRow()).toMatchObject({ value: 7 })
  })

  it('and is loaded for its caller alone is told in the same way', async () => {
    const held = heldLoad(7)
    const theirs = fixture.other.singleFlight('k', held.load)
    await held.begun
    const own = await errorOf(get(fixture.dibs, 'x', { result: dates, waitMs: 0, ifBusy: 'load' }))
    held.land()
    await theirs
    expect(own).toBeInstanceOf(InvalidOutcomeError)
  })

  it('and is there from another release is loaded anew, once for all who find it', async () => {
    await get(fixture.dibs, 'old shape', kept)
    const load = vi.fn(async () => 7)
    const events = await fixture.eventsOf(async () => {
      const calls = [fixture.dibs, fixture.dibs, fixture.other].map((dibs) =>
        dibs.singleFlight('k', { ...kept, result: dates }, load),
      )
      expect(await Promise.all(calls)).toEqual(Array(3).fill(new Date(7)))
    })
    expect(load).toHaveBeenCalledTimes(1)
    expect(events.map(([name]) => name)).toContain('dibs:flight.unfit')
    expect(await get(fixture.other, 8)).toBe(7)
  })

  it('and was replaced meanwhile is not taken for the newer one', async () => {
    await get(fixture.dibs, 'old shape')
    const { fence } = await flightRow()
    await fixture.schema.clock.advance(MINUTE_MS + 1)
    await get(fixture.other, 7)
    await fixture.pool.query(`select ${fixture.schema.name}.flight_reject('k', $1, 1000)`, [fence])
    expect(await get(fixture.dibs, 8)).toBe(7)
  })

  it('and comes again from others is told, with what to do', async () => {
    await get(fixture.dibs, 'old shape')
    const held = heldLoad('old shape')
    const read = vi.fn(dates['~standard'].validate)
    const result = { '~standard': { ...dates['~standard'], validate: read } }
    const [theirs, ours] = [deferred<Promise<unknown>>(), deferred()]
    read.mockImplementationOnce(async (value) => {
      // Before it has come to take the lead, another release has.
      await fixture.other.singleFlight.forget('k')
      theirs.resolve(fixture.other.singleFlight('k', held.load))
      await held.begun
      ours.resolve()
      return dates['~standard'].validate(value)
    })
    const call = errorOf(get(fixture.dibs, 7, { result }))
    await ours.promise
    await until(isWanted, 'it to wait')
    held.land()
    expect(await theirs.promise).toBe('old shape')
    const error = await call
    expect(error).toBeInstanceOf(StoredValueError)
    expect(StoredValueError.entry.remedy).toContain('change its key')
  })

  it('and a schema that throws fails the load', async () => {
    const mistake = new Error('no schema')
    const validate = () => {
      throw mistake
    }
    const result = { '~standard': { ...dates['~standard'], validate } }
    expect(await errorOf(get(fixture.dibs, 7, { result }))).toBe(mistake)
    expect(await flightRow()).toMatchObject({ value: null })
  })
})

describe('a hint', () => {
  it('is sent when a load has ended that somebody waits for, and else not', async () => {
    const notify = vi.spyOn(Wakeups.prototype, 'notify')
    try {
      await get(fixture.dibs, 1, { ttlMs: 0 })
      expect(notify).not.toHaveBeenCalled()
      const held = heldLoad(1)
      const first = fixture.dibs.singleFlight('k', held.load)
      await held.begun
      const second = fixture.other.singleFlight('k', held.load)
      await until(isWanted, 'the other to wait')
      held.land()
      await Promise.all([first, second])
      expect(notify.mock.calls).toEqual([['lock:flight:k']])
    } finally {
      notify.mockRestore()
    }
  })
})

describe('round trips', () => {
  it('one for a value that is there, which writes nothing; two for one that is loaded', async () => {
    await fixture.dibs.now()
    const cold = await countTraffic(fixture.pool, () => get(fixture.dibs, 1))
    expect(cold.roundTrips).toBe(2)
    const before = await flightRow()
    const hot = await countTraffic(fixture.pool, () => get(fixture.dibs, 2, { refreshEarly: 0 }))
    expect([hot.value, hot.roundTrips]).toEqual([1, 1])
    expect(await flightRow()).toEqual(before)
  })

  it('are shared: two for any number of callers at a time, of what is there', async () => {
    await get(fixture.dibs, { n: 1 })
    const many = await countTraffic(fixture.pool, () =>
      Promise.all(Array.from({ length: 100 }, () => get(fixture.dibs, 2, { refreshEarly: 0 }))),
    )
    expect(many.value).toEqual(Array(100).fill({ n: 1 }))
    // Each has its own, and may change it.
    expect(new Set(many.value).size).toBe(100)
    expect(many.roundTrips).toBeLessThanOrEqual(2)
  })

  it('that a hundred in one process need for one load are two', async () => {
    await fixture.dibs.now()
    let loads = 0
    const load = async () => ++loads
    const many = await countTraffic(fixture.pool, () =>
      Promise.all(Array.from({ length: 100 }, () => fixture.dibs.singleFlight('k', load))),
    )
    expect(new Set(many.value)).toEqual(new Set([1]))
    expect([many.roundTrips, loads]).toEqual([2, 1])
  })
})

describe('a load that fails', () => {
  it('fails for those who wait, here with the same error, elsewhere with what it says; and is not kept', async () => {
    const held = heldLoad(1)
    const first = errorOf(fixture.dibs.singleFlight('k', held.load))
    await held.begun
    const same = errorOf(fixture.dibs.singleFlight('k', held.load))
    const elsewhere = errorOf(fixture.other.singleFlight('k', held.load))
    await until(isWanted, 'the other to wait')
    const error = Object.assign(new TypeError('no network'), { code: 'ENET', host: 'x' })
    held.fail(error)
    expect(await first).toBe(error)
    expect(await same).toBe(error)
    const told = await elsewhere
    expect(told).toBeInstanceOf(TransientError)
    expect(told).toMatchObject({
      ...{ message: 'no network', host: 'x', replayed: true, retryable: true, status: 503 },
      cause: { name: 'TypeError', message: 'no network', code: 'ENET' },
    })
    expect(held.count).toBe(1)
    expect(await get(fixture.other, 2)).toBe(2)
  })

  it('is nothing to those who wait for one that has ended well before', async () => {
    const bounds = { ttlMs: 1, staleMs: 10 * MINUTE_MS }
    const held = heldLoad('good')
    const first = fixture.dibs.singleFlight('k', bounds, held.load)
    await held.begun
    await fixture.beside(async (deaf) => {
      const waiting = deaf.singleFlight('k', bounds, held.load)
      await until(isWanted, 'the other to wait')
      held.land()
      await first
      await fixture.pool.query(
        `update ${fixture.schema.name}.flight set failed_fence = fence + 1, failure = '{"name": "Error", "message": "later"}', fresh_until = '-infinity'`,
      )
      expect(await waiting).toBe('good')
    })
  })

  it('says elsewhere whether it is for good', async () => {
    for (const error of [new PermanentError('gone'), new BusinessRuleError('no', 'rule')]) {
      const held = heldLoad(1)
      const first = errorOf(fixture.dibs.singleFlight('k', held.load))
      await held.begun
      const elsewhere = errorOf(fixture.other.singleFlight('k', held.load))
      await until(isWanted, 'the other to wait')
      held.fail(error)
      expect(await first).toBe(error)
      expect(await elsewhere).toBeInstanceOf(error.constructor)
      expect(await elsewhere).toMatchObject({ message: error.message, retryable: false })
      await fixture.pool.query(`delete from ${fixture.schema.name}.lock`)
    }
  })

  it('is kept if so asked for, for everybody, and then tried again', async () => {
    const fail = async () => {
      throw new Error('down')
    }
    await expect(fixture.dibs.singleFlight('k', { errorTtlMs: MINUTE_MS }, fail)).rejects.toThrow('down')
    await expect(get(fixture.other, 1)).rejects.toThrow('down')
    await fixture.schema.clock.advance(MINUTE_MS + 1)
    expect(await get(fixture.other, 2)).toBe(2)
  })

  it('and then one that does not: the failure is over', async () => {
    const fail = async () => {
      throw new Error('down')
    }
    await expect(fixture.dibs.singleFlight('k', { errorTtlMs: MINUTE_MS }, fail)).rejects.toThrow('down')
    await fixture.dibs.singleFlight.forget('k')
    expect(await get(fixture.other, 1, { ttlMs: 1_000 })).toBe(1)
    await fixture.schema.clock.advance(2_000)
    expect(await get(fixture.other, 2)).toBe(2)
  })

  it('since what it returned cannot be kept: everybody is told so', async () => {
    const begun = deferred()
    const gate = deferred()
    const load = async (): Promise<unknown> => {
      begun.resolve()
      await gate.promise
      return { x: 1n }
    }
    const first = errorOf(fixture.dibs.singleFlight('k', load))
    await begun.promise
    const elsewhere = errorOf(fixture.other.singleFlight('k', load))
    await until(isWanted, 'the other to wait')
    gate.resolve()
    expect(await first).toBeInstanceOf(InvalidOutcomeError)
    expect(await elsewhere).toMatchObject({ cause: { name: 'InvalidOutcomeError' } })
    const large = errorOf(fixture.dibs.singleFlight('large', async () => 'x'.repeat(2 ** 20)))
    expect(await large).toMatchObject({
      message: expect.stringMatching(/at most 1048576 bytes as JSON, and is/),
    })
  })

  it('or throws before it returns a promise', async () => {
    const load = () => {
      throw new Error('at once')
    }
    await expect(fixture.dibs.singleFlight('k', load)).rejects.toThrow('at once')
    expect(await fixture.dibs.locks.inspect('flight:k')).toEqual([])
  })
})

describe('a wait that is over', () => {
  /** Somebody else loads, and does not end; until `fn` has. */
  async function whileAnotherLoads(fn: () => Promise<void>): Promise<void> {
    const held = heldLoad('theirs')
    const theirs = fixture.other.singleFlight('k', { ttlMs: MINUTE_MS }, held.load)
    await held.begun
    await fn().finally(held.land)
    expect(await theirs).toBe('theirs')
  }

  it('is a BusyError that may be retried, also for whoever was not to wait', realTime, async () => {
    await whileAnotherLoads(async () => {
      const startedAt = performance.now()
      const error = await errorOf(get(fixture.dibs, 1, { waitMs: 1_000 }))
      expect(error).toBeInstanceOf(BusyError)
      expect(error).toMatchObject({ retryable: true, subject: 'the load of "k" in another process' })
      expect(error).toMatchObject({ holder: expect.any(String), leaseUntil: expect.any(Date) })
      expect((error as BusyError).waitedMs).toBeGreaterThanOrEqual(999)
      expect(performance.now() - startedAt).toBeLessThan(5_000)
      expect(await errorOf(get(fixture.dibs, 1, { waitMs: 0 }))).toMatchObject({ waitedMs: 0 })
      // Also beside one of the same process, which waits or loads.
      const beside = await errorOf(get(fixture.other, 1, { waitMs: 0 }))
      expect(beside).toBeInstanceOf(BusyError)
      expect(beside).toMatchObject({ waitedMs: 0, subject: 'the load of "k" in this process' })
      const behind = await errorOf(get(fixture.other, 1, { waitMs: 50 }))
      expect(behind).toMatchObject({ retryAfterMs: 100, subject: 'the load of "k" in this process' })
    })
    expect(await get(fixture.dibs, 1)).toBe('theirs')
  })

  it('says so if all connections were in use', async () => {
    await fixture.beside(
      async (dibs, pool) => {
        const client = await pool.connect()
        const error = await errorOf(get(dibs, 1, { waitMs: 200 }))
        client.release()
        expect(error).toBeInstanceOf(BusyError)
        expect(error).toMatchObject({ subject: 'a connection of the pool (max 1, all in use)' })
      },
      { max: 1 },
    )
  })

  it('is a load of its own, which is nobody else’s, if so asked for', async () => {
    await whileAnotherLoads(async () => {
      const contexts: unknown[] = []
      const load = async (context: unknown) => {
        contexts.push(context)
        return { at: new Date(0) }
      }
      const value = await fixture.dibs.singleFlight('k', { waitMs: 50, ifBusy: 'load' }, load)
      expect(value).toEqual({ at: '1970-01-01T00:00:00.000Z' })
      expect(contexts).toMatchObject([{ key: 'k', fence: undefined }])
      await fixture.dibs.singleFlight('k', { waitMs: 0, ifBusy: 'load' }, load)
      expect(new Set(contexts.map((context) => (context as LoadContext).signal)).size).toBe(2)
      expect(await flightRow()).toBeUndefined()
    })
  })

  it('is the last value, however old, if so asked for and there is one', async () => {
    await whileAnotherLoads(async () => {
      expect(await errorOf(get(fixture.dibs, 1, { waitMs: 50, ifBusy: 'serve-stale' }))).toBeInstanceOf(
        BusyError,
      )
    })
    await fixture.schema.clock.advance(2 * MINUTE_MS)
    await whileAnotherLoads(async () => {
      expect(await get(fixture.dibs, 1, { waitMs: 50, ifBusy: 'serve-stale' })).toBe('theirs')
    })
    await fixture.dibs.singleFlight.forget('k')
    await whileAnotherLoads(async () => {
      expect(await errorOf(get(fixture.dibs, 1, { waitMs: 50, ifBusy: 'serve-stale' }))).toBeInstanceOf(
        BusyError,
      )
    })
  })

  it('is no last value that does not fit `result`', async () => {
    await get(fixture.dibs, 'old shape', { ttlMs: 1_000 })
    await fixture.schema.clock.advance(2_000)
    await whileAnotherLoads(async () => {
      const bounds = { waitMs: 50, ifBusy: 'serve-stale', result: dates }
      expect(await errorOf(get(fixture.dibs, 1, bounds))).toBeInstanceOf(BusyError)
    })
  })

  it('gives a schema that changes what it reads the value as it is, once', async () => {
    const count: StandardSchema<unknown, unknown> = {
      '~standard': {
        version: 1,
        vendor: 'test',
        validate: (value: unknown) => ({
          value: Object.assign(value as object, { n: 1 + Reflect.get(Object(value), 'n') }),
        }),
      },
    }
    await get(fixture.dibs, { n: 1 }, { ttlMs: 1_000 })
    await fixture.schema.clock.advance(2_000)
    await whileAnotherLoads(async () => {
      const bounds = { waitMs: 50, result: count }
      expect(await get(fixture.dibs, { n: 7 }, { ...bounds, ifBusy: 'load' })).toEqual({ n: 8 })
      expect(await get(fixture.dibs, { n: 7 }, { ...bounds, ifBusy: 'serve-stale' })).toEqual({ n: 2 })
    })
  })

  it('and led to a load of one’s own: the caller’s signal ends that', async () => {
    await whileAnotherLoads(async () => {
      const own = heldLoad('late')
      const going = new AbortController()
      const options = { waitMs: 0, ifBusy: 'load', signal: going.signal } as const
      const call = errorOf(fixture.dibs.singleFlight('k', options, own.load))
      await own.begun
      going.abort(new Error('gone'))
      expect(await call).toMatchObject({ message: 'gone' })
      expect(own.signal?.reason).toMatchObject({ message: 'gone' })
      own.land()
    })
  })

  it('leaves the others alone', async () => {
    const held = heldLoad('v')
    const first = fixture.dibs.singleFlight('k', { waitMs: 1_000 }, held.load)
    await held.begun
    const short = errorOf(fixture.dibs.singleFlight('k', { waitMs: 1_050 }, held.load))
    const long = fixture.dibs.singleFlight('k', held.load)
    expect(await short).toBeInstanceOf(BusyError)
    held.land()
    // The caller that loads waits for its own load, even longer than its `waitMs`.
    expect(await Promise.all([first, long])).toEqual(['v', 'v'])
  })
})

describe('the signal of a caller', () => {
  it('ends its wait, and no load', async () => {
    const held = heldLoad('v')
    const own = new AbortController()
    const first = errorOf(fixture.dibs.singleFlight('k', { signal: own.signal, ttlMs: MINUTE_MS }, held.load))
    await held.begun
    const second = fixture.dibs.singleFlight('k', held.load)
    const elsewhere = new AbortController()
    const third = errorOf(fixture.other.singleFlight('k', { signal: elsewhere.signal }, held.load))
    await until(isWanted, 'the other to wait')
    own.abort(new Error('gone'))
    elsewhere.abort(new Error('gone too'))
    expect(await first).toMatchObject({ message: 'gone' })
    expect(await third).toMatchObject({ message: 'gone too' })
    expect(held.signal?.aborted).toBe(false)
    held.land()
    expect(await second).toBe('v')
    expect(await get(fixture.other, 1)).toBe('v')
  })

  it('that has fired before loads nothing', async () => {
    const load = vi.fn(async () => 1)
    const error = await errorOf(
      fixture.dibs.singleFlight('k', { signal: AbortSignal.abort(new Error('before')) }, load),
    )
    expect(error).toMatchObject({ message: 'before' })
    expect(load).not.toHaveBeenCalled()
  })
})

describe('a stale value', () => {
  it('is given at once, while one of those who get it loads another', async () => {
    const options = { ttlMs: 1_000, staleMs: MINUTE_MS }
    await get(fixture.dibs, 'old', options)
    await fixture.schema.clock.advance(2_000)
    const held = heldLoad('new')
    const values = [fixture.dibs, fixture.other, fixture.dibs].map((dibs) =>
      dibs.singleFlight('k', options, held.load),
    )
    expect(await Promise.all(values)).toEqual(['old', 'old', 'old'])
    await held.begun
    expect(await get(fixture.other, 'another', options)).toBe('old')
    held.land()
    await until(async () => (await flightRow())?.value === 'new', 'the new one')
    expect(await get(fixture.other, 'another', options)).toBe('new')
    expect(held.count).toBe(1)
  })

  it('stays when loading another fails, which is told as an event; and is tried again by the next', async () => {
    const options = { ttlMs: 1_000, staleMs: MINUTE_MS }
    await get(fixture.dibs, 'old', options)
    await fixture.schema.clock.advance(2_000)
    const fail = async (): Promise<string> => {
      throw new Error('down')
    }
    const events = await fixture.eventsOf(async (told) => {
      expect(await fixture.dibs.singleFlight('k', options, fail)).toBe('old')
      await until(() => told.length === 1, 'it to fail')
      expect(await fixture.dibs.singleFlight('k', options, async () => 'new')).toBe('old')
      await until(() => told.length === 2, 'the new one')
    })
    expect(events.map(([name]) => name)).toEqual(['dibs:flight.failed', 'dibs:flight.loaded'])
    expect(events[0]?.[1]).toMatchObject({ template: 'k', isBackground: true, error: { message: 'down' } })
  })

  it('is not loaded anew while a failure is kept', async () => {
    const options = { ttlMs: 1_000, staleMs: 10 * MINUTE_MS, errorTtlMs: MINUTE_MS }
    await get(fixture.dibs, 'old', options)
    await fixture.schema.clock.advance(2_000)
    const load = vi.fn(async (): Promise<string> => {
      throw new Error('down')
    })
    expect(await fixture.dibs.singleFlight('k', options, load)).toBe('old')
    await until(async () => (await flightRow())?.failure != null, 'it to fail')
    expect(await fixture.other.singleFlight('k', options, load)).toBe('old')
    expect(load).toHaveBeenCalledTimes(1)
    await fixture.schema.clock.advance(MINUTE_MS + 1)
    expect(await fixture.other.singleFlight('k', options, load)).toBe('old')
    await until(() => load.mock.calls.length === 2, 'it to be tried again')
  })

  it('is over at its end', async () => {
    await get(fixture.dibs, 'old', { ttlMs: 1_000, staleMs: 1_000 })
    await fixture.schema.clock.advance(2_001)
    expect(await get(fixture.dibs, 'new')).toBe('new')
  })
})

describe('a fresh value that soon is over', () => {
  it('is loaded anew by one, by chance, the sooner the longer that takes', async () => {
    await get(fixture.dibs, 'old')
    // As if it had taken ten seconds; there are 60.
    await fixture.pool.query(`update ${fixture.schema.name}.flight set load_ms = 10000`)
    const random = vi.spyOn(Math, 'random').mockReturnValue(1 - Math.exp(-5.5))
    try {
      const load = vi.fn(async () => 'new')
      expect(await fixture.dibs.singleFlight('k', { ttlMs: MINUTE_MS }, load)).toBe('old')
      expect(load).not.toHaveBeenCalled()
      await fixture.schema.clock.advance(6_000)
      expect(await fixture.dibs.singleFlight('k', { ttlMs: MINUTE_MS, refreshEarly: 0 }, load)).toBe('old')
      expect(load).not.toHaveBeenCalled()
      expect(await fixture.dibs.singleFlight('k', { ttlMs: MINUTE_MS }, load)).toBe('old')
      await until(async () => (await flightRow())?.value === 'new', 'the new one')
      expect(load).toHaveBeenCalledTimes(1)
    } finally {
      random.mockRestore()
    }
  })
})

describe('forget', () => {
  it('makes the next caller load, and the one after it have that', async () => {
    await get(fixture.dibs, 1, { staleMs: MINUTE_MS })
    await fixture.other.singleFlight.forget('k')
    expect(await get(fixture.dibs, 2)).toBe(2)
    expect(await get(fixture.other, 3)).toBe(2)
    await fixture.other.singleFlight.forget('nothing is there')
    expect(await flightRow('nothing is there')).toBeUndefined()
  })

  it('of what is being loaded: it is for those who wait, and not kept', async () => {
    const held = heldLoad('before')
    const first = fixture.dibs.singleFlight('k', { ttlMs: MINUTE_MS, staleMs: MINUTE_MS }, held.load)
    await held.begun
    const waiting = fixture.other.singleFlight('k', { ttlMs: MINUTE_MS }, async () => 'never')
    await until(isWanted, 'the other to wait')
    await fixture.other.singleFlight.forget('k')
    // Both come after it, one into each process.
    const after = vi.fn(async () => 'after')
    const late = [fixture.dibs, fixture.other].map((dibs) =>
      dibs.singleFlight('k', { ttlMs: MINUTE_MS }, after),
    )
    held.land()
    expect(await first).toBe('before')
    // Or what was loaded after it, if that was there first.
    expect(['before', 'after']).toContain(await waiting)
    expect(await Promise.all(late)).toEqual(['after', 'after'])
    expect(after).toHaveBeenCalledTimes(1)
    expect(await get(fixture.dibs, 'another')).toBe('after')
  })

  it('of a failure that is kept', async () => {
    const fail = async () => {
      throw new Error('down')
    }
    await expect(fixture.dibs.singleFlight('k', { errorTtlMs: MINUTE_MS }, fail)).rejects.toThrow('down')
    await fixture.other.singleFlight.forget('k')
    expect(await get(fixture.other, 1)).toBe(1)
  })
})

describe('maintenance', () => {
  it('removes what is over, but not what somebody waits for, or may still publish', async () => {
    await get(fixture.dibs, 1, { ttlMs: 1_000, staleMs: 120_000 })
    await fixture.dibs.singleFlight('short', async () => 1)
    expect((await fixture.dibs.maintain({ once: true })).flightsForgotten).toBe(0)
    await fixture.schema.clock.advance(61_000)
    expect((await fixture.dibs.maintain({ once: true })).flightsForgotten).toBe(1)
    expect(await flightRow('short')).toBeUndefined()
    await fixture.schema.clock.advance(61_000)
    const held = heldLoad('before')
    const loading = fixture.dibs.singleFlight('k', { ttlMs: MINUTE_MS }, held.load)
    await held.begun
    await fixture.dibs.singleFlight.forget('k')
    await fixture.schema.clock.advance(3 * MINUTE_MS)
    expect((await fixture.dibs.maintain({ once: true })).flightsForgotten).toBe(0)
    held.land()
    await loading
    expect(await get(fixture.dibs, 'after')).toBe('after')
  })
})
