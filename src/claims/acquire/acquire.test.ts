import { describe, expect, it } from 'vitest'
import { acquirersOf, HOUR_MS } from '../../../test/claims/acquirers.js'
import { callersOf } from '../../../test/claims/callers.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { until } from '../../../test/database.js'
import { deferred } from '../../../test/deferred.js'
import { realTime } from '../../../test/real-time.js'
import type { Dibs } from '../../dibs.js'
import {
  AcquireRefusedError,
  BusinessRuleError,
  BusyError,
  ConflictError,
  type DibsError,
  FingerprintMismatchError,
  InProgressError,
  InvalidInputError,
  LockHeldError,
  NestedTransactionError,
  PermanentError,
  QuotaExceededError,
  SingletonConflictError,
} from '../../errors.js'
import { onEvent } from '../../postgres/events.js'
import type { Tx } from '../../postgres/executor.js'
import { countTraffic } from '../../testing/count-traffic.js'
import { type AcquireClaim, claim } from './acquire-claims.js'

const fixture = openClaims()
const { query, everything, lockedRows, slowly } = acquirersOf(fixture)
const { write, inTransaction, waiters } = callersOf(fixture, { scope: 's', key: 'k' })

const key = { scope: 'events', key: 'k' }
const slot = { scope: ['prayer', 'ann'], per: 'day' } as const
const points = () => fixture.dibs.quota('points', { limit: 10, per: 'day', ledger: true })
const coins = () => fixture.dibs.quota('coins', { limit: 5 })
/** One of each kind. */
const all = (by = 'ann') =>
  [
    claim.lock('till-7'),
    points().claim('ann', 4),
    claim.singleton({ ...slot, holder: by }),
    claim.once(key),
  ] as const

/** How a joined call can be made: each runs to its end, and commits also after an error of the claims. */
const ways: [
  string,
  (
    claims: readonly AcquireClaim<unknown>[],
    fn: (tx: Tx) => Promise<unknown>,
    dibs?: Dibs,
  ) => Promise<unknown>,
][] = [
  ['alone', (list, fn, dibs = fixture.dibs) => dibs.acquire(list, fn)],
  [
    'in a transaction of a plain client',
    (list, fn, dibs = fixture.dibs) =>
      inTransaction(async (tx) => {
        const ended = await dibs.acquire(list, { tx }, fn).then(
          (value) => () => value,
          (error) => () => Promise.reject(error),
        )
        return { ended }
      }).then(({ ended }) => ended()),
  ],
  [
    'in dibs.transaction',
    (list, fn, dibs = fixture.dibs) =>
      dibs
        .transaction(async (tx) => {
          const ended = await dibs.acquire(list, { tx }, fn).then(
            (value) => () => value,
            (error) => () => Promise.reject(error),
          )
          return { ended }
        })
        .then(({ ended }) => ended()),
  ],
]

const refusalOf = async (call: Promise<unknown>): Promise<AcquireRefusedError> => {
  const error = await call.catch((reason) => reason)
  expect(error).toBeInstanceOf(AcquireRefusedError)
  return error as AcquireRefusedError
}
const kindsOf = ({ failures }: AcquireRefusedError) =>
  failures.map(({ index, kind, error }) => [index, kind, error.constructor])

/** A transaction that has written, and that stays open until the test ends it. */
async function held(fn: (tx: Tx) => Promise<unknown>) {
  const began = deferred()
  const goOn = deferred<string>()
  const ended = inTransaction(async (tx) => {
    await fn(tx)
    began.resolve()
    await tx.query(await goOn.promise)
  })
  ended.catch(() => {})
  await Promise.race([began.promise, ended])
  return {
    end: async (how: 'commit' | 'rollback' = 'rollback') => {
      goOn.resolve(how)
      await ended
    },
  }
}

