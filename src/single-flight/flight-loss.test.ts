import { describe, expect, it, vi } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, url, viaPgBouncer, wayIn } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { heldLoad } from '../../test/single-flight/held-load.js'
import { Dibs } from '../dibs.js'
import { BusyError, ClosedError, FenceLostError } from '../errors.js'
import { LeaseRenewer } from '../leases/lease-renewer.js'
import { Database } from '../postgres/database.js'
import { onEvent } from '../postgres/events.js'
import type { StandardSchema } from '../postgres/standard-schema.js'
import { Wakeups } from '../postgres/wakeups.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import type { LoadContext } from './flight-spec.js'

const fixture = openClaims()
const MINUTE_MS = 60_000
const LEASE_MS = 60_000
const options = { ttlMs: MINUTE_MS, leaseMs: LEASE_MS }
const lockTable = (): string => `${fixture.schema.name}.lock`
const stored = async () =>
  (await fixture.pool.query(`select value from ${fixture.schema.name}.flight where key = 'k'`)).rows[0]?.value
const isWanted = async (): Promise<boolean> => {
  const { rows } = await fixture.pool.query(
    `select from ${lockTable()} where wanted_until > ${fixture.schema.name}.clock()`,
  )
  return rows.length > 0
}
/** Locks the table, so that readers wait until `fn` has ended. */
async function whileLocked(fn: () => Promise<void>): Promise<void> {
  const client = await fixture.pool.connect()
  try {
    await client.query(`begin; lock table ${fixture.schema.name}.flight in access exclusive mode`)
    await fn()
  } finally {
    await client.query('rollback')
    client.release()
  }
}
/** A statement that has this in it waits for a lock. */
const isBlocked = (part: string) => async (): Promise<boolean> => {
  const { rows } = await fixture.pool.query(
    `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%${fixture.schema.name}%${part}%'`,
  )
  return rows.length > 0
}
const errorOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => undefined,
    (reason) => reason,
  )
/** `close` does not wait for 30 seconds. */
async function closingSoon(fn: () => Promise<void>): Promise<void> {
  const wait = Database.prototype.close
  const close = vi.spyOn(Database.prototype, 'close').mockImplementation(function (this: Database) {
    return wait.call(this, 300)
  })
  await fn().finally(() => close.mockRestore())
}
/** Somebody has the lead who will never give it back. */
const putDeadLead = (leftMs: number) =>
  fixture.pool.query(
    `insert into ${lockTable()} values ('flight:k', 0, 'dead', 1, ${fixture.schema.name}.clock() + $1 * interval '1 ms', ${fixture.schema.name}.clock())`,
    [leftMs],
  )

/** Hangs in its first call. Later calls answer at once, since the process whose load hangs may be the next to load, too. */
function hangOnce(value: string) {
  const hangs = heldLoad('late')
  const load = vi.fn<(context: LoadContext) => Promise<string>>().mockResolvedValue(value)
  return { hangs, load: load.mockImplementationOnce(hangs.load) }
}

/** Loads that another takes over from while they are under way. */
async function takenOver<T, U>(first: T, second: U) {
  const late = heldLoad(first)
  const lateCall = fixture.dibs.singleFlight('k', options, late.load)
  await late.begun
  await fixture.schema.clock.advance(LEASE_MS + 1)
  const next = heldLoad(second)
  const nextCall = fixture.other.singleFlight('k', options, next.load)
  await next.begun
  return { late, lateCall, next, nextCall }
}

describe('a leader that is dead', () => {
  it('is followed by the first who waits, when its lease has run out; the others wait for that one', async () => {
    await putDeadLead(900)
    const load = vi.fn(async () => 'v')
    const calls = [fixture.dibs, fixture.other].map((dibs) => dibs.singleFlight('k', options, load))
    expect(await Promise.all(calls)).toEqual(['v', 'v'])
    expect(load).toHaveBeenCalledTimes(1)
  })

  it('may have had its lead taken away by an operator, too', async () => {
    await putDeadLead(MINUTE_MS)
    const call = fixture.dibs.singleFlight('k', options, async () => 'v')
    await until(isWanted, 'it to wait')
    expect(await fixture.other.locks.forceRelease('flight:k')).toEqual({ released: 1 })
    expect(await call).toBe('v')
  })
})

