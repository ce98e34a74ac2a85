import { describe, expect, it } from 'vitest'
import { acquirersOf, HOUR_MS } from '../../../test/claims/acquirers.js'
import { callersOf } from '../../../test/claims/callers.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { until, viaPgBouncer } from '../../../test/database.js'
import { deferred } from '../../../test/deferred.js'
import { realTime } from '../../../test/real-time.js'
import {
  BusinessRuleError,
  BusyError,
  ConflictError,
  InProgressError,
  InvalidInputError,
  InvalidOutcomeError,
  NestedTransactionError,
  PermanentError,
  SingletonConflictError,
} from '../../errors.js'
import { onEvent } from '../../postgres/events.js'
import type { Tx } from '../../postgres/executor.js'
import { countTraffic } from '../../testing/count-traffic.js'
import type { SingletonClaimSpec, SingletonFields, Slot } from '../acquire/acquire-claims.js'
import type { CalendarUnit, CronSlots, RequiredPeriod } from '../period.js'

const fixture = openClaims()
const { query, lockedRows } = acquirersOf(fixture)
const { write, inTransaction, waiters } = callersOf(fixture, { scope: 's', key: 'k' })
const at = { scope: ['prayer', 'ann'], per: 'day' } as const
const NOON = new Date('2026-06-15T12:00:00Z')

const conflictOf = async (call: Promise<unknown>): Promise<SingletonConflictError> => {
  const error = await call.catch((reason) => reason)
  expect(error).toBeInstanceOf(SingletonConflictError)
  return error as SingletonConflictError
}

/** Does it, and says which slot that was. */
const slotOf = (spec: SingletonClaimSpec): Promise<Slot> => {
  let found: Slot | undefined
  return fixture.dibs
    .singleton(spec, async (_, slot) => {
      found = slot
    })
    .then(() => found as Slot)
}

/** When the slots of a rule begin and end around a moment, and whether each is had once. */
async function slotAt(spec: SingletonClaimSpec, moment: string): Promise<string> {
  await fixture.schema.clock.freeze(new Date(moment))
  const call = fixture.dibs.singleton(spec, async (_, slot) => slot)
  const slot = await call.catch((error: SingletonConflictError) => error.slot)
  const iso = (time: unknown) => new Date(time as string).toISOString().replace(':00.000Z', 'Z')
  return `${slot.key} from ${iso(slot.startsAt)} to ${iso(slot.endsAt)}`
}

describe('singleton', () => {
  it('of ten at once lets one through, and tells the others who it was and what came of it', async () => {
    await fixture.schema.clock.freeze(NOON)
    const attempts = Array.from({ length: 10 }, (_, n) =>
      [fixture.dibs, fixture.other][n % 2]?.singleton({ ...at, holder: `parent ${n}` }, async (tx, slot) => {
        await write(`parent ${n}`)(tx)
        return { by: n, day: slot.key }
      }),
    )
    const ended = await Promise.allSettled(attempts)
    const [winner, ...others] = ended.filter(({ status }) => status === 'fulfilled')
    expect(others).toEqual([])
    const result = (winner as PromiseFulfilledResult<{ by: number; day: string }>).value
    expect(await fixture.logged()).toEqual([`parent ${result.by}`])
    const [claim] = (await fixture.dibs.claims.list()).items
    const conflicts = ended.flatMap((one) => (one.status === 'rejected' ? [one.reason] : []))
    expect(conflicts.length).toBe(9)
    for (const conflict of conflicts) {
      expect(conflict).toBeInstanceOf(SingletonConflictError)
      expect(conflict).toMatchObject({
        scope: 'prayer:ann',
        slot: {
          key: 'day:2026-06-15',
          startsAt: new Date('2026-06-15T00:00:00Z'),
          endsAt: new Date('2026-06-16T00:00:00Z'),
        },
        id: claim?.id,
        holder: `parent ${result.by}`,
        since: NOON,
        state: 'active',
        result,
        status: 409,
        retryable: false,
      })
      expect(conflict.retryAfterMs).toBeUndefined()
      expect(conflict.message).toBe(
        `"prayer:ann" is done once in each period, and day:2026-06-15 is taken: "parent ${result.by}" has done it (claimed 2026-06-15T12:00:00.000Z). Nothing was run.`,
      )
    }
  })

  it('gives the function the slot, with the id to void it by', async () => {
    await fixture.schema.clock.freeze(NOON)
    const slot = await slotOf(at)
    expect(slot).toEqual({
      key: 'day:2026-06-15',
      startsAt: new Date('2026-06-15T00:00:00Z'),
      endsAt: new Date('2026-06-16T00:00:00Z'),
      id: expect.any(String),
      fence: expect.any(Number),
    })
    const conflict = await conflictOf(fixture.dibs.singleton(at, async () => 1))
    expect(conflict.id).toBe(slot.id)
    expect(conflict).not.toHaveProperty('by')
    expect(conflict).not.toHaveProperty('result')
  })

  it('tells scopes apart, and a singleton from an idempotency key of the same name', async () => {
    for (const scope of ['a', 'b', ['a', 'b'], ['a:b']] as const)
      await fixture.dibs.singleton({ scope: scope as string, per: 'day' }, write(String(scope)))
    const { key } = await slotOf({ scope: 'c', per: 'day' })
    expect(await fixture.dibs.once({ scope: 'c', key }, async () => 'another thing')).toBe('another thing')
    expect((await fixture.logged()).length).toBe(4)
  })

  it('needs two round trips around the function, and one commit', async () => {
    await slotOf({ ...at, scope: 'warm' })
    const traffic = await countTraffic(fixture.pool, () => fixture.dibs.singleton(at, async () => 1))
    expect(traffic).toMatchObject({ roundTrips: 2, commits: 1 })
  })

  it('keeps nothing that is no JSON', async () => {
    const bad = fixture.dibs.singleton(at, async () => 1n as never)
    await expect(bad).rejects.toThrow(InvalidOutcomeError)
    expect(await fixture.dibs.singleton(at, async () => 2)).toBe(2)
  })

  it('refuses to begin inside another transaction without being given it', async () => {
    const nested = fixture.dibs.transaction(() => fixture.dibs.singleton(at, async () => 1))
    await expect(nested).rejects.toThrow(NestedTransactionError)
    await expect(nested).rejects.toThrow(
      'dibs.singleton was called inside a dibs.transaction of the same instance. Give it that transaction: dibs.singleton({ …, tx }, …).',
    )
  })
})