describe.each(ways)('acquire, %s', (_, acquire) => {
  it('grants all, in the order in which they are given, and stores the outcome', async () => {
    let given: unknown[] = []
    const value = await (acquire as (...args: unknown[]) => Promise<unknown>)(
      all('bob'),
      async (tx: Tx, grants: unknown[]) => {
        given = grants
        await write('done')(tx)
        return { when: new Date(0) }
      },
    )
    expect(value).toEqual({ when: '1970-01-01T00:00:00.000Z' })
    expect(given).toEqual([
      { name: 'till-7', fence: expect.any(Number) },
      {
        ...{ limit: 10, used: 4, held: 0, remaining: 6, id: expect.any(String), replayed: false },
        ...{ startsAt: expect.any(Date), resetsAt: expect.any(Date) },
      },
      {
        ...{ key: expect.stringMatching(/^day:/), id: expect.any(String), fence: expect.any(Number) },
        ...{ startsAt: expect.any(Date), endsAt: expect.any(Date) },
      },
      { id: expect.any(String), fence: expect.any(Number), attempt: 1 },
    ])
    const [lock, use, period, once] = given as { id: string; key: string; fence: number }[]
    expect(await fixture.logged()).toEqual(['done'])
    expect(await points().peek('ann')).toMatchObject({ used: 4, held: 0 })
    expect((await points().verify()).items).toEqual([])
    expect(await fixture.dibs.claims.get(key)).toMatchObject({
      id: once?.id,
      fence: once?.fence,
      outcome: value,
    })
    const address = { singleton: slot.scope, key: `${period?.key}` }
    expect(await fixture.dibs.claims.get(address)).toMatchObject({
      id: period?.id,
      holder: 'bob',
      outcome: value,
    })
    // The lock is free again, and its fence is that of the grant.
    expect(await query('select fence::float8, expires_at::text from {schema}.lock')).toEqual([
      { fence: lock?.fence, expires_at: '-infinity' },
    ])
    expect(await points().refund(`${use?.id}`)).toEqual({ replayed: false })
  })

  it('replays without a look at anything else', async () => {
    await acquire(all(), async () => 1)
    const other = await held((tx) => tx.query(`select from ${fixture.schema.name}.quota for update`))
    // Other callers have locked and filled the quota, taken the slot and the lock.
    const leased = slowly((work) => fixture.dibs.acquire([claim.lock('till-7')], { mode: 'leased' }, work))
    await leased.began
    const before = await everything()
    const list = all().map((claim) => (claim.kind === 'quota' ? points().claim('ann', 10) : claim))
    expect(await acquire(list, write('again'))).toBe(1)
    expect(await everything()).toEqual(before)
    expect(await fixture.logged()).toEqual([])
    await other.end()
  })

  it('reports every claim that is in the way, with its own reason, and takes nothing', async () => {
    await fixture.dibs.singleton({ ...slot, holder: 'bob' }, async () => 'was first')
    await points().take('ann', 8)
    await coins().take('ann', 5)
    const holder = slowly((work) =>
      fixture.dibs.acquire([claim.lock('till-7')], { mode: 'leased', leaseMs: HOUR_MS }, work),
    )
    await holder.began
    const free = [
      claim.lock('free'),
      points().claim('bob', 1),
      claim.singleton({ scope: 'free', per: 'day' }),
    ]
    const before = await everything()
    const list = [coins().claim('ann', 1), ...free, ...all().slice(0, 3)]
    const refusal = await refusalOf(acquire(list, write('x')))
    expect(kindsOf(refusal)).toEqual([
      [0, 'quota', QuotaExceededError],
      [4, 'lock', LockHeldError],
      [5, 'quota', QuotaExceededError],
      [6, 'singleton', SingletonConflictError],
    ])
    expect(refusal).toMatchObject({ isFinal: true, replayed: false, status: 409, retryable: false })
    expect(refusal).not.toHaveProperty('retryAfterMs')
    const errors = refusal.failures.map(({ error }) => error)
    expect(errors[0]).toMatchObject({ quota: 'coins', subject: 'ann', limit: 5, used: 5, requested: 1 })
    expect(errors[1]).toMatchObject({ lock: 'till-7', holder: expect.any(String) })
    expect(errors[1]?.retryAfterMs).toBeGreaterThan(HOUR_MS - 60_000)
    expect(errors[2]).toMatchObject({
      quota: 'points',
      used: 8,
      requested: 4,
      retryAfterMs: expect.any(Number),
    })
    expect(errors[3]).toMatchObject({ holder: 'bob', result: 'was first', state: 'active' })
    expect(refusal.message).toMatch(/^4 claims were refused, so none was made: Quota/)
    expect(await everything()).toEqual(before)
    expect(await fixture.logged()).toEqual([])
  })

  it('stores a refusal under the key if it is final, and replays it', async () => {
    await fixture.dibs.singleton({ ...slot, holder: 'bob' }, async () => 'was first')
    await points().take('ann', 8)
    const first = await refusalOf(acquire(all(), write('x')))
    expect(first).toMatchObject({ isFinal: true, replayed: false })
    expect(await fixture.dibs.claims.get(key)).toMatchObject({ status: 'failed' })
    // The stored refusal stays after its reasons are gone.
    await query("delete from {schema}.claim where scope like '::%'")
    await query('delete from {schema}.quota_entry')
    await query('delete from {schema}.quota')
    const before = await everything()
    const again = await refusalOf(acquire(all(), write('x')))
    expect(again).toMatchObject({ isFinal: true, replayed: true, message: first.message })
    expect(again.failures).toEqual(first.failures)
    expect(kindsOf(again)).toEqual([
      [1, 'quota', QuotaExceededError],
      [2, 'singleton', SingletonConflictError],
    ])
    expect(await everything()).toEqual(before)
    expect(await fixture.logged()).toEqual([])
  })

  it('stores the refusal of another, that its function takes for final, as any other error', async () => {
    await points().take('ann', 8)
    const list = [claim.once({ ...key, isTerminal: () => true })]
    const inner = () => fixture.other.acquire([points().claim('ann', 4)], async () => 1)
    await refusalOf(acquire(list, () => inner()))
    const replay = await acquire(list, write('x')).catch((error) => error)
    expect(replay).toBeInstanceOf(PermanentError)
    expect(replay).toMatchObject({ replayed: true, cause: { name: 'AcquireRefusedError' } })
  })

  it('is a 409 that no retry helps if a stock is sold out', async () => {
    await coins().take('ann', 5)
    await points().take('ann', 8)
    for (const list of [[coins().claim('ann', 1)], [coins().claim('ann', 1), points().claim('ann', 4)]]) {
      const refusal = await refusalOf(acquire(list, write('x')))
      expect(refusal).toMatchObject({ status: 409, retryable: false })
      expect(refusal).not.toHaveProperty('retryAfterMs')
    }
    expect(await refusalOf(acquire([points().claim('ann', 4)], write('x')))).toMatchObject({
      ...{ status: 429, retryable: true },
    })
  })

  it('does not store a refusal that may pass', async () => {
    const taken = await points().take('ann', 8)
    const refusal = await refusalOf(acquire(all(), write('x')))
    expect(kindsOf(refusal)).toEqual([[1, 'quota', QuotaExceededError]])
    expect(refusal.isFinal).toBe(false)
    expect(refusal.retryAfterMs).toBe(refusal.failures[0]?.error.retryAfterMs)
    expect(await fixture.dibs.claims.list()).toEqual({ items: [] })
    await points().refund(`${taken.id}`)
    await acquire(all(), write('now'))
    expect(await fixture.logged()).toEqual(['now'])
  })

  it.each([
    [
      'a lock that another transaction has made',
      (tx: Tx) => fixture.dibs.acquire([claim.lock('till-7')], { tx }, async () => 1),
    ],
    [
      'a lock that is there, and that another transaction has',
      async (tx: Tx) => {
        await fixture.dibs.acquire([claim.lock('till-7')], async () => 1)
        await fixture.dibs.acquire([claim.lock('till-7')], { tx }, async () => 1)
      },
    ],
  ])('refuses %s at once', realTime, async (__, hold) => {
    const other = await held(hold)
    const startedAt = performance.now()
    const refusal = await refusalOf(acquire(all(), write('x')))
    expect(performance.now() - startedAt).toBeLessThan(1_500)
    expect(kindsOf(refusal)).toEqual([[0, 'lock', LockHeldError]])
    expect(refusal).toMatchObject({ isFinal: false, retryAfterMs: 100 })
    await other.end()
    await acquire(all(), write('now'))
    expect(await fixture.logged()).toEqual(['now'])
  })

  it('undoes all of it when the function fails', async () => {
    await points().take('ann', 1)
    await acquire([claim.lock('till-7')], async () => 1)
    const before = await everything()
    const boom = new Error('boom')
    await expect(acquire(all(), () => Promise.reject(boom))).rejects.toBe(boom)
    const after = await everything()
    expect([after.quotas, after.entries]).toEqual([before.quotas, before.entries])
    expect((await points().verify()).items).toEqual([])
    const { items: left } = await fixture.dibs.claims.list()
    expect(left.filter(({ held: how }) => how !== 'released')).toEqual([])
    expect(after.locks).toMatchObject([{ expires_at: Number.NEGATIVE_INFINITY }])
    await acquire(all(), write('now'))
    expect(await points().peek('ann')).toMatchObject({ used: 5 })
  })

  it('stores a final error under the key, and undoes the rest', async () => {
    await expect(acquire(all(), () => Promise.reject(new PermanentError('declined')))).rejects.toThrow(
      'declined',
    )
    expect(await fixture.dibs.claims.get(key)).toMatchObject({
      status: 'failed',
      outcome: { message: 'declined' },
    })
    expect(await points().peek('ann')).toMatchObject({ used: 0 })
    expect((await points().verify()).items).toEqual([])
    await expect(acquire(all(), write('x'))).rejects.toThrow(PermanentError)
    await acquire(all().slice(0, 3), write('without the key'))
    expect(await fixture.logged()).toEqual(['without the key'])
  })

  it('keeps a slot that is to be kept, and undoes the rest', async () => {
    const keep = claim.singleton({ ...slot, ifFailed: 'keep' })
    const other = claim.singleton({ scope: 'other', per: 'day' })
    const list = [claim.once(key), keep, other, points().claim('ann', 4)]
    await expect(acquire(list, () => Promise.reject(new Error('boom')))).rejects.toThrow('boom')
    expect(await points().peek('ann')).toMatchObject({ used: 0 })
    expect((await points().verify()).items).toEqual([])
    const { items: left } = await fixture.dibs.claims.list()
    expect(left.map(({ scope, status, held: how }) => [scope, how ?? status])).toEqual([
      ['::other', 'released'],
      ['::prayer:ann', 'failed'],
      ['events', 'released'],
    ])
    const refusal = await refusalOf(acquire([other, keep], write('x')))
    expect(kindsOf(refusal)).toEqual([[1, 'singleton', SingletonConflictError]])
  })

  it('takes an id once, and does not give back what was taken before', async () => {
    const take = () => points().claim('ann', 4, { id: 'event-1' })
    await points().take('ann', 4, { id: 'event-1' })
    await acquire([take()], async () => 1)
    await acquire([take(), claim.once(key)], () => Promise.reject(new PermanentError('no'))).catch(() => {})
    expect(await points().peek('ann')).toMatchObject({ used: 4 })
    const other = points().claim('ann', 5, { id: 'event-1' })
    expect(kindsOf(await refusalOf(acquire([other], write('x'))))).toEqual([
      [0, 'quota', FingerprintMismatchError],
    ])
    expect((await points().verify()).items).toEqual([])
  })
})