describe('a leader that wakes up late', () => {
  it('is given the newer value, and its own is not kept', async () => {
    const { late, lateCall, next, nextCall } = await takenOver('late', 'new')
    next.land()
    expect(await nextCall).toBe('new')
    const events = await fixture.eventsOf(async () => {
      late.land()
      expect(await lateCall).toBe('new')
    })
    expect(events.map(([name]) => name)).toEqual(['dibs:flight.refused'])
    expect(await stored()).toBe('new')
  })

  it('has nothing for whoever has come since then: not what its successor has loaded long ago', async () => {
    const late = heldLoad('late')
    const lateCall = fixture.dibs.singleFlight('k', { leaseMs: LEASE_MS }, late.load)
    await late.begun
    await fixture.schema.clock.advance(LEASE_MS + 1)
    expect(await fixture.other.singleFlight('k', async () => 'long ago')).toBe('long ago')
    await fixture.schema.clock.advance(60 * MINUTE_MS)
    const load = vi.fn(async () => 'now')
    const call = fixture.dibs.singleFlight('k', load)
    late.land()
    expect(await call).toBe('now')
    expect(['late', 'long ago', 'now']).toContain(await lateCall)
  })

  it('has nothing for whoever has come after the key was forgotten, though its lead was gone by then', async () => {
    const late = heldLoad('before')
    const lateCall = fixture.dibs.singleFlight('k', options, late.load)
    await late.begun
    await fixture.other.locks.forceRelease('flight:k')
    await fixture.other.singleFlight.forget('k')
    const call = fixture.dibs.singleFlight('k', options, async () => 'after')
    late.land()
    expect(await call).toBe('after')
    await lateCall
  })

  it('has no use for a newer one of another shape, and loads again', async () => {
    const numbers: StandardSchema<unknown, number> = {
      '~standard': {
        version: 1,
        vendor: 'test',
        validate: (value) =>
          typeof value === 'number' ? { value } : { issues: [{ message: 'is no number' }] },
      },
    }
    const late = heldLoad(7)
    const lateCall = fixture.dibs.singleFlight('k', { ...options, result: numbers }, late.load)
    await late.begun
    await fixture.other.locks.forceRelease('flight:k')
    expect(await fixture.other.singleFlight('k', options, async () => 'another shape')).toBe('another shape')
    late.land()
    expect(await lateCall).toBe(7)
    expect(late.count).toBe(2)
    expect(await stored()).toBe(7)
  })

  it('has its own value while there is no newer one, and that is not kept either', async () => {
    const { late, lateCall, next, nextCall } = await takenOver('late', 'new')
    late.land()
    expect(await lateCall).toBe('late')
    expect(await stored()).toBeUndefined()
    next.land()
    expect(await nextCall).toBe('new')
    expect(await stored()).toBe('new')
  })

  it('and has failed waits for whoever loads in its place', async () => {
    const { late, lateCall, next, nextCall } = await takenOver('late', 'new')
    late.fail(new Error('aborted'))
    await until(isWanted, 'it to wait')
    next.land()
    expect(await Promise.all([lateCall, nextCall])).toEqual(['new', 'new'])
    expect(late.count).toBe(1)
  })

  it('keeps what it has loaded if nobody has come meanwhile', async () => {
    const late = heldLoad('late')
    const call = fixture.dibs.singleFlight('k', options, late.load)
    await late.begun
    await fixture.schema.clock.advance(LEASE_MS + 1)
    late.land()
    expect(await call).toBe('late')
    expect(await fixture.other.singleFlight('k', options, async () => 'another')).toBe('late')
  })

  it('learns by the signal that it has lost the lead, and then loads again', async () => {
    const reasons: unknown[] = []
    const load = vi.fn(async ({ signal }: { signal: AbortSignal }) => {
      if (load.mock.calls.length > 1) return 'second'
      await fixture.other.locks.forceRelease('flight:k')
      await until(() => signal.aborted, 'the signal')
      reasons.push(signal.reason)
      throw signal.reason
    })
    expect(await fixture.dibs.singleFlight('k', { ...options, leaseMs: 3_000 }, load)).toBe('second')
    expect(reasons).toMatchObject([{ reason: 'stolen' }])
    expect(reasons[0]).toBeInstanceOf(FenceLostError)
    expect(await fixture.other.singleFlight('k', options, async () => 'another')).toBe('second')
  })

  it('by its own clock, and ends when it is told so, is followed by another; nobody hears of a failure', async () => {
    const begun = deferred()
    const load = vi.fn(async ({ signal }: { signal: AbortSignal }) => {
      if (load.mock.calls.length > 1) return 'second'
      begun.resolve()
      await until(() => signal.aborted, 'the signal')
      throw signal.reason
    })
    const bounds = { ...options, errorTtlMs: MINUTE_MS, leaseMs: 900, timeoutMs: 900 }
    const own = fixture.dibs.singleFlight('k', bounds, load)
    await begun.promise
    const beside = fixture.dibs.singleFlight('k', bounds, load)
    const elsewhere = fixture.other.singleFlight('k', bounds, async () => 'elsewhere')
    const values = await Promise.all([own, beside, elsewhere])
    expect(new Set(values).size).toBe(1)
    expect(['second', 'elsewhere']).toContain(values[0])
    const { rows } = await fixture.pool.query(
      `select failed_fence from ${fixture.schema.name}.flight where key = 'k'`,
    )
    expect(rows).toEqual([{ failed_fence: '0' }])
  })

  it('while it stood still, and fails, has failed for nobody', async () => {
    const load = vi.fn(async () => {
      if (load.mock.calls.length > 1) return 'second'
      const until = performance.now() + 1_000
      while (performance.now() < until);
      throw new Error('too late')
    })
    expect(await fixture.dibs.singleFlight('k', { ...options, leaseMs: 900 }, load)).toBe('second')
  })

  it('after loads that went well is followed by another as well', async () => {
    const good = [heldLoad(1), heldLoad(2), heldLoad(3)]
    const lossy = vi.fn(async ({ signal }: { signal: AbortSignal }) => {
      if (lossy.mock.calls.length > 1) return 'second'
      await until(() => signal.aborted, 'the signal')
      throw signal.reason
    })
    const loads = [...good.map(({ load }) => load), lossy]
    const bounds = { ...options, leaseMs: 900, timeoutMs: 900 }
    let call = fixture.dibs.singleFlight<unknown>('k', options, good[0]?.load ?? lossy)
    for (const [n, held] of good.entries()) {
      await held.begun
      // `next` calls before `forget`: it does not get the value of this load, and the flight goes on with another load.
      const isLast = n + 1 === good.length
      const next = fixture.dibs.singleFlight<unknown>('k', isLast ? bounds : options, loads[n + 1] ?? lossy)
      await fixture.other.singleFlight.forget('k')
      held.land()
      expect(await call).toBe(n + 1)
      call = next
    }
    expect(await call).toBe('second')
  })

  it('and fails when another load is under way is no matter of those who wait for that', async () => {
    const held = [heldLoad('first'), heldLoad('second'), heldLoad('third')]
    const load = vi.fn((context: LoadContext) => {
      const one = held[load.mock.calls.length - 1]
      if (!one) throw new Error('a fourth load')
      return one.load(context)
    })
    const own = fixture.dibs.singleFlight('k', { ...options, leaseMs: 1_200, timeoutMs: 1_200 }, load)
    await held[2]?.begun
    const failed = new Promise<void>((resolve) => {
      const stop = onEvent('dibs:flight.failed', () => {
        stop()
        resolve()
      })
    })
    held[0]?.fail(new Error('the first'))
    await failed
    held[2]?.land()
    expect(await own).toBe('third')
    held[1]?.land()
  })

  it('by far, and still hangs, is followed by another after `timeoutMs`; whoever waits for it has that one’s value', async () => {
    const { hangs, load } = hangOnce('in time')
    const bounds = { ttlMs: MINUTE_MS, leaseMs: 900, timeoutMs: 900 }
    const own = fixture.dibs.singleFlight('k', bounds, load)
    await hangs.begun
    const beside = fixture.dibs.singleFlight('k', bounds, load)
    const elsewhere = fixture.other.singleFlight('k', bounds, async () => 'in time')
    const [first, second, third] = await Promise.all([own, beside, elsewhere])
    expect(new Set([first, second, third])).toEqual(new Set(['in time']))
    expect(hangs.signal?.reason).toMatchObject({ reason: 'max hold' })
    hangs.land()
    expect(await fixture.dibs.singleFlight('k', bounds, async () => 'another')).toBe('in time')
  })

  it('by far, and still hangs, waits for whoever loads in its place as long as for anybody', async ({
    skip,
  }) => {
    skip(viaPgBouncer, 'without notifications, chance decides which process has the lead next')
    const [hangs, slow] = [heldLoad('late'), heldLoad('slow')]
    const bounds = { leaseMs: 900, timeoutMs: 900, waitMs: 2_000 }
    const own = errorOf(fixture.dibs.singleFlight('k', bounds, hangs.load))
    await hangs.begun
    const theirs = fixture.other.singleFlight('k', { waitMs: MINUTE_MS }, slow.load)
    await slow.begun
    const error = await own
    expect(error).toBeInstanceOf(BusyError)
    expect(error).toMatchObject({ subject: 'the load of "k" in another process' })
    // Its own load took as long as it was let.
    expect((error as BusyError).waitedMs).toBeGreaterThan(2_700)
    hangs.land()
    slow.land()
    expect(await theirs).toBe('slow')
  })

  it('may have had the lead for no longer than a load may take', async () => {
    const { hangs, load } = hangOnce('in time')
    const own = fixture.dibs.singleFlight('k', { leaseMs: MINUTE_MS, timeoutMs: 900 }, load)
    await hangs.begun
    const { rows } = await fixture.pool.query(
      `select expires_at - acquired_at < interval '2 s' as "isShort" from ${lockTable()}`,
    )
    expect(rows).toEqual([{ isShort: true }])
    expect(await fixture.other.singleFlight('k', options, async () => 'in time')).toBe('in time')
    expect(await own).toBe('in time')
    hangs.land()
  })

  it('again and again, and hangs, begins no more loads than three', async () => {
    const gate = deferred()
    const load = vi.fn(async () => {
      await gate.promise
      return load.mock.calls.length
    })
    const bounds = { leaseMs: 300, timeoutMs: 300, waitMs: 4_000 }
    const own = errorOf(fixture.dibs.singleFlight('k', bounds, load))
    await until(() => load.mock.calls.length === 3, 'three of them')
    const refused = await errorOf(fixture.dibs.singleFlight('k', bounds, load))
    expect(refused).toBeInstanceOf(BusyError)
    expect(refused).toMatchObject({ subject: 'the load of "k" in this process' })
    expect(load).toHaveBeenCalledTimes(3)
    gate.resolve()
    const told = await own
    if (told !== undefined) expect(told).toBeInstanceOf(BusyError)
  })

  it('again and again, in the background, or after those who waited have gone, begins no more either', async () => {
    const gate = deferred()
    const load = vi.fn(async () => {
      await gate.promise
      return 'late'
    })
    const bounds = { ttlMs: 1, staleMs: 60 * MINUTE_MS, leaseMs: 900, timeoutMs: 900 }
    await fixture.dibs.singleFlight('k', bounds, async () => 'old')
    await fixture.schema.clock.advance(1_000)
    const isFree = async () => (await fixture.dibs.locks.inspect('flight:k')).length === 0
    for (let begun = 1; begun <= 5; begun++) {
      expect(await fixture.dibs.singleFlight('k', bounds, load)).toBe('old')
      await fixture.schema.clock.advance(1_000)
      await until(isFree, 'its lead to be over')
    }
    expect(load).toHaveBeenCalledTimes(3)
    await fixture.dibs.singleFlight.forget('k')
    expect(await errorOf(fixture.dibs.singleFlight('k', bounds, load))).toBeInstanceOf(BusyError)
    expect(load).toHaveBeenCalledTimes(3)
    gate.resolve()
    await until(async () => {
      const value = await fixture.dibs.singleFlight('k', bounds, async () => 'new').catch(() => undefined)
      return value === 'new'
    }, 'them to have ended')
  })

  it('again and again is told its own error in the end', async () => {
    const load = vi.fn(async () => {
      await fixture.other.locks.forceRelease('flight:k')
      throw new Error(`no ${load.mock.calls.length}`)
    })
    await expect(fixture.dibs.singleFlight('k', load)).rejects.toThrow('no 3')
  })

  it('is renewed while it loads', async () => {
    const held = heldLoad('v')
    const call = fixture.dibs.singleFlight('k', { ...options, leaseMs: 3_000 }, held.load)
    await held.begun
    const expiry = async () => Number((await fixture.dibs.locks.inspect('flight:k'))[0]?.leaseUntil)
    const first = await expiry()
    await until(async () => (await expiry()) > first + 1_500, 'it to be renewed often')
    expect(held.signal?.aborted).toBe(false)
    const remove = vi.spyOn(LeaseRenewer.prototype, 'remove')
    try {
      held.land()
      expect(await call).toBe('v')
      // And no longer: a renewal would find it given back, and tell of a loss that is none.
      expect(remove).toHaveBeenCalledTimes(1)
    } finally {
      remove.mockRestore()
    }
  })
})