describe('a period', () => {
  it.each([
    // The clocks are put forward on 29 March 2026, and back on 25 October.
    [
      'Europe/Berlin',
      ['2026-03-28T22:59:59Z', 'day:2026-03-28 from 2026-03-27T23:00Z to 2026-03-28T23:00Z'],
      ['2026-03-28T23:00:00Z', 'day:2026-03-29 from 2026-03-28T23:00Z to 2026-03-29T22:00Z'],
      ['2026-03-29T21:59:59Z', 'day:2026-03-29 from 2026-03-28T23:00Z to 2026-03-29T22:00Z'],
      ['2026-10-25T22:59:59Z', 'day:2026-10-25 from 2026-10-24T22:00Z to 2026-10-25T23:00Z'],
      ['2026-10-25T23:00:00Z', 'day:2026-10-26 from 2026-10-25T23:00Z to 2026-10-26T23:00Z'],
    ],
    // On 8 March and 1 November.
    [
      'America/New_York',
      ['2026-03-08T04:59:59Z', 'day:2026-03-07 from 2026-03-07T05:00Z to 2026-03-08T05:00Z'],
      ['2026-03-08T05:00:00Z', 'day:2026-03-08 from 2026-03-08T05:00Z to 2026-03-09T04:00Z'],
      ['2026-11-01T04:00:00Z', 'day:2026-11-01 from 2026-11-01T04:00Z to 2026-11-02T05:00Z'],
      ['2026-11-02T04:59:59Z', 'day:2026-11-01 from 2026-11-01T04:00Z to 2026-11-02T05:00Z'],
    ],
    // At midnight itself: on 29 March there is no hour from 0 to 1, and on 25 October 0 to 1 comes twice.
    [
      'Asia/Beirut',
      ['2026-03-28T21:59:59Z', 'day:2026-03-28 from 2026-03-27T22:00Z to 2026-03-28T22:00Z'],
      ['2026-03-28T22:00:00Z', 'day:2026-03-29 from 2026-03-28T22:00Z to 2026-03-29T21:00Z'],
      ['2026-10-24T20:59:59Z', 'day:2026-10-24 from 2026-10-23T21:00Z to 2026-10-24T22:00Z'],
      ['2026-10-24T21:30:00Z', 'day:2026-10-24 from 2026-10-23T21:00Z to 2026-10-24T22:00Z'],
      ['2026-10-24T22:00:00Z', 'day:2026-10-25 from 2026-10-24T22:00Z to 2026-10-25T22:00Z'],
    ],
  ])('is a day of %s, also when its clocks are changed', async (timeZone, ...looks) => {
    for (const [moment, expected] of looks as [string, string][])
      expect(await slotAt({ ...at, timeZone }, moment), moment).toBe(expected)
  })

  it('is had once in each local day: across midnight there is a new one', async () => {
    const spec = { ...at, timeZone: 'Europe/Berlin' }
    await fixture.schema.clock.freeze(new Date('2026-10-25T22:59:59.999Z'))
    await slotOf(spec)
    await conflictOf(fixture.dibs.singleton(spec, async () => 2))
    await fixture.schema.clock.advance(1)
    await slotOf(spec)
    await conflictOf(fixture.dibs.singleton(spec, async () => 2))
    const { items: claims } = await fixture.dibs.claims.list({ singleton: ['prayer'] })
    expect(claims.map(({ key }) => key)).toEqual(['day:2026-10-25', 'day:2026-10-26'])
  })

  it.each([
    [
      'hour',
      { per: 'hour', timeZone: 'Asia/Kolkata' },
      'hour:2026-06-15T11:30:00.000Z from 2026-06-15T11:30Z to 2026-06-15T12:30Z',
    ],
    ['week', { per: 'week' }, 'week:2026-W25 from 2026-06-15T00:00Z to 2026-06-22T00:00Z'],
    ['month', { per: 'month' }, 'month:2026-06 from 2026-06-01T00:00Z to 2026-07-01T00:00Z'],
    ['year', { per: 'year' }, 'year:2026 from 2026-01-01T00:00Z to 2027-01-01T00:00Z'],
    [
      'interval',
      { perMs: 25 * 60_000, from: new Date('2026-06-15T11:00:00Z') },
      'slot:2026-06-15T11:50:00.000Z from 2026-06-15T11:50Z to 2026-06-15T12:15Z',
    ],
    [
      'cron expression, whatever this process takes for the time',
      { per: { cron: '30 3 * * 1-5' }, timeZone: 'Europe/Berlin' },
      'slot:2026-06-15T01:30:00.000Z from 2026-06-15T01:30Z to 2026-06-16T01:30Z',
    ],
  ] as [string, RequiredPeriod<CalendarUnit | CronSlots>, string][])(
    'is that of a %s',
    async (_, rule, expected) => {
      const spec = { scope: 'report', ...rule }
      expect(await slotAt(spec, NOON.toISOString())).toBe(expected)
      await conflictOf(fixture.dibs.singleton(spec, async () => 2))
    },
  )

  it('of cron is found though the clock of the database is years away, in every mode', async () => {
    const spec = { scope: 'report', per: { cron: '0 3 * * *' } }
    await fixture.schema.clock.freeze(new Date('2031-01-01T12:00:00Z'))
    expect((await slotOf(spec)).key).toBe('slot:2031-01-01T03:00:00.000Z')
    await fixture.schema.clock.freeze(new Date('2019-01-01T12:00:00Z'))
    const slot = await inTransaction((tx) =>
      fixture.dibs.singleton({ ...spec, tx }, async (_, one) => one.key),
    )
    expect(slot).toBe('slot:2019-01-01T03:00:00.000Z')
    await fixture.schema.clock.freeze(new Date('2035-01-01T12:00:00Z'))
    const leased = fixture.dibs.singleton({ ...spec, mode: 'leased' }, async (_, one) => one.key)
    expect(await leased).toBe('slot:2035-01-01T03:00:00.000Z')
  })

  it('of cron that never comes is refused', async () => {
    const never = { scope: 'report', per: { cron: '0 0 0 1 1 * 2030' } }
    await expect(fixture.dibs.singleton(never, async () => 1)).rejects.toThrow(InvalidInputError)
  })

  it('is outlived by its slot for as long as that is kept', async () => {
    await fixture.schema.clock.freeze(NOON)
    const { key } = await slotOf({ ...at, keepMs: HOUR_MS })
    const slot = { singleton: at.scope, key }
    await fixture.schema.clock.advance(13 * HOUR_MS - 1)
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ claimsForgotten: 0 })
    expect(await fixture.dibs.claims.get(slot)).toMatchObject({ status: 'active' })
    await fixture.schema.clock.advance(1)
    expect(await fixture.dibs.claims.get(slot)).toBeUndefined()
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ claimsForgotten: 1 })
  })

  it('is over when its time is, however early its slot was taken', async () => {
    await fixture.schema.clock.freeze(new Date('2026-06-15T00:00:00Z'))
    await slotOf({ ...at, keepMs: 1 })
    await fixture.schema.clock.freeze(new Date('2026-06-15T23:59:59.999Z'))
    await conflictOf(fixture.dibs.singleton(at, async () => 2))
  })
})