describe('acquire, alone', () => {
  it('needs two round trips for four claims, and one commit', async () => {
    await fixture.dibs.acquire([claim.once({ ...key, key: 'warm' })], async () => 1)
    const first = await countTraffic(fixture.pool, () => fixture.dibs.acquire(all(), async () => 1))
    expect(first).toMatchObject({ roundTrips: 2, commits: 1 })
    // The second round trip ends a transaction that has done nothing. The call does not wait for it.
    const replay = await countTraffic(fixture.pool, () => fixture.dibs.acquire(all(), async () => 2))
    expect(replay).toMatchObject({ value: 1, roundTrips: 2, commits: 0 })
    const other = all().slice(0, 3)
    const refused = await countTraffic(fixture.pool, () =>
      refusalOf(fixture.dibs.acquire(other, async () => 2)),
    )
    expect(refused).toMatchObject({ roundTrips: 2, commits: 0 })
  })

  it('gives back what is no JSON where nothing is stored, and refuses it where something is', async () => {
    const value = await fixture.dibs.acquire([claim.lock('till-7')], async () => 1n)
    expect(value).toBe(1n)
    const bad = fixture.dibs.acquire([claim.lock('till-7'), claim.once(key)], async () => 1n as never)
    await expect(bad).rejects.toThrow('`outcome` is a bigint')
    expect(await fixture.dibs.claims.list()).toEqual({ items: [] })
  })

  it('repeats the function after a conflict, with everything taken once', async () => {
    let tries = 0
    const list = [...all(), claim.singleton({ scope: 'kept', per: 'day', ifFailed: 'keep' })]
    await fixture.dibs.acquire(list, async (tx) => {
      await write(`try ${++tries}`)(tx)
      if (tries < 3) throw new ConflictError({ subject: 'a row' })
    })
    expect(await fixture.logged()).toEqual(['try 3'])
    expect(await points().peek('ann')).toMatchObject({ used: 4 })
  })

  it('refuses to begin inside another transaction without being given it', async () => {
    const nested = fixture.dibs.transaction(() => fixture.dibs.acquire(all(), async () => 1))
    await expect(nested).rejects.toThrow(NestedTransactionError)
    await expect(nested).rejects.toThrow('Give it that transaction: dibs.acquire([…], { tx }, …).')
  })

  it('does what was left for after the commit, once, and not after a failure', async () => {
    let after = 0
    const run = (fail: boolean) =>
      fixture.dibs.acquire([claim.once({ ...key, key: String(fail) })], async (tx) => {
        tx.afterCommit(() => void after++)
        if (fail) throw new BusinessRuleError('no')
      })
    await run(false)
    await run(false)
    await expect(run(true)).rejects.toThrow('no')
    expect(after).toBe(1)
  })

  it('tells why it was refused', async () => {
    await points().take('ann', 8)
    const events: unknown[] = []
    const stop = onEvent(
      'dibs:acquire.refused',
      ({ instance: _, schema: __, ...fields }) => void events.push(fields),
    )
    await refusalOf(fixture.dibs.acquire(all(), async () => 1))
    stop()
    expect(events).toEqual([{ kinds: ['quota'], isFinal: false, waitedMs: expect.any(Number), retries: 0 }])
  })

  it('ends its transaction at its deadline', async () => {
    const late = fixture.dibs.acquire(all(), { deadlineMs: 200 }, (tx) => tx.query('select pg_sleep(5)'))
    await expect(late).rejects.toThrow(/cancel|deadline/i)
    expect(await everything()).toEqual({ claims: [], locks: [], quotas: [], entries: [] })
  })
})

