import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { acquirersOf, HOUR_MS } from '../../../test/claims/acquirers.js'
import { callersOf } from '../../../test/claims/callers.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { url } from '../../../test/database.js'
import { deferred } from '../../../test/deferred.js'
import { movingClock } from '../../../test/moving-clock.js'
import { realTime } from '../../../test/real-time.js'
import {
  AcquireRefusedError,
  AmbiguousOutcomeError,
  BusyError,
  QuotaExceededError,
  RateLimitedError,
  SingletonConflictError,
} from '../../errors.js'
import { onEvent } from '../../postgres/events.js'
import { PgProxy } from '../../testing/proxy/pg-proxy.js'
import { claim } from './acquire-claims.js'

const fixture = openClaims()
const { holdSlot, query, lockedRows } = acquirersOf(fixture)
const { inTransaction } = callersOf(fixture, { scope: 's', key: 'k' })

const errorOf = (call: Promise<unknown>): Promise<unknown> => call.catch((error) => error)
const monthly = { scope: 'payout', per: 'month' } as const

describe('a slot that its holder has left', () => {
  /** In the middle of a month. */
  const abandon = async (ifFailed: 'free' | 'keep') => {
    await fixture.schema.clock.freeze(new Date('2026-06-10T12:00:00Z'))
    const holder = holdSlot({ ...monthly, ifFailed })
    const [, slot] = await holder.began
    await fixture.schema.clock.advance(HOUR_MS)
    return slot
  }

  it.each([{ outcome: 'done' }, 'retry'] as const)(
    'and that was decided about as %j is taken to the end of its period, at least',
    async (verdict) => {
      const slot = await abandon('keep')
      const run = () =>
        fixture.dibs.singleton({ ...monthly, ifFailed: 'keep', mode: 'leased' }, async () => 'again')
      expect(await errorOf(run())).toBeInstanceOf(AmbiguousOutcomeError)
      expect(await fixture.dibs.claims.resolve({ singleton: 'payout', key: slot.key }, verdict)).toEqual({
        ok: true,
      })
      if (verdict === 'retry') expect(await run()).toBe('again')
      await fixture.schema.clock.advance(48 * HOUR_MS)
      await fixture.dibs.maintain({ once: true })
      expect(await errorOf(run())).toBeInstanceOf(SingletonConflictError)
    },
  )

  it.each(['free', 'keep'] as const)('is removed some time after its period (%s)', async (ifFailed) => {
    await abandon(ifFailed)
    await fixture.schema.clock.freeze(new Date('2026-07-07T12:00:00Z'))
    await fixture.dibs.maintain({ once: true })
    expect(await query('select key from {schema}.claim')).toEqual([{ key: 'month:2026-06' }])
    await fixture.schema.clock.advance(24 * HOUR_MS)
    await fixture.dibs.maintain({ once: true })
    expect(await query('select key from {schema}.claim')).toEqual([])
  })
})

it('a slot that is worked on beyond its time is not removed', async () => {
  const holder = holdSlot({ scope: 'tick', perMs: 1_000, keepMs: 1 })
  await holder.began
  await fixture.schema.clock.advance(60_000)
  await fixture.dibs.maintain({ once: true })
  holder.finish(() => 'done')
  expect(await holder.ended).toBe('done')
  await fixture.dibs.maintain({ once: true })
  await fixture.schema.clock.advance(60_000)
  await fixture.dibs.maintain({ once: true })
  expect(await query('select key from {schema}.claim')).toEqual([])
})

it('a slot that is not kept is free after an error, though it is not known what became of the key', async () => {
  const run = (n: number) =>
    fixture.dibs.acquire(
      [claim.once({ scope: 'pay', key: `${n}`, onAmbiguous: 'hold' }), claim.singleton(monthly)],
      { mode: 'leased' },
      () => Promise.reject(new Error(`no ${n}`)),
    )
  for (let n = 0; n < 7; n++) expect(await errorOf(run(n))).toMatchObject({ message: `no ${n}` })
})