describe('one that is undecided', () => {
  /** A transaction that has claimed the slot and is still open. */
  async function undecided(spec: Partial<SingletonFields> = {}) {
    const claimed = deferred()
    const goOn = deferred<string>()
    const ended = inTransaction(async (tx) => {
      await fixture.dibs.singleton({ ...at, ...spec, tx }, write('first'))
      claimed.resolve()
      await tx.query(await goOn.promise)
    })
    await claimed.promise
    return { end: (how: 'commit' | 'rollback') => goOn.resolve(how), ended }
  }

  it('is waited for, and is the one if it commits', async () => {
    const first = await undecided()
    const second = fixture.other.singleton(at, write('second'))
    second.catch(() => {})
    await until(async () => (await waiters()) === 1, 'the second to wait')
    first.end('commit')
    expect(await conflictOf(second)).toMatchObject({ state: 'active', result: { run: expect.any(Number) } })
    await first.ended
  })

  it('is waited for in the database, and the second runs if it rolls back', async () => {
    const first = await undecided()
    await fixture.beside(async (dibs, pool) => {
      await pool.query('select 1')
      const second = countTraffic(pool, () => dibs.singleton(at, async () => 'second'))
      const pause = performance.now() + 200
      await until(async () => (await waiters()) === 1 && performance.now() > pause, 'the second to wait')
      first.end('rollback')
      expect(await second).toMatchObject({ value: 'second', roundTrips: 2 })
    })
    await first.ended
    expect(await fixture.logged()).toEqual([])
  })

  it.each([
    ['alone', 0],
    ['alone', 150],
    ['in a transaction', 0],
    ['leased', 0],
    ['leased', 150],
  ])('is waited for as long as was asked, and no longer: %s, %s ms', realTime, async (how, waitMs) => {
    const first = await undecided()
    const startedAt = performance.now()
    const asked: number[] = []
    const stop = onEvent('dibs:acquire.refused', ({ retries }) => void asked.push(retries + 1))
    const spec = { ...at, waitMs }
    const second =
      how === 'alone'
        ? fixture.other.singleton(spec, write('x'))
        : how === 'leased'
          ? fixture.other.singleton({ ...spec, mode: 'leased' }, async () => 'x')
          : inTransaction(async (tx) => {
              const error = await fixture.other
                .singleton({ ...spec, tx }, write('x'))
                .catch((reason) => reason)
              await write('after')(tx) // it is usable
              throw error
            })
    const error = await second.catch((reason) => reason)
    const tookMs = performance.now() - startedAt
    stop()
    if (waitMs === 0) expect(asked).toEqual([1])
    expect(error).toBeInstanceOf(BusyError)
    expect(error.message).toMatch(/another transaction that claims slot day:\S+ of singleton "prayer:ann"/)
    expect(tookMs).toBeGreaterThanOrEqual(waitMs)
    expect(tookMs).toBeLessThan(waitMs + 1_500)
    first.end('commit')
    await first.ended
  })

  it('of the same process is waited for without a connection', async () => {
    await fixture.beside(
      async (dibs) => {
        const began = deferred()
        const goOn = deferred()
        const first = dibs.singleton(at, async () => {
          began.resolve()
          await goOn.promise
          throw new Error('no')
        })
        first.catch(() => {})
        await began.promise
        const second = dibs.singleton(at, async () => 2)
        await expect(dibs.singleton({ ...at, waitMs: 30 }, async () => 3)).rejects.toThrow(BusyError)
        expect(await dibs.singleton({ ...at, scope: 'unrelated' }, async () => 4)).toBe(4)
        goOn.resolve()
        expect(await second).toBe(2)
      },
      { max: 2 },
    )
  })

  it('is not taken twice in one transaction', async () => {
    await inTransaction(async (tx) => {
      const inside = fixture.dibs.singleton({ ...at, tx }, () =>
        fixture.dibs.singleton({ ...at, tx }, async () => 1),
      )
      await expect(inside).rejects.toThrow(
        '`scope` is of a slot that this very transaction has claimed before',
      )
      await fixture.dibs.singleton({ ...at, tx }, async () => 1)
      await conflictOf(fixture.dibs.singleton({ ...at, tx }, async () => 2))
    })
  })
})