describe('a refusal', () => {
  it.each([
    ['that may pass', false],
    ['that is final', true],
  ])("%s leaves no lock behind in the caller's transaction", async (_, isFinal) => {
    // All claims have rows, and none is new.
    const others = [claim.singleton({ scope: 'released', per: 'day' }), points().claim('bob', 1)]
    await inTransaction((tx) =>
      fixture.dibs
        .acquire([...all(), ...others], { tx }, () => Promise.reject(new Error('no')))
        .catch(() => {}),
    )
    if (isFinal) await fixture.dibs.singleton({ scope: 'taken', per: 'day' }, async () => 1)
    await points().take('ann', 8)
    const list = [...all(), ...others, ...(isFinal ? [claim.singleton({ scope: 'taken', per: 'day' })] : [])]
    const before = await everything()
    await inTransaction(async (tx) => {
      await refusalOf(fixture.dibs.acquire(list, { tx }, write('x')))
      // Only the outcome of the key was written.
      expect(await lockedRows()).toEqual(isFinal ? ['claim'] : [])
      if (!isFinal) expect(await everything()).toEqual(before)
      await write('usable')(tx)
    })
    expect(await fixture.logged()).toEqual(['usable'])
  })

  it('that is final is stored only if the transaction commits', async () => {
    await fixture.dibs.singleton(slot, async () => 1)
    const refuse = (tx: Tx) => refusalOf(fixture.dibs.acquire(all(), { tx: tx as never }, write('x')))
    await inTransaction(refuse, { last: 'rollback' })
    expect(await fixture.dibs.claims.get(key)).toBeUndefined()
    await inTransaction(refuse)
    expect(await fixture.dibs.claims.get(key)).toMatchObject({ status: 'failed' })
  })

  it('of a cron expression that was asked with the wrong time stores nothing', async () => {
    await fixture.schema.clock.freeze(new Date('2031-06-15T12:00:00Z'))
    const taken = { scope: 'taken', per: 'day' } as const
    await fixture.dibs.singleton(taken, async () => 1)
    const list = [
      claim.once(key),
      claim.singleton(taken),
      claim.singleton({ scope: 'cron', per: { cron: '0 3 * * *' } }),
    ]
    for (const options of [{}, { mode: 'leased' }] as const) {
      const refusal = await refusalOf(fixture.dibs.acquire(list, options as object, async () => 1))
      expect(kindsOf(refusal)).toEqual([[1, 'singleton', SingletonConflictError]])
      expect(refusal).toMatchObject({ isFinal: true, replayed: false })
      expect(await fixture.dibs.claims.forget(key)).toEqual({ ok: true })
    }
  })
})