const lockWaiters = async () =>
  (await query("select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%{schema}%'"))
    .length

const day = { scope: 'log', per: 'day' } as const
it.each([
  ['alone', () => fixture.other.singleton(day, async (_, slot) => slot.key)],
  [
    'the first of several',
    () => fixture.other.acquire([claim.singleton(day), claim.lock('x')], async (_, [slot]) => slot.key),
  ],
])('a slot whose period was over while it waited is that of the next: %s', async (_, call) => {
  // A running function sees the change, too.
  const clock = await movingClock(fixture.pool, fixture.schema.name, new Date('2026-06-10T23:59:00Z'))
  await inTransaction(
    async (tx) => {
      await fixture.dibs.singleton({ ...day, tx }, async () => 1)
      const waiting = call()
      await expect.poll(lockWaiters).toBeGreaterThan(0)
      // Longer than the wait limit of the claims behind the first.
      await sleep(600)
      await clock.set(new Date('2026-06-11T00:01:00Z'))
      await tx.query('rollback')
      expect(await waiting).toBe('day:2026-06-11')
    },
    { last: 'select 1' },
  )
})

it.each([
  ['a key', claim.once({ scope: 'pay', key: 'k' })],
  ['a slot', claim.singleton(monthly)],
])('what %s has waited that comes first is not taken from what the others may', async (_, key) => {
  const points = fixture.dibs.quota('points', { limit: 10 })
  await points.take('ann')
  const [began, failed] = [deferred(), deferred()]
  const fail = async () => {
    began.resolve()
    await failed.promise
    throw new Error('no')
  }
  const first = fixture.dibs.acquire([key], fail).catch((error) => error.message)
  await began.promise
  const granted = await inTransaction(async (tx) => {
    await points.take('ann', 1, { tx })
    const call = fixture.other.acquire(
      [key, points.claim('ann')],
      {
        waitMs: 2_000,
      },
      async (_, [, use]) => use.used,
    )
    await expect.poll(lockWaiters).toBeGreaterThan(0)
    // The sum is longer than the wait limit of the call.
    await sleep(1_200)
    failed.resolve()
    expect(await first).toBe('no')
    await sleep(1_100)
    return { call }
  })
  expect(await granted.call).toBe(3)
  await inTransaction(async (tx) => {
    await points.take('ann', 1, { tx })
    const other = claim.once({ scope: 'pay', key: 'other' })
    const refused = await errorOf(
      fixture.dibs.acquire([other, points.claim('ann')], { waitMs: 60 }, async () => 1),
    )
    expect(refused).toMatchObject({ name: 'AcquireRefusedError', failures: [{ kind: 'quota' }] })
    const waited = (refused as AcquireRefusedError).failures.map(({ error }) => (error as BusyError).waitedMs)
    expect(waited).toEqual([expect.toSatisfy((ms) => ms >= 60 && ms < 2_000)])
  })
})

it('three subjects that others have hold up no fourth', realTime, async () => {
  const points = fixture.dibs.quota('points', { limit: 10, waitMs: 5_000 })
  const api = fixture.dibs.rateLimit('api', {
    ...{ algorithm: 'token-bucket', limit: 10, perMs: 60_000, waitMs: 5_000 },
  })
  const locked = ['a', 'b', 'c']
  const all = await inTransaction(async (tx) => {
    for (const subject of locked) {
      await points.take(subject, 1, { tx })
      await api.take(subject, 1, { tx })
    }
    const waiting = locked.flatMap((subject) => [points.take(subject), api.take(subject)])
    await expect.poll(lockWaiters).toBe(6)
    const from = performance.now()
    expect(await points.take('d')).toMatchObject({ used: 1 })
    expect(await api.take('d')).toMatchObject({ remaining: 9 })
    expect(performance.now() - from).toBeLessThan(2_500)
    return { waiting }
  })
  await Promise.all(all.waiting)
})