describe('a database that cannot be reached', () => {
  const through = async (fn: (dibs: Dibs, proxy: PgProxy) => Promise<void>): Promise<void> => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside((dibs) => fn(dibs, proxy), { connectionString: proxy.url })
  }

  it('is an error, or a load of one’s own', async () => {
    await through(async (dibs, proxy) => {
      const down = proxy.inject({ kind: 'refuse' })
      await proxy.inject({ kind: 'reset' }).happened
      const load = vi.fn(async () => 'own')
      const calls = [
        errorOf(dibs.singleFlight('k', { waitMs: 1_500 }, load)),
        dibs.singleFlight('k', { ifBusy: 'load', waitMs: 60_000 }, load),
        errorOf(dibs.singleFlight('k', { ifBusy: 'serve-stale', waitMs: 0 }, load)),
      ]
      const [thrown, own, stale] = await Promise.all(calls)
      expect(thrown).toMatchObject({ retryable: true })
      expect(own).toBe('own')
      expect(stale).toMatchObject({ retryable: true })
      expect(load).toHaveBeenCalledTimes(1)
      down.end()
    })
  })

  it('is not asked without a pause, also if a hint came meanwhile', async () => {
    await through(async (dibs, proxy) => {
      const down = proxy.inject({ kind: 'refuse' })
      await proxy.inject({ kind: 'reset' }).happened
      const subscribe = vi.spyOn(Wakeups.prototype, 'subscribe')
      const send = vi.spyOn(Database.prototype, 'send')
      try {
        const call = errorOf(dibs.singleFlight('k', { waitMs: 1_000 }, async () => 'v'))
        await until(() => send.mock.calls.length > 0, 'it to be asked')
        for (const [topic, onWake] of subscribe.mock.calls) if (topic === 'lock:flight:k') onWake()
        await call
        expect(send.mock.calls.length).toBeLessThan(30)
      } finally {
        subscribe.mockRestore()
        send.mockRestore()
        down.end()
      }
    })
  })

  it('when a load has ended leaves it to its caller, and to nobody who has come since it began', async () => {
    await through(async (dibs, proxy) => {
      const held = heldLoad('v')
      const first = dibs.singleFlight('k', options, held.load)
      await held.begun
      const late = dibs.singleFlight('k', { waitMs: 60_000, ifBusy: 'load' }, async () => 'own')
      const events = await fixture.eventsOf(async () => {
        const down = proxy.inject({ kind: 'refuse' })
        const cut = proxy.inject({ kind: 'cut', when: 'before', statement: 'flight_', how: 'reset' })
        held.land()
        expect(await first).toBe('v')
        expect(await late).toBe('own')
        cut.end()
        down.end()
      })
      expect(events.map(([name]) => name)).toContain('dibs:flight.not-published')
    })
  })

  it('when a load has ended leaves the lead to others as soon as it can be', async () => {
    const held = heldLoad('v')
    const first = fixture.dibs.singleFlight('k', { ...options, leaseMs: MINUTE_MS }, held.load)
    await held.begun
    const events = await fixture.eventsOf(() =>
      whileLocked(async () => {
        held.land()
        expect(await first).toBe('v')
      }),
    )
    expect(events.map(([name]) => name)).toContain('dibs:flight.not-published')
    // An unanswered attempt to publish may still wait at the server. It may then store its value, since the lead is held.
    const next = await fixture.other.singleFlight('k', options, async () => 'next')
    expect(['next', 'v']).toContain(next)
    expect(await stored()).toBe(next)
    expect(await fixture.dibs.locks.inspect('flight:k')).toEqual([])
  }, 30_000)

  it.each(['begin', 'finish'])(
    'for the answer to flight_%s: it is asked for again, and loaded once',
    async (name) => {
      await through(async (dibs, proxy) => {
        const cut = proxy.inject({
          kind: 'cut',
          when: 'after',
          statement: `flight_${name}`,
          how: 'reset',
          times: 1,
        })
        const load = vi.fn(async () => 'v')
        const events = await fixture.eventsOf(async () =>
          expect(await dibs.singleFlight('k', options, load)).toBe('v'),
        )
        expect(events.map(([event]) => event)).toEqual(['dibs:flight.loaded'])
        expect(load).toHaveBeenCalledTimes(1)
        cut.end()
        expect(await fixture.dibs.singleFlight('k', options, load)).toBe('v')
        expect(await fixture.dibs.locks.inspect('flight:k')).toEqual([])
      })
    },
  )
})