describe('others that are undecided', () => {
  const list = () => [points().claim('ann', 4), claim.lock('till-7')]

  it.each([
    ['alone', {}],
    ['leased', { mode: 'leased' }],
  ])('are waited for in steps, then it goes on: %s', async (_, options) => {
    await points().take('ann', 1)
    const other = await held((tx) => points().take('ann', 1, { tx }))
    const call = fixture.dibs.acquire(list(), { waitMs: 10_000, ...options } as object, async () => 'done')
    const pause = performance.now() + 150
    await until(() => performance.now() > pause, 'a few steps')
    // The call waits without a connection, and without a lock.
    expect(await waiters()).toBe(0)
    await other.end('commit')
    expect(await call).toBe('done')
    expect(await points().peek('ann')).toMatchObject({ used: 6 })
  })

  it.each([
    ['alone', 0, {}],
    ['alone', 200, {}],
    ['leased', 200, { mode: 'leased' }],
  ])('are BusyError when the time is over: %s, %s ms', realTime, async (_, waitMs, options) => {
    await points().take('ann', 1)
    const other = await held((tx) => points().take('ann', 1, { tx }))
    const startedAt = performance.now()
    const refusal = await refusalOf(
      fixture.dibs.acquire(list(), { waitMs, ...options } as object, async () => 1),
    )
    const tookMs = performance.now() - startedAt
    expect(tookMs).toBeGreaterThanOrEqual(waitMs * 0.9)
    expect(tookMs).toBeLessThan(waitMs + 1_500)
    expect(kindsOf(refusal)).toEqual([[0, 'quota', BusyError]])
    expect(refusal).toMatchObject({ isFinal: false, retryAfterMs: 100 })
    expect(refusal.failures[0]?.error.message).toContain('a turn at quota "points" of "ann"')
    await other.end()
    expect(await query('select from {schema}.lock where expires_at > now()')).toEqual([])
  })

  it('are not waited for beside one that refuses', realTime, async () => {
    await fixture.dibs.singleton(slot, async () => 1)
    await points().take('ann', 1)
    const other = await held((tx) => points().take('ann', 1, { tx }))
    const startedAt = performance.now()
    const both = [claim.singleton(slot), ...list()]
    const refusal = await refusalOf(fixture.dibs.acquire(both, { waitMs: 5_000 }, async () => 1))
    expect(performance.now() - startedAt).toBeLessThan(2_500)
    expect(kindsOf(refusal)).toEqual([
      [0, 'singleton', SingletonConflictError],
      [1, 'quota', BusyError],
    ])
    await other.end()
  })

  it('of the key are waited for as once does, or are in progress', async () => {
    const first = await held((tx) => fixture.dibs.acquire(all(), { tx: tx as never }, async () => 'first'))
    const atOnce = fixture.other.acquire([claim.once({ ...key, waitMs: 0 })], async () => 2)
    await expect(atOnce).rejects.toThrow(InProgressError)
    const soon = fixture.other.acquire([claim.once({ ...key, waitMs: 60 })], async () => 2)
    await expect(soon).rejects.toThrow(BusyError)
    const second = fixture.other.acquire(all(), async () => 2)
    await until(async () => (await waiters()) === 1, 'the second to wait')
    await first.end('commit')
    expect(await second).toBe('first')
  })

  it('of a slot that comes first are waited for, and of others are not', async () => {
    const first = await held((tx) => fixture.dibs.singleton({ ...slot, tx }, async () => 1))
    const only = fixture.other.acquire([claim.singleton(slot)], async () => 2)
    await until(async () => (await waiters()) === 1, 'the second to wait')
    const soon = await refusalOf(fixture.dibs.acquire([claim.singleton(slot)], { waitMs: 30 }, async () => 2))
    expect(kindsOf(soon)).toEqual([[0, 'singleton', BusyError]])
    const behind = await refusalOf(
      fixture.dibs.acquire(
        [claim.once({ ...key, waitMs: 5_000 }), claim.singleton(slot)],
        {
          waitMs: 30,
        },
        async () => 2,
      ),
    )
    expect(kindsOf(behind)).toEqual([[1, 'singleton', BusyError]])
    await first.end('rollback')
    expect(await only).toBe(2)
  })

  it('of one process wait for their key without a connection', async () => {
    await fixture.beside(
      async (dibs) => {
        const goOn = deferred()
        const began = deferred()
        const first = dibs.acquire(all(), async () => {
          began.resolve()
          await goOn.promise
          return 1
        })
        await began.promise
        const duplicates = Array.from({ length: 8 }, () => dibs.acquire(all(), async () => 2))
        const soon = dibs.acquire([claim.once({ ...key, waitMs: 30 })], async () => 2)
        await expect(soon).rejects.toThrow(BusyError)
        expect(await dibs.acquire([claim.lock('unrelated')], async () => 3)).toBe(3)
        goOn.resolve()
        expect(await Promise.all([first, ...duplicates])).toEqual(Array.from({ length: 9 }, () => 1))
      },
      { max: 2 },
    )
  })
})