it('whoever waits for nobody does not wait for subjects that nobody has', async () => {
  const points = fixture.dibs.quota('points', { limit: 10, waitMs: 0 })
  // Later rows fit into the page of this one. On a slow machine, 10 ms are too short to wait while others extend the table.
  await points.take('first')
  const takes = await Promise.all(Array.from({ length: 8 }, (_, n) => points.take(`s${n}`)))
  expect(takes.every(({ used }) => used === 1)).toBe(true)
})

it.each(['joined', 'leased'] as const)(
  'what the function of a slot throws is thrown as it is: %s',
  async (mode) => {
    const mail = claim.singleton({ scope: ['mail', 'ann'], per: 'day' })
    await fixture.dibs.acquire([mail], async () => 1)
    const nightly = { scope: 'nightly', per: 'day', mode } as const
    const inner = () => fixture.other.acquire([mail, claim.lock('x')], async () => 1)
    const error = await errorOf(fixture.dibs.singleton(nightly as never, inner))
    expect(error).toBeInstanceOf(AcquireRefusedError)
    expect(await fixture.dibs.singleton(nightly as never, async () => 'done')).toBe('done')
  },
)

describe('what ended with an answer that was lost', () => {
  it('has ended, though a lock of it is held by another by now', async () => {
    const grants = JSON.stringify([
      { kind: 'claim', scope: 'o', key: 'k', fence: 1, status: 'active', outcome: '1', keepMs: 1_000_000 },
      { kind: 'lock', name: 'l', fence: 1 },
    ])
    await query(
      "insert into {schema}.claim (scope, key, id, holder, fence, lease_until, created_at) values ('o', 'k', 'i', 'me', 1, 'infinity', now())",
    )
    await query(
      "insert into {schema}.lock (name, holder, fence, expires_at, acquired_at) values ('l', 'me', 1, now() + interval '1 hour', now())",
    )
    const end = async () =>
      (await query(`select {schema}.acquire_end('${grants}', 'me', true, 1000, false) as told`))[0]?.told
    expect(await end()).toMatchObject({ state: 'ended' })
    const before = await query('select * from {schema}.claim')
    await fixture.schema.clock.advance(1_000)
    await fixture.dibs.acquire([claim.lock('l')], { mode: 'leased' }, async () => {
      expect(await end()).toMatchObject({ state: 'stored' })
    })
    expect(await query('select * from {schema}.claim')).toEqual(before)
  })
})

it('what ended with an answer that was lost has ended, also if only its reservation knows', async () => {
  const points = fixture.dibs.quota('points', { limit: 10 })
  const ended = deferred()
  let other: Promise<unknown> | undefined
  await using proxy = await PgProxy.start({ url })
  proxy.inject({ kind: 'cut', when: 'after', statement: 'acquire_end', times: 1 })
  await fixture.beside(
    async (dibs) => {
      const stop = onEvent('dibs:commit.unknown', () => {
        other = fixture.dibs.acquire([claim.lock('l')], { mode: 'leased' }, () => ended.promise)
      })
      const list = [claim.lock('l'), dibs.quota('points', { limit: 10 }).claim('ann', 4)] as const
      expect(await dibs.acquire(list, { mode: 'leased' }, async () => 'done')).toBe('done')
      stop()
    },
    { connectionString: proxy.url },
  )
  expect(other).toBeDefined()
  ended.resolve()
  await other
  expect(await points.peek('ann')).toMatchObject({ used: 4, held: 0 })
})