describe('whoever comes while the database is asked', () => {
  // Behind PgBouncer, one connection has many backends.
  it.runIf(!viaPgBouncer)('is not given what was read before a key was forgotten', async () => {
    await fixture.dibs.singleFlight('k', options, async () => 'old')
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs, pool) => {
        const { rows } = await pool.query('select pg_backend_pid() as pid')
        const isRead = async () => {
          const asked = await fixture.pool.query('select query, state from pg_stat_activity where pid = $1', [
            rows[0].pid,
          ])
          return asked.rows[0].state === 'idle' && asked.rows[0].query.includes('flight_begin')
        }
        const slow = proxy.inject({ kind: 'black-hole', direction: 'toClient' })
        const first = dibs.singleFlight('k', options, async () => 'never')
        await until(isRead, 'it to be read')
        await fixture.other.singleFlight.forget('k')
        const second = dibs.singleFlight('k', options, async () => 'new')
        slow.end()
        expect(await Promise.all([first, second])).toEqual(['old', 'new'])
      },
      { connectionString: proxy.url, max: 1 },
    )
  })
})

describe('whoever comes while the lead is asked for', () => {
  it('and is not to wait does not wait for that load', async () => {
    const held = heldLoad('v')
    const calls: Promise<unknown>[] = []
    await whileLocked(async () => {
      calls.push(fixture.dibs.singleFlight('k', held.load))
      await until(isBlocked('flight_begin'), 'it to be asked')
      calls.push(errorOf(fixture.dibs.singleFlight('k', { waitMs: 0 }, held.load)))
      calls.push(errorOf(fixture.dibs.singleFlight('k', { waitMs: 3_000 }, held.load)))
    })
    const [first, without, after] = calls
    await held.begun
    expect(await without).toMatchObject({ waitedMs: 0, subject: 'the load of "k" in this process' })
    expect(await after).toMatchObject({ subject: 'the load of "k" in this process' })
    held.land()
    expect(await first).toBe('v')
  })
})