describe("in the caller's transaction", () => {
  it('nothing is there if it rolls back', async () => {
    await inTransaction((tx) => fixture.dibs.acquire(all(), { tx }, write('x')), { last: 'rollback' })
    expect(await everything()).toEqual({ claims: [], locks: [], quotas: [], entries: [] })
    expect(await fixture.logged()).toEqual([])
  })

  it('is usable if the function aborts it, and nothing is held', async () => {
    await inTransaction(async (tx) => {
      await fixture.dibs.acquire(all(), { tx }, (own) => own.query('select 1 / 0')).catch(() => {})
      await tx.query('select 1')
    })
    const { claims: left, quotas, entries } = await everything()
    expect(left.every(({ holder, status }) => holder === 'nobody' && status === 'pending')).toBe(true)
    expect([quotas.map(({ used }) => Number(used)), entries]).toEqual([[0], []])
    await fixture.dibs.acquire(all(), async () => 1)
  })

  it('one can be inside another, and knows what that has', async () => {
    await inTransaction((tx) =>
      fixture.dibs.acquire(all(), { tx }, async () => {
        const inner = [
          points().claim('ann', 5),
          claim.lock('till-7'),
          claim.once({ ...key, key: 'inner' }),
        ] as const
        expect(await fixture.dibs.acquire(inner, { tx }, async (_, [use]) => use.used)).toBe(9)
        const full = await refusalOf(fixture.dibs.acquire([points().claim('ann', 2)], { tx }, async () => 1))
        expect(full.failures[0]?.error).toMatchObject({ used: 9, requested: 2 })
        for (const again of [claim.once(key), claim.singleton(slot)])
          await expect(fixture.dibs.acquire([again], { tx }, async () => 1)).rejects.toThrow(
            InvalidInputError,
          )
      }),
    )
    expect(await points().peek('ann')).toMatchObject({ used: 9 })
    expect((await points().verify()).items).toEqual([])
  })

  it('waits no longer than its statements may take, and leaves it usable', async () => {
    const first = await held((tx) => fixture.dibs.acquire(all(), { tx: tx as never }, async () => 1))
    await inTransaction(async (tx) => {
      await tx.query("set local statement_timeout = '2s'")
      await expect(fixture.other.acquire(all(), { tx }, write('x'))).rejects.toThrow(BusyError)
      await write('after')(tx)
    })
    await first.end()
    expect(await fixture.logged()).toEqual(['after'])
  })

  it('its own lock_timeout is as it was', async () => {
    await inTransaction(async (tx) => {
      await tx.query("set local lock_timeout = '7777ms'")
      await fixture.dibs.acquire(all(), { tx }, async () => 1)
      expect((await tx.query('show lock_timeout')).rows).toEqual([{ lock_timeout: '7777ms' }])
    })
  })

  it('at repeatable read what came later is a conflict, and is repeated', async () => {
    let tries = 0
    const value = await fixture.dibs.transaction(
      async (tx) => {
        await tx.query('select 1')
        if (++tries === 1) await fixture.other.acquire(all().slice(1), async () => 'other')
        return fixture.dibs.acquire(all(), { tx }, async () => 'mine')
      },
      { isolation: 'repeatable read' },
    )
    expect([value, tries]).toEqual(['other', 2])
  })
})