describe('in a transaction of the caller', () => {
  it('whoever is refused leaves no lock behind', async () => {
    const points = fixture.dibs.quota('points', { limit: 10 })
    const rate = fixture.dibs.rateLimit('rate', { algorithm: 'token-bucket', limit: 10, perMs: HOUR_MS })
    await points.take('ann', 8, { id: 'a' })
    await points.refund('a', { amount: 1 })
    await rate.take('ann', 8)
    await inTransaction(async (tx) => {
      expect(await errorOf(points.take('ann', 5, { tx }))).toBeInstanceOf(QuotaExceededError)
      expect(await points.refund('a', { tx })).toEqual({ replayed: true })
      expect(await errorOf(rate.take('ann', 5, { tx }))).toBeInstanceOf(RateLimitedError)
      expect(await lockedRows()).toEqual([])
      await points.take('ann', 1)
      await rate.take('ann', 1)
    })
  })

  it('many that others are about to decide cost less than a short statement_timeout', async () => {
    const points = fixture.dibs.quota('points', { limit: 10 })
    const rate = fixture.dibs.rateLimit('rate', { algorithm: 'gcra', limit: 10, perMs: HOUR_MS })
    const subjects = Array.from({ length: 20 }, (_, n) => `s${n}`)
    const list = () => subjects.flatMap((subject) => [points.claim(subject), rate.claim(subject)])
    await inTransaction(
      async (other) => {
        await fixture.dibs.acquire(list(), { tx: other }, async () => 1)
        await inTransaction(async (tx) => {
          await tx.query("set local statement_timeout = '1s'")
          const refused = await errorOf(fixture.dibs.acquire(list(), { tx, waitMs: 0 }, async () => 1))
          expect((refused as AcquireRefusedError).failures).toHaveLength(40)
          await tx.query('select 1')
        })
      },
      { last: 'rollback' },
    )
  })

  it('a rate limit waits within its bound, and leaves the transaction usable', async () => {
    const rate = fixture.dibs.rateLimit('rate', {
      algorithm: 'gcra',
      limit: 10,
      perMs: HOUR_MS,
      burst: 10,
      waitMs: 120,
    })
    await rate.take('bob')
    await inTransaction(async (first) => {
      await rate.take('bob', 1, { tx: first })
      await inTransaction(async (tx) => {
        await tx.query("set local lock_timeout = '7s'")
        expect(await errorOf(rate.take('bob', 1, { tx }))).toBeInstanceOf(BusyError)
        expect((await tx.query('show lock_timeout')).rows).toEqual([{ lock_timeout: '7s' }])
      })
    })
  })

  it('an id that another transaction is about to use is refused within the wait, and the transaction stays usable', async () => {
    const points = fixture.dibs.quota('points', { limit: 10 })
    for (const subject of ['new', 'there']) {
      if (subject === 'there') await points.take('there')
      await inTransaction(
        async (first) => {
          await points.take('ann', 5, { id: 'x', tx: first })
          await inTransaction(async (tx) => {
            const refused = await errorOf(
              fixture.dibs.acquire(
                [points.claim(subject, 5, { id: 'x' })],
                {
                  tx,
                  waitMs: 50,
                },
                async () => 1,
              ),
            )
            expect(refused).toBeInstanceOf(AcquireRefusedError)
            expect((refused as AcquireRefusedError).failures[0]?.error).toBeInstanceOf(BusyError)
            await tx.query('select 1')
          })
        },
        { last: 'rollback' },
      )
    }
  })

  it('nothing is left of a function that fails, and what others have used stays used', async () => {
    const points = fixture.dibs.quota('points', { limit: 50 })
    await points.take('kid', 20)
    await inTransaction(async (tx) => {
      const failed = await errorOf(
        fixture.dibs.acquire([points.claim('kid', 10, { id: 'event' })], { tx }, async (_, [use]) => {
          await tx.query(`insert into ${fixture.log} (name) values ('undone')`)
          await points.refund(`${use.id}`, { tx })
          await tx.query('select 1 / 0')
        }),
      )
      expect(failed).toMatchObject({ message: expect.stringContaining('division by zero') })
      await tx.query(`insert into ${fixture.log} (name) values ('kept')`)
    })
    expect(await fixture.logged()).toEqual(['kept'])
    expect((await points.peek('kid')).used).toBe(20)
    expect((await points.verify()).items).toEqual([])
  })

  it('no savepoint is left, whatever became of it', async () => {
    await inTransaction(async (tx) => {
      const sent: string[] = []
      const { query: send } = tx
      tx.query = ((...given: [string]) => {
        if (typeof given[0] === 'string') sent.push(given[0])
        return send.apply(tx, given as never)
      }) as never
      await fixture.dibs.acquire([claim.lock('x')], { tx }, async () => 1)
      await errorOf(fixture.dibs.acquire([claim.lock('y')], { tx }, () => Promise.reject(new Error('no'))))
      await fixture.dibs.voidSlot({ scope: 's', slot: { key: 'day:2026-06-10', id: 'gone' }, tx })
      tx.query = send
      const names = (word: string) =>
        sent.filter((text) => text.startsWith(word)).map((text) => text.split(' ').at(-1))
      expect(names('savepoint ')).toHaveLength(3)
      expect(names('release ')).toEqual(names('savepoint '))
    })
  })

  it('nothing is left of a function that says nothing of a statement that failed', async () => {
    await inTransaction(async (tx) => {
      const call = fixture.dibs.acquire([claim.singleton(monthly)], { tx }, async () => {
        await tx.query('select 1 / 0').catch(() => {})
        return 'done'
      })
      await expect(call).rejects.toMatchObject({ sqlState: '25P02' })
      expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    })
    expect(await fixture.dibs.singleton(monthly, async () => 'done')).toBe('done')
  })

  it('a void whose function fails has not happened', async () => {
    const slot = await fixture.dibs.singleton(monthly, async (_, given) => given)
    await inTransaction(async (tx) => {
      const failed = errorOf(
        fixture.dibs.voidSlot({ scope: 'payout', slot, tx }, () => Promise.reject(new Error('no'))),
      )
      expect(await failed).toMatchObject({ message: 'no' })
    })
    expect(await fixture.dibs.voidSlot({ scope: 'payout', slot })).toMatchObject({ ok: true })
  })
})