describe('a value that is stale', () => {
  it('is not loaded anew for those who have gone meanwhile', async () => {
    await fixture.dibs.singleFlight('k', { ttlMs: 1, staleMs: MINUTE_MS }, async () => 'old')
    await fixture.schema.clock.advance(1_000)
    const load = vi.fn(async () => 'new')
    const going = new AbortController()
    await whileLocked(async () => {
      const call = errorOf(fixture.dibs.singleFlight('k', { signal: going.signal }, load))
      await until(isBlocked('flight_begin'), 'it to be asked')
      going.abort(new Error('gone'))
      expect(await call).toMatchObject({ message: 'gone' })
    })
    // Waits until the process has taken the lead and released it.
    await until(async () => {
      const { rows } = await fixture.pool.query(
        `select from ${lockTable()} where fence > (select fence from ${fixture.schema.name}.flight) and expires_at = '-infinity'`,
      )
      return rows.length > 0
    }, 'the lead to be free')
    expect(load).not.toHaveBeenCalled()
    expect(await stored()).toBe('old')
  })

  it('is loaded anew by one who is still there', async () => {
    await fixture.dibs.singleFlight('k', { ttlMs: 1, staleMs: MINUTE_MS }, async () => 'old')
    await fixture.schema.clock.advance(1_000)
    const going = new AbortController()
    const load = vi.fn(async () => 'not wanted')
    const calls: Promise<unknown>[] = []
    await whileLocked(async () => {
      calls.push(errorOf(fixture.dibs.singleFlight('k', { signal: going.signal }, load)))
      calls.push(fixture.dibs.singleFlight('k', options, async () => 'new'))
      await until(isBlocked('flight_begin'), 'it to be asked')
      going.abort()
    })
    expect((await Promise.all(calls))[1]).toBe('old')
    await until(async () => (await stored()) === 'new', 'the new one')
    expect(load).not.toHaveBeenCalled()
  })
})