describe('after a failure', () => {
  const plain = new Error('boom')
  const rule = new BusinessRuleError('not today', 'not-today')
  const fail = (error: Error) => async (tx: Tx) => {
    await write('fails')(tx)
    throw error
  }

  it.each([
    ['a plain error', plain],
    ['a rule', rule],
  ])('by %s the slot is free, and nothing is left of it', async (_, error) => {
    await expect(fixture.dibs.singleton(at, fail(error))).rejects.toBe(error)
    expect(await fixture.dibs.claims.list()).toEqual({ items: [] })
    await fixture.dibs.singleton(at, write('second'))
    expect(await fixture.logged()).toEqual(['second'])
  })

  it.each([
    ['a plain error', plain, PermanentError, { message: 'boom' }],
    ['a rule', rule, BusinessRuleError, { message: 'not today', rule: 'not-today' }],
  ])('by %s the slot is kept if that was asked for, without the writes', async (_, error, type, told) => {
    const spec = { ...at, ifFailed: 'keep', holder: 'ann' } as const
    let after = 0
    const failed = fixture.dibs.singleton(spec, async (tx) => {
      tx.afterCommit(() => void after++)
      await write('fails')(tx)
      await tx.query('select 1 / 0').catch(() => {})
      throw error
    })
    await expect(failed).rejects.toBe(error)
    expect([await fixture.logged(), after]).toEqual([[], 0])
    const conflict = await conflictOf(fixture.dibs.singleton(at, write('second')))
    expect(conflict).toMatchObject({ state: 'failed', holder: 'ann' })
    expect(conflict).not.toHaveProperty('result')
    expect(conflict.message).toContain('"ann" has failed at it')
    expect(conflict.cause).toBeInstanceOf(type)
    expect(conflict.cause).toMatchObject(told)
  })

  it('by a conflict it is repeated from the start, and kept only if that fails', async () => {
    let tries = 0
    const kept = fixture.dibs.singleton({ ...at, ifFailed: 'keep' }, async (tx) => {
      await write(`try ${++tries}`)(tx)
      if (tries < 3) throw new ConflictError({ subject: 'a row' })
      return tries
    })
    expect(await kept).toBe(3)
    expect(await fixture.logged()).toEqual(['try 3'])
  })

  it.each([
    ['free', 'released'],
    ['keep', 'failed'],
  ] as const)("in the caller's transaction, which goes on: %s", async (ifFailed, expected) => {
    await inTransaction(async (tx) => {
      const failed = fixture.dibs.singleton({ ...at, ifFailed, tx }, async () => Promise.reject(plain))
      await expect(failed).rejects.toBe(plain)
    })
    const [claim] = (await fixture.dibs.claims.list()).items
    expect(claim?.held ?? claim?.status).toBe(expected)
    const next = fixture.dibs.singleton({ ...at, holder: 'bob' }, async () => 1)
    if (ifFailed === 'keep') await conflictOf(next)
    else {
      await next
      // The new claim's `since` is later than the first claim's creation.
      const conflict = await conflictOf(fixture.dibs.singleton(at, async () => 2))
      expect(conflict.holder).toBe('bob')
      expect(Number(conflict.since)).toBeGreaterThan(Number(claim?.createdAt))
    }
  })

  it("in the caller's transaction that is aborted by it nothing stays", async () => {
    const failed = inTransaction((tx) =>
      fixture.dibs.singleton({ ...at, ifFailed: 'keep', tx }, (own) => own.query('select 1 / 0')),
    )
    await expect(failed).rejects.toThrow('division by zero')
    expect(await fixture.dibs.claims.list()).toEqual({ items: [] })
  })
})