describe('in whatever order', () => {
  it('the same claims are the same, also for what was reserved', async () => {
    const pair = () => [points().claim('bob', 1), points().claim('cid', 1)]
    await fixture.dibs.acquire([...all(), ...pair()], async () => 1)
    expect(await fixture.dibs.acquire([...pair(), ...all().toReversed()], async () => 2)).toBe(1)
  })

  it('those who claim the same wait for nobody who waits for them', async () => {
    const names = ['a', 'b', 'c', 'd']
    const quota = fixture.dibs.quota('wide', { limit: 1_000, ledger: true })
    const shuffled = (seed: number) =>
      names
        .flatMap((name) => [
          claim.lock(name),
          quota.claim(name, 1),
          claim.singleton({ scope: [name, seed], per: 'day' }),
        ])
        .map((claim, n) => ({ claim, rank: ((n + 1) * 7919 * (seed + 1)) % 101 }))
        .sort((a, b) => a.rank - b.rank)
        .map(({ claim }) => claim)
    const run = async (seed: number): Promise<number> => {
      for (let refused = 0; ; refused++) {
        const dibs = seed % 2 ? fixture.dibs : fixture.other
        const error: DibsError | undefined = await dibs
          .acquire(shuffled(seed), async () => {})
          .then(
            () => undefined,
            (reason) => reason,
          )
        if (!error) return refused
        expect(error).toBeInstanceOf(AcquireRefusedError)
        for (const { error: why } of (error as AcquireRefusedError).failures)
          expect([LockHeldError, BusyError]).toContain(why.constructor)
      }
    }
    await Promise.all(Array.from({ length: 12 }, (_, seed) => run(seed)))
    for (const name of names) expect(await quota.peek(name)).toMatchObject({ used: 12 })
    expect((await quota.verify()).items).toEqual([])
  })
})