describe('what is loaded in the background', () => {
  const bounds = { ttlMs: 1_000, staleMs: MINUTE_MS, leaseMs: 10 * MINUTE_MS }
  /** Starts a background load, and lets the stale value expire meanwhile. */
  async function begin(dibs: Dibs) {
    await fixture.dibs.singleFlight('k', bounds, async () => 'old')
    await fixture.schema.clock.advance(2_000)
    const held = heldLoad('new')
    expect(await dibs.singleFlight('k', bounds, held.load)).toBe('old')
    await held.begun
    await fixture.schema.clock.advance(2 * MINUTE_MS)
    return held
  }
  /** Waits for the second poll: a caller that polls again knows the result of its first poll. */
  async function untilItWaits(): Promise<void> {
    await until(isWanted, 'it to wait')
    await fixture.pool.query(`update ${lockTable()} set wanted_until = '-infinity'`)
    await until(isWanted, 'it to look again')
  }

  it('is a load of this process for those who wait for it', async () => {
    const held = await begin(fixture.dibs)
    const here = await errorOf(fixture.dibs.singleFlight('k', { waitMs: 1_000 }, held.load))
    expect(here).toMatchObject({ subject: 'the load of "k" in this process', retryAfterMs: 100 })
    const elsewhere = await errorOf(fixture.other.singleFlight('k', { waitMs: 1_000 }, held.load))
    expect(elsewhere).toMatchObject({ subject: 'the load of "k" in another process' })
    held.land()
    await until(async () => (await stored()) === 'new', 'the new one')
  })

  it('is waited for by `close`, and given to those who wait for it; nobody begins another', async () => {
    const dibs = await Dibs.open({ ...wayIn, schema: fixture.schema.name, migrate: 'off' })
    const held = await begin(dibs)
    const waiting = dibs.singleFlight('k', bounds, held.load)
    await untilItWaits()
    const closing = dibs.close()
    await fixture.pool.query(`update ${lockTable()} set wanted_until = '-infinity'`)
    await until(isWanted, 'it to look again')
    held.land()
    expect(await waiting).toBe('new')
    await closing
    expect(held.count).toBe(1)
  })

  it('is nothing to wait for once another has the lead, and the instance is closed', async () => {
    const dibs = await Dibs.open({ ...wayIn, schema: fixture.schema.name, migrate: 'off' })
    const held = await begin(dibs)
    const waiting = errorOf(dibs.singleFlight('k', { ...bounds, waitMs: MINUTE_MS }, held.load))
    await untilItWaits()
    const closing = dibs.close()
    await fixture.pool.query(`update ${lockTable()} set holder = 'another', fence = fence + 1`)
    expect(await waiting).toBeInstanceOf(ClosedError)
    held.land()
    await closing
  })

  it('is not begun by those who waited for another when the instance was closed', async () => {
    const dibs = await Dibs.open({ ...wayIn, schema: fixture.schema.name, migrate: 'off' })
    const held = await begin(dibs)
    const load = vi.fn(async () => 'newer')
    const waiting = dibs.singleFlight('k', bounds, load)
    await untilItWaits()
    const closing = dibs.close()
    // The lead is free, and what was there before may be had again.
    await fixture.pool.query(
      `update ${fixture.schema.name}.flight set stale_until = ${fixture.schema.name}.clock() + interval '1 hour'; update ${lockTable()} set expires_at = '-infinity'`,
    )
    expect(await waiting).toBe('old')
    held.land()
    await closing
    expect(load).not.toHaveBeenCalled()
  })

  it('and does not end in time is waited for by nobody after `close`', async () => {
    await closingSoon(async () => {
      const dibs = await Dibs.open({ ...wayIn, schema: fixture.schema.name, migrate: 'off' })
      const held = await begin(dibs)
      const waiting = errorOf(dibs.singleFlight('k', { ...bounds, waitMs: MINUTE_MS }, held.load))
      await untilItWaits()
      await dibs.close()
      expect(await waiting).toBeInstanceOf(ClosedError)
      expect(held.signal?.reason).toMatchObject({ reason: 'closed' })
      held.land()
    })
  })
})