describe('voidSlot', () => {
  const done = (spec: Partial<SingletonFields> = {}) => slotOf({ ...at, ...spec })
  const scope = at.scope

  it('of five at once lets one undo it, and frees the slot', async () => {
    const slot = await done()
    const undo = (n: number) =>
      [fixture.dibs, fixture.other][n % 2]?.voidSlot({ scope, slot }, write(`undone by ${n}`))
    const told = await Promise.all([0, 1, 2, 3, 4].map(undo))
    expect(told.filter((one) => one?.ok).length).toBe(1)
    expect(told.filter((one) => !one?.ok)).toEqual(Array.from({ length: 4 }, () => ({ ok: false })))
    expect((await fixture.logged()).length).toBe(1)
    expect(await fixture.dibs.singleton(at, async () => 'anew')).toBe('anew')
  })

  it('gives the function what came of it, and answers with what that returns', async () => {
    await fixture.dibs.singleton(at, async () => ({ points: 5 }))
    const { slot, id } = await conflictOf(fixture.dibs.singleton(at, async () => 2))
    const voided = await fixture.dibs.voidSlot(
      { scope, slot: { key: slot.key, id: `${id}` } },
      async (tx, result) => {
        await write('undone')(tx)
        return result
      },
    )
    expect(voided).toEqual({ ok: true, value: { points: 5 } })
    expect(await fixture.dibs.voidSlot({ scope, slot: { key: slot.key, id: `${id}` } })).toEqual({
      ok: false,
    })
  })

  it('can leave the slot taken, and then too undoes once', async () => {
    await fixture.schema.clock.freeze(NOON)
    const slot = await done({ holder: 'ann' })
    const undo = () => fixture.dibs.voidSlot({ scope, slot, frees: false }, write('undone'))
    const told = await Promise.all([1, 2, 3, 4, 5].map(undo))
    expect(told.filter(({ ok }) => ok).length).toBe(1)
    expect(await fixture.logged()).toEqual(['undone'])
    const conflict = await conflictOf(fixture.dibs.singleton(at, async () => 2))
    expect(conflict).toMatchObject({ state: 'void', id: slot.id, holder: 'ann', since: NOON })
    expect(conflict.cause).toBeUndefined()
    expect(conflict.message).toContain('"ann" did it, and it was undone')
    expect(await fixture.dibs.voidSlot({ scope, slot })).toEqual({ ok: false })
    expect(await fixture.dibs.claims.get({ singleton: scope, key: slot.key })).toMatchObject({
      status: 'failed',
    })
  })

  it('changes nothing by the id of an earlier use of the slot', async () => {
    const first = await done()
    await fixture.dibs.voidSlot({ scope, slot: first })
    const second = await done()
    expect(second.key).toBe(first.key)
    expect(second.fence).toBeGreaterThan(first.fence)
    expect(await fixture.dibs.voidSlot({ scope, slot: first }, write('again'))).toEqual({ ok: false })
    expect(await fixture.logged()).toEqual([])
    expect(await conflictOf(fixture.dibs.singleton(at, async () => 3))).toMatchObject({ id: second.id })
  })

  it('changes nothing if its function fails, or its transaction rolls back', async () => {
    const slot = await done()
    const failed = fixture.dibs.voidSlot({ scope, slot }, () => Promise.reject(new Error('no')))
    await expect(failed).rejects.toThrow('no')
    await inTransaction(
      async (tx) =>
        expect(await fixture.dibs.voidSlot({ scope, slot, tx }, write('x'))).toMatchObject({ ok: true }),
      { last: 'rollback' },
    )
    expect(await fixture.logged()).toEqual([])
    await conflictOf(fixture.dibs.singleton(at, async () => 2))
    await inTransaction((tx) => fixture.dibs.voidSlot({ scope, slot, tx }, write('x')))
    expect(await fixture.dibs.singleton(at, async () => 3)).toBe(3)
  })

  it('frees a slot that is kept though it failed, and not one whose time is over', async () => {
    await fixture.schema.clock.freeze(NOON)
    const spec = { ...at, ifFailed: 'keep', keepMs: 1 } as const
    await fixture.dibs.singleton(spec, () => Promise.reject(new Error('no'))).catch(() => {})
    const { slot, id } = await conflictOf(fixture.dibs.singleton(at, async () => 2))
    await fixture.schema.clock.advance(24 * HOUR_MS)
    const late = { key: slot.key, id: `${id}` }
    expect(await fixture.dibs.voidSlot({ scope, slot: late })).toEqual({ ok: false })
    await fixture.schema.clock.freeze(NOON)
    expect(await fixture.dibs.voidSlot({ scope, slot: late })).toEqual({ ok: true, value: undefined })
  })

  it('has nothing to undo where a transaction has failed, and under a lease perhaps a part', async () => {
    const undo = async (mode: 'joined' | 'leased') => {
      const spec = { scope: ['keep', mode], per: 'day', ifFailed: 'keep', mode } as never
      await fixture.dibs.singleton(spec, () => Promise.reject(new Error('no'))).catch(() => {})
      const { slot, id } = await conflictOf(fixture.dibs.singleton(spec, async () => 2))
      const seen: unknown[] = []
      const told = await fixture.dibs.voidSlot(
        { scope: ['keep', mode], slot: { key: slot.key, id: `${id}` } },
        async (_, ...given) => seen.push(...given),
      )
      expect(told.ok).toBe(true)
      expect(await fixture.dibs.singleton(spec, async () => 'anew')).toBe('anew')
      return seen
    }
    expect(await undo('joined')).toEqual([])
    expect(await undo('leased')).toEqual([undefined, 'failed'])
  })

  it('is refused for what is not done, and has nothing to do where that was given back', async () => {
    let inside: Slot | undefined
    await inTransaction(async (tx) => {
      const failed = fixture.dibs.singleton({ ...at, tx }, async (_, slot) => {
        inside = slot
        const voiding = fixture.dibs.voidSlot({ scope, slot, tx })
        await expect(voiding).rejects.toThrow(InProgressError)
        await expect(voiding).rejects.toThrow('This very transaction works on slot')
        throw new Error('no')
      })
      await expect(failed).rejects.toThrow('no')
    })
    expect(await fixture.dibs.voidSlot({ scope, slot: inside as Slot })).toEqual({ ok: false })
  })

  it('refuses to begin inside another transaction without being given it', async () => {
    const slot = await done()
    const nested = fixture.dibs.transaction(() => fixture.dibs.voidSlot({ scope, slot }, write('undone')))
    await expect(nested).rejects.toThrow(NestedTransactionError)
    await expect(nested).rejects.toThrow('Give it that transaction: dibs.voidSlot({ …, tx }, …).')
    expect(await fixture.logged()).toEqual([])
  })

  it('can undo what an operator has decided', async () => {
    await fixture.dibs
      .singleton({ ...at, mode: 'leased' }, () => Promise.reject(new Error('no')))
      .catch(() => {})
    const [claim] = (await fixture.dibs.claims.list({ singleton: 'prayer:ann' })).items
    const slot = { key: `${claim?.key}`, id: `${claim?.id}` }
    const address = { singleton: 'prayer:ann', key: slot.key }
    expect(await fixture.dibs.claims.resolve(address, { outcome: 7 })).toEqual({ ok: true })
    expect(await conflictOf(fixture.dibs.singleton(at, async () => 2))).toMatchObject({ result: 7 })
    expect(await fixture.dibs.voidSlot({ scope, slot }, async (_, result) => result)).toEqual({
      ok: true,
      value: 7,
    })
  })

  it('leaves no lock behind where it changes nothing', async () => {
    const slot = await done()
    await fixture.dibs.voidSlot({ scope, slot, frees: false })
    await inTransaction(async (tx) => {
      expect(await fixture.dibs.voidSlot({ scope, slot, tx })).toEqual({ ok: false })
      expect(await fixture.dibs.voidSlot({ scope, slot: { ...slot, id: 'other' }, tx })).toEqual({
        ok: false,
      })
      expect(await lockedRows()).toEqual([])
    })
  })

  it('waits for another who undoes it, within bounds, and does not bound what its function does', async () => {
    const slot = await done()
    const timeout = async (tx: Tx) => (await tx.query('show lock_timeout')).rows[0]?.lock_timeout
    await inTransaction(async (tx) => {
      const usual = await timeout(tx)
      await fixture.dibs.voidSlot({ scope, slot, tx })
      expect(await timeout(tx)).toBe(usual)
      const waiting = inTransaction(async (other) => {
        await other.query("set local statement_timeout = '2s'")
        await expect(fixture.other.voidSlot({ scope, slot, tx: other })).rejects.toThrow(BusyError)
        await write('usable')(other)
      })
      await waiting
      const usualAlone = viaPgBouncer ? '0' : (await query('show lock_timeout'))[0]?.lock_timeout
      await tx.query('rollback')
      const alone = await fixture.dibs.voidSlot({ scope, slot }, timeout)
      expect(alone).toEqual({ ok: true, value: usualAlone })
    })
    expect(await fixture.logged()).toEqual(['usable'])
  })
})