it('a lock is in nobody’s way whose claim was refused for another reason', async () => {
  const points = fixture.dibs.quota('points', { limit: 1 })
  await points.take('full')
  await inTransaction(async (tx) => {
    await tx.query(`insert into ${fixture.schema.name}.lock (name, holder, fence, expires_at, acquired_at)
      values ('l', 'x', 1, '-infinity', now())`)
    await tx.query('savepoint before')
    const refused = await errorOf(
      fixture.dibs.acquire([points.claim('full'), claim.lock('l')], { tx }, async () => 1),
    )
    expect((refused as AcquireRefusedError).failures.map(({ kind }) => kind)).toEqual(['quota'])
  })
  expect(await query('select fence::int from {schema}.lock')).toEqual([{ fence: 1 }])
})

it('an attempt that asks for another amount than one that was given back', async () => {
  const tokens = fixture.dibs.quota('tokens', { limit: 50 })
  const run = (amount: number, fn: () => Promise<unknown>) =>
    fixture.dibs.acquire(
      [claim.once({ scope: 'ask', key: 'k' }), tokens.claim('ann', amount)],
      {
        mode: 'leased',
      },
      fn,
    )
  await errorOf(run(10, () => Promise.reject(new Error('no'))))
  await run(12, async () => 'yes')
  expect(await tokens.peek('ann')).toMatchObject({ used: 12, held: 0 })
  expect((await tokens.verify()).items).toEqual([])
})

it('a take whose window was over while it waited is of the next', async () => {
  const points = fixture.dibs.quota('points', { limit: 10, per: 'day', waitMs: 10_000 })
  const clock = await movingClock(fixture.pool, fixture.schema.name, new Date('2026-06-10T23:59:00Z'))
  await points.take('ann', 2)
  const other = await fixture.pool.connect()
  try {
    await other.query('begin')
    await points.take('ann', 3, { tx: other })
    const waiting = points.take('ann', 4)
    await expect
      .poll(
        async () =>
          (
            await query(
              "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%{schema}%'",
            )
          ).length,
      )
      .toBeGreaterThan(0)
    await clock.set(new Date('2026-06-11T00:01:00Z'))
    await other.query('commit')
    expect(await waiting).toMatchObject({ used: 4, resetsAt: new Date('2026-06-12T00:00:00Z') })
  } finally {
    other.release()
  }
  expect((await points.verify()).items).toEqual([])
})