describe('close', () => {
  const open = () => Dibs.open({ ...wayIn, schema: fixture.schema.name, migrate: 'off' })

  it('lets nothing begin in the background', async () => {
    await fixture.dibs.singleFlight('k', { ttlMs: 1, staleMs: MINUTE_MS }, async () => 'old')
    await fixture.schema.clock.advance(1_000)
    const dibs = await open()
    const load = vi.fn(async () => 'new')
    const closings: Promise<void>[] = []
    await whileLocked(async () => {
      const call = errorOf(dibs.singleFlight('k', load))
      await until(isBlocked('flight_begin'), 'it to be asked')
      closings.push(dibs.close())
      expect(await call).toBeInstanceOf(ClosedError)
    })
    await Promise.all(closings)
    expect(load).not.toHaveBeenCalled()
    expect(await fixture.dibs.locks.inspect('flight:k')).toEqual([])
  })

  it('ends a load for its caller alone that does not end in time, and lets none begin', async () => {
    const theirs = heldLoad('theirs')
    const theirCall = fixture.dibs.singleFlight('k', theirs.load)
    await theirs.begun
    await closingSoon(async () => {
      const dibs = await open()
      const [alone, own] = [heldLoad('late'), heldLoad('own')]
      const call = errorOf(dibs.singleFlight('k', { waitMs: 0, ifBusy: 'load' }, alone.load))
      await alone.begun
      const first = errorOf(dibs.singleFlight('own', own.load))
      await own.begun
      const load = vi.fn(async () => 'too late')
      const behind = errorOf(dibs.singleFlight('own', { waitMs: 100, ifBusy: 'load' }, load))
      await dibs.close()
      expect(await call).toBeInstanceOf(ClosedError)
      expect(alone.signal?.reason).toBeInstanceOf(ClosedError)
      expect(await behind).toBeInstanceOf(ClosedError)
      expect(load).not.toHaveBeenCalled()
      expect(await first).toBeInstanceOf(ClosedError)
      alone.fail(new Error('nobody hears of it'))
      own.land()
    })
    theirs.land()
    await theirCall
  })

  it('waits for what is being loaded, also in the background, and for nobody else’s load', async () => {
    await fixture.dibs.singleFlight('old', { ttlMs: 1, staleMs: MINUTE_MS }, async () => 'old')
    await fixture.schema.clock.advance(1_000)
    const theirs = heldLoad('theirs')
    const theirCall = fixture.dibs.singleFlight('theirs', theirs.load)
    await theirs.begun
    const dibs = await open()
    const [own, behind] = [heldLoad('own'), heldLoad('new')]
    const first = dibs.singleFlight('k', options, own.load)
    await own.begun
    const joined = dibs.singleFlight('k', own.load)
    expect(await dibs.singleFlight('old', options, behind.load)).toBe('old')
    await behind.begun
    const waiting = errorOf(dibs.singleFlight('theirs', own.load))
    await until(isWanted, 'it to wait')
    const closing = dibs.close()
    expect(await waiting).toBeInstanceOf(ClosedError)
    expect(await errorOf(dibs.singleFlight('k', own.load))).toBeInstanceOf(ClosedError)
    own.land()
    expect(await Promise.all([first, joined])).toEqual(['own', 'own'])
    behind.land()
    await closing
    const next = async () => 'another'
    expect(await fixture.dibs.singleFlight('k', options, next)).toBe('own')
    expect(await fixture.dibs.singleFlight('old', options, next)).toBe('new')
    theirs.land()
    expect(await theirCall).toBe('theirs')
  })

  it('ends the wait for a load of one’s own that does not end in time, and tells the load', async () => {
    await closingSoon(async () => {
      const dibs = await open()
      const hangs = heldLoad('late')
      const first = errorOf(dibs.singleFlight('k', options, hangs.load))
      await hangs.begun
      const joined = errorOf(dibs.singleFlight('k', options, hangs.load))
      await dibs.close()
      expect(await first).toBeInstanceOf(ClosedError)
      expect(await joined).toBeInstanceOf(ClosedError)
      expect(hangs.signal?.reason).toMatchObject({ reason: 'closed' })
      hangs.land()
      await fixture.other.locks.forceRelease('flight:k')
      expect(await fixture.dibs.singleFlight('k', options, async () => 'another')).toBe('another')
    })
  })

  it('lets nobody begin anew whom a load under way is not for', async () => {
    const dibs = await open()
    const own = heldLoad('before')
    const first = dibs.singleFlight('k', options, own.load)
    await own.begun
    await fixture.other.singleFlight.forget('k')
    const load = vi.fn(async () => 'after')
    const late = errorOf(dibs.singleFlight('k', options, load))
    const closing = dibs.close()
    own.land()
    expect(await first).toBe('before')
    expect(await late).toBeInstanceOf(ClosedError)
    await closing
    expect(load).not.toHaveBeenCalled()
  })

  it('lets nobody begin anew who has found a value that does not fit', async () => {
    await fixture.dibs.singleFlight('k', options, async () => 'old shape')
    const dibs = await open()
    const load = vi.fn(async () => 7)
    const validate = () => ({ issues: [{ message: 'no number' }] })
    const result = { '~standard': { version: 1, vendor: 'test', validate } } as const
    const client = await fixture.pool.connect()
    try {
      await client.query('begin')
      await client.query(`select from ${fixture.schema.name}.flight for update`)
      const call = errorOf(dibs.singleFlight('k', { ...options, result }, load))
      await until(isBlocked('flight_reject'), 'it to wait for the row')
      const closing = dibs.close()
      await client.query('rollback')
      expect(await call).toBeInstanceOf(ClosedError)
      await closing
    } finally {
      client.release()
    }
    expect(load).not.toHaveBeenCalled()
  })
})