describe('operators', () => {
  it('see slots by the name of their singleton, and who has them', async () => {
    await fixture.schema.clock.freeze(NOON)
    await slotOf({ ...at, holder: 'ann' })
    await slotOf({ scope: 'report', per: 'day' })
    await fixture.dibs.once({ scope: 'prayer', key: 'k' }, async () => 1)
    const address = { singleton: ['prayer', 'ann'], key: 'day:2026-06-15' }
    const claim = await fixture.dibs.claims.get(address)
    expect(claim).toMatchObject({
      singleton: 'prayer:ann',
      holder: 'ann',
      status: 'active',
      key: 'day:2026-06-15',
    })
    for (const name of ['input', 'operation']) expect(claim).not.toHaveProperty(name)
    const list = async (options: object) =>
      (await fixture.dibs.claims.list(options)).items.map(({ singleton, holder }) => [
        singleton,
        singleton === 'prayer:ann' ? holder : undefined,
      ])
    expect(await list({ singleton: 'prayer' })).toEqual([['prayer:ann', 'ann']])
    expect(await list({})).toEqual([
      ['prayer:ann', 'ann'],
      ['report', undefined],
      [undefined, undefined],
    ])
    await expect(fixture.dibs.claims.list({ singleton: 'a', operation: 'b' })).rejects.toThrow(
      '`singleton` must not be given with `operation`: give one of them',
    )
    expect(await fixture.dibs.claims.forget(address)).toEqual({ ok: true })
    expect(await fixture.dibs.singleton(at, async () => 'anew')).toBe('anew')
  })
})