describe('what cannot be claimed', () => {
  it.each([
    ['no list', () => undefined, '`claims` must be an array of 1 to 50 claims'],
    ['an empty list', () => [], '`claims` must be an array of 1 to 50 claims'],
    ['too many', () => Array.from({ length: 51 }, (_, n) => claim.lock(`${n}`)), '1 to 50'],
    ['what is no claim', () => [{ kind: 'lock', name: 'x' }], '`claims[0]` must be made by claim.once'],
    ['nothing', () => [claim.lock('x'), undefined], '`claims[1]` must be made by'],
    [
      'two keys',
      () => [claim.once(key), claim.once({ ...key, key: 'other' })],
      '`claims[1]` is a second idempotency key',
    ],
    ['a lock twice', () => [claim.lock('x'), claim.lock('x')], '`claims[1]` is in the list already'],
    [
      'a slot twice',
      () => [claim.singleton(slot), claim.singleton(slot)],
      '`claims[1]` is in the list already',
    ],
    [
      'a quota twice',
      () => [points().claim('ann', 4), points().claim('bob', 1), points().claim('ann', 5)],
      '`claims[2]` is in the list already: claim the sum',
    ],
    [
      'a rate limit twice',
      () => {
        const api = fixture.dibs.rateLimit('api', { algorithm: 'gcra', limit: 10, perMs: 1_000 })
        return [api.claim('ann'), api.claim('ann')]
      },
      '`claims[1]` is in the list already: claim the sum',
    ],
    ['a lock without a name', () => [claim.lock('')], '`name` must not be empty'],
    ['a key without a scope', () => [claim.once({ key: 'k' } as never)], '`scope` must be'],
    ['a key in a transaction', () => [claim.once({ ...key, tx: {} } as never)], 'Unknown option "tx"'],
    [
      'a key with no number',
      () => [claim.once({ ...key, maxAttempts: Number.NaN })],
      '`maxAttempts` must be',
    ],
    [
      'a key with a question',
      () => [claim.once({ ...key, onAmbiguous: (() => 'retry') as never })],
      '`onAmbiguous` must be',
    ],
    [
      'a key with a mistake',
      () => [claim.once({ ...key, onAmbiguous: 'wait' as never })],
      '`onAmbiguous` must be',
    ],
  ])('%s', async (_, list, message) => {
    const call = (async () => fixture.dibs.acquire(list() as never, async () => 1))()
    await expect(call).rejects.toThrow(InvalidInputError)
    await expect(call).rejects.toThrow(message)
  })

  it.each([
    [{ mode: 'both' }, "`mode` must be 'joined' or 'leased'"],
    [{ waitMs: -1 }, '`waitMs` must be'],
    [{ waitMs: Number.NaN }, '`waitMs` must be'],
    [{ leaseMs: 1_000 }, 'Unknown option "leaseMs"'],
    [{ mode: 'leased', leaseMs: 10 }, '`leaseMs` must be'],
    [{ mode: 'leased', tx: {} }, 'Unknown option "tx"'],
    [{ tx: {}, deadlineMs: 1 }, 'must not be given with `tx`'],
    [{ deadlineMs: 0 }, '`deadlineMs` must be'],
    [null, '`options` must be an object'],
  ])('with %j', async (options, message) => {
    const call = (async () => fixture.dibs.acquire([claim.lock('x')], options as never, async () => 1))()
    await expect(call).rejects.toThrow(message)
  })

  it('without a function', async () => {
    const call = (async () => fixture.dibs.acquire([claim.lock('x')], undefined as never))()
    await expect(call).rejects.toThrow('`fn` must be a function')
  })
})