describe('events', () => {
  it('tell who has loaded, who has waited, and who has waited in vain', async () => {
    const held = heldLoad('v')
    const events = await fixture.eventsOf(async () => {
      const first = fixture.dibs.singleFlight('fx:EUR', options, held.load)
      await held.begun
      expect(await errorOf(fixture.other.singleFlight('fx:EUR', { waitMs: 0 }, held.load))).toBeInstanceOf(
        BusyError,
      )
      // The call with `waitMs: 0` has marked the lock as wanted, too. This removes its mark.
      await fixture.pool.query(`update ${lockTable()} set wanted_until = '-infinity'`)
      const second = fixture.other.singleFlight('fx:EUR', held.load)
      await until(isWanted, 'the other to wait')
      held.land()
      await Promise.all([first, second])
    })
    // Two instances tell of it, in any order.
    const tellsOf = (name: string) => events.filter(([one]) => one === name).map(([, told]) => told)
    expect(events).toHaveLength(4)
    expect(tellsOf('dibs:flight.waited')).toMatchObject([
      { template: 'fx:*', how: 'timed out' },
      { template: 'fx:*', how: 'value' },
    ])
    expect(tellsOf('dibs:flight.timed-out')).toMatchObject([{ template: 'fx:*', ifBusy: 'fail' }])
    expect(tellsOf('dibs:flight.loaded')).toMatchObject([
      { template: 'fx:*', isBackground: false, isKept: true },
    ])
  })
})