describe('what is no singleton', () => {
  it.each([
    [{ per: 'fortnight' }, '`per` must be'],
    [{ per: undefined, timeZone: undefined }, '`per` must be given, or `perMs`'],
    [{ perMs: 1_000 }, '`perMs` must not be given with `per`'],
    [{ per: undefined, timeZone: undefined, perMs: Number.NaN }, '`perMs` must be'],
    [
      { per: undefined, timeZone: undefined, perMs: 1, from: new Date(Number.NaN) },
      '`from` must be a valid Date',
    ],
    [{ per: { cron: 'every day' } }, /^`cron` "every day" is no cron expression: .*[^.]\.$/],
    [{ per: undefined, perMs: 60_000, timeZone: 'UTC' }, '`timeZone` must not be given with `perMs`'],
    [{ timeZone: 'Mars/Phobos' }, '`timeZone` must be'],
    [{ timeZone: '+01:00' }, '`timeZone` must be'],
    [{ holder: '' }, '`holder` must not be empty'],
    [{ holder: 7 }, '`holder` must be a string'],
    [{ ifFailed: 'retry' }, "`ifFailed` must be 'free' or 'keep'"],
    [{ keepMs: Number.NaN }, '`keepMs` must be'],
    [{ keepMs: 0 }, '`keepMs` must be'],
    [{ maxAttempts: 0 }, '`maxAttempts` must be'],
    [{ maxAttempts: Number.NaN }, '`maxAttempts` must be'],
    [{ waitMs: -1 }, '`waitMs` must be'],
    [{ waitMs: Number.NaN }, '`waitMs` must be'],
    [{ scope: '' }, '`scope` must not be empty'],
    [{ scope: ':x' }, '`scope` must not begin'],
    [{ scope: [] }, '`scope` must not be empty'],
    [{ mode: 'both' }, "`mode` must be 'joined' or 'leased'"],
    [{ mode: 'lease', leaseMs: 1_000 }, "`mode` must be 'joined' or 'leased'"],
    [{ leaseMs: 1_000 }, 'Unknown option "leaseMs"'],
    [
      { timezone: 'UTC' },
      'Unknown option "timezone". Did you mean timeZone? Expected one of: scope, per, timeZone, perMs, from, holder, ifFailed, keepMs, maxAttempts, mode, waitMs, tx, deadlineMs.',
    ],
    [
      { mode: 'leased', lease: 1 },
      'Unknown option "lease". Did you mean leaseMs? Expected one of: scope, per, timeZone, perMs, from, holder, ifFailed, keepMs, maxAttempts, mode, waitMs, leaseMs.',
    ],
    [{ mode: 'leased', deadlineMs: 1_000 }, 'Unknown option "deadlineMs"'],
    [{ mode: 'leased', leaseMs: 1 }, '`leaseMs` must be'],
    [{ pre: 'day' }, 'Unknown option "pre"'],
  ])('is refused before anything is asked: %j', async (spec, message) => {
    const call = fixture.dibs.singleton({ ...at, ...spec } as never, async () => 1)
    await expect(call).rejects.toThrow(InvalidInputError)
    await expect(call).rejects.toThrow(message)
  })

  it('is refused without a spec, or a function', async () => {
    await expect(fixture.dibs.singleton(null as never, async () => 1)).rejects.toThrow(
      '`spec` must be an object',
    )
    await expect(fixture.dibs.singleton(at, undefined as never)).rejects.toThrow('`fn` must be a function')
    const both = fixture.dibs.singleton({ ...at, tx: {} as never, deadlineMs: 1 }, async () => 1)
    await expect(both).rejects.toThrow('must not be given with `tx`')
  })

  it.each([
    [{ slot: undefined }, '`slot` must be an object'],
    [{ slot: { key: 'k' } }, '`slot.id` must be'],
    [{ slot: { id: 'i' } }, '`slot.key` must be'],
    [{ frees: 'yes' }, '`frees` must be'],
    [{ free: true }, 'Unknown option "free"'],
  ])('nor is this voided: %j', async (spec, message) => {
    const slot = { key: 'day:2026-06-15', id: 'i' }
    const call = fixture.dibs.voidSlot({ scope: 's', slot, ...spec } as never)
    await expect(call).rejects.toThrow(message)
  })
})
