import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import {
  advanceMs,
  advanceUs,
  dibs,
  openRates,
  pool,
  rowsOf,
  START_US,
  schema,
  setClock,
} from '../../../test/rate-fixture.js'
import { BusyError, InvalidInputError, NeverFitsError, RateLimitedError } from '../../errors.js'
import { type DibsEvents, onEvent } from '../../postgres/events.js'
import { countTraffic } from '../../testing/index.js'
import type { RateLimit } from './rate-limit.js'
import type { RateLimitOptions } from './rate-spec.js'

openRates()

/** `resetsAt` is by the clock of this process, which stands still here. */
const STANDS_AT = Date.UTC(2026, 0, 1)
beforeAll(() => void vi.useFakeTimers({ toFake: ['Date'], now: STANDS_AT }))
afterAll(() => void vi.useRealTimers())
const inMs = (ms: number): Date => new Date(STANDS_AT + ms)

/** How many of so many takes of 1 are granted now. */
async function drain(rate: RateLimit, subject = 's', most = 50): Promise<number> {
  for (let n = 0; n < most; n++) if (!(await rate.tryTake(subject)).ok) return n
  return most
}

describe('gcra', () => {
  const spec = { algorithm: 'gcra', limit: 10, perMs: 1_000 } as const

  it('spaces evenly, one at a time unless a burst is given', async () => {
    const even = dibs.rateLimit('even', spec)
    expect(await even.take('s')).toEqual({ remaining: 0, resetsAt: inMs(100), degraded: false })
    expect(await even.tryTake('s')).toEqual({
      ok: false,
      limit: 10,
      cost: 1,
      retryAfterMs: 100,
      remaining: 0,
      resetsAt: inMs(100),
      degraded: false,
    })
    await advanceUs(99_999)
    expect(await even.tryTake('s')).toMatchObject({ ok: false, retryAfterMs: 1, resetsAt: inMs(1) })
    await advanceUs(1)
    expect(await drain(even)).toBe(1)
    await advanceMs(5_000)
    expect(await drain(even)).toBe(1)
    expect(await drain(dibs.rateLimit('bursts', { ...spec, burst: 4 }))).toBe(4)
  })

  it('says when the very cost fits', async () => {
    const rate = dibs.rateLimit('r', { ...spec, burst: 5 })
    await rate.take('s', 5)
    const error = await rate.take('s', 3).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(RateLimitedError)
    expect(error).toMatchObject({
      code: 'DIBS_RATE_LIMITED',
      status: 429,
      retryable: true,
      rateLimit: 'r',
      subject: 's',
      limit: 10,
      cost: 3,
      remaining: 0,
      retryAfterMs: 300,
    })
    await advanceUs(299_999)
    expect((await rate.tryTake('s', 3)).ok).toBe(false)
    await advanceUs(1)
    expect((await rate.tryTake('s', 3)).ok).toBe(true)
  })
})

it('token-bucket: a whole limit at once after a rest, then as it fills', async () => {
  const rate = dibs.rateLimit('r', { algorithm: 'token-bucket', limit: 10, perMs: 1_000 })
  expect(await rate.take('s', 7)).toEqual({ remaining: 3, resetsAt: inMs(700), degraded: false })
  expect(await drain(rate)).toBe(3)
  await advanceMs(250)
  expect(await rate.peek('s')).toEqual({ remaining: 2, resetsAt: inMs(750), degraded: false })
  expect(await drain(rate)).toBe(2)
  await advanceMs(3_600_000)
  expect(await drain(rate)).toBe(10)
})

it('fixed-window: so much in each period, counted from 1970', async () => {
  const rate = dibs.rateLimit('r', { algorithm: 'fixed-window', limit: 10, perMs: 1_000 })
  await advanceMs(400)
  expect(await rate.take('s', 8)).toEqual({ remaining: 2, resetsAt: inMs(600), degraded: false })
  expect(await rate.tryTake('s', 3)).toMatchObject({ ok: false, retryAfterMs: 600, remaining: 2 })
  await advanceUs(599_999)
  expect((await rate.tryTake('s', 3)).ok).toBe(false)
  await advanceUs(1)
  expect(await drain(rate)).toBe(10)
})

it('sliding-window: what was taken in the window before fades', async () => {
  const rate = dibs.rateLimit('r', { algorithm: 'sliding-window', limit: 10, perMs: 1_000 })
  expect(await rate.take('s', 10)).toEqual({ remaining: 0, resetsAt: inMs(2_000), degraded: false })
  expect(await rate.tryTake('s', 4)).toMatchObject({ ok: false, retryAfterMs: 1_400 })
  await advanceUs(1_399_999)
  expect((await rate.tryTake('s', 4)).ok).toBe(false)
  await advanceUs(1)
  expect(await rate.take('s', 4)).toMatchObject({ remaining: 0, resetsAt: inMs(1_600) })
  // Room in this window, once more of the one before has faded.
  expect(await rate.tryTake('s', 2)).toMatchObject({ ok: false, retryAfterMs: 200 })
  await advanceMs(200)
  expect((await rate.tryTake('s', 2)).ok).toBe(true)
  await advanceMs(5_000)
  expect(await rate.peek('s')).toEqual({ remaining: 10, resetsAt: inMs(0), degraded: false })
})

const all: [string, RateLimitOptions][] = [
  ['gcra', { algorithm: 'gcra', limit: 5, perMs: 1_000, burst: 5 }],
  ['token-bucket', { algorithm: 'token-bucket', limit: 5, perMs: 1_000 }],
  ['fixed-window', { algorithm: 'fixed-window', limit: 5, perMs: 1_000 }],
  ['sliding-window', { algorithm: 'sliding-window', limit: 5, perMs: 1_000 }],
]

describe.each(all)('%s', (algorithm, spec) => {
  it('consumes nothing when it refuses, and writes nothing', async () => {
    const rate = dibs.rateLimit('r', spec)
    await rate.take('s', 3)
    const before = await rowsOf('s')
    for (let n = 0; n < 3; n++) expect((await rate.tryTake('s', 3)).ok).toBe(false)
    expect(await rowsOf('s')).toEqual(before)
    expect(await drain(rate)).toBe(2)
  })

  it('never grants more when the clock goes back', async () => {
    const rate = dibs.rateLimit('r', spec)
    await advanceMs(10_000)
    expect(await drain(rate)).toBe(5)
    await advanceMs(-5_000)
    expect(await drain(rate)).toBe(0)
    const answer = await rate.tryTake('s')
    if (answer.ok || answer.retryAfterMs === undefined) throw new Error('granted')
    await advanceMs(answer.retryAfterMs - 1)
    expect((await rate.tryTake('s')).ok).toBe(false)
    await advanceMs(1)
    expect((await rate.tryTake('s')).ok).toBe(true)
  })

  it('counts what was used when the limit is raised or lowered', async () => {
    const burst = algorithm === 'gcra' ? 10 : undefined
    const higher = dibs.rateLimit('r', { ...spec, limit: 10, burst })
    const lower = dibs.rateLimit('r', { ...spec, limit: 2, burst: burst && 2 })
    expect(await drain(dibs.rateLimit('r', spec))).toBe(5)
    expect(await drain(higher)).toBe(5)
    expect(await lower.tryTake('s')).toMatchObject({ ok: false, remaining: 0 })
    expect(await lower.peek('s')).toMatchObject({ remaining: 0 })
    await advanceMs(10_000)
    expect(await drain(lower)).toBe(2)
    expect(await rowsOf('s')).toHaveLength(1)
  })

  it('grants as much as fits to fifty at once, in few statements', async () => {
    const rate = dibs.rateLimit('r', { ...spec, waitMs: 10_000 })
    await rate.take('s')
    const { value, roundTrips } = await countTraffic(pool, () =>
      Promise.all(Array.from({ length: 50 }, () => rate.tryTake('s'))),
    )
    expect(value.filter(({ ok }) => ok)).toHaveLength(4)
    expect(roundTrips).toBeLessThanOrEqual(3)
  })

  it('grants as much as fits to instances that do not know of each other', async () => {
    const rates = Array.from({ length: 8 }, () => dibs.rateLimit('r', { ...spec, waitMs: 10_000 }))
    const answers = await Promise.all(rates.flatMap((rate) => [rate.tryTake('s'), rate.tryTake('s')]))
    expect(answers.filter(({ ok }) => ok)).toHaveLength(5)
  })

  it('is taken back by the transaction that took it', async () => {
    const rate = dibs.rateLimit('r', spec)
    const giveBack = `select ${schema.name}.rate_refund('r', 's', $1, 1000000, $2)`
    await dibs.transaction(async (tx) => {
      await rate.take('s', 4, { tx })
      await tx.query(giveBack, [`${algorithm}:1000`, 3])
    })
    expect(await rate.peek('s')).toMatchObject({ remaining: 4 })
    await pool.query(giveBack, [`${algorithm}:1000`, 3])
    expect(await rate.peek('s')).toMatchObject({ remaining: 5 })
  })

  it('is forgotten by maintenance once it is as if unused, not before', async () => {
    const rate = dibs.rateLimit('r', spec)
    await advanceMs(400)
    await rate.take('s', 5)
    await advanceMs(1_000)
    expect(await dibs.maintain({ once: true })).toMatchObject({ ratesForgotten: 0 })
    // Shortly before its time is over.
    await advanceMs(3_600_700)
    expect((await rate.tryTake('s', 5)).ok).toBe(true)
    await advanceMs(700)
    expect(await dibs.maintain({ once: true })).toMatchObject({ ratesForgotten: 0 })
    await advanceMs(3_604_000)
    expect(await dibs.maintain({ once: true })).toMatchObject({ ratesForgotten: 1 })
    expect(await rowsOf('s')).toEqual([])
  })
})

it('maintenance takes so many at a time, and waits for nobody', async () => {
  const rate = dibs.rateLimit('r', { algorithm: 'gcra', limit: 5, perMs: 1_000 })
  for (const subject of ['a', 'b', 'c', 'd']) await rate.take(subject)
  await advanceMs(7_200_000)
  const forget = async (most: number) => {
    const { rows } = await pool.query(`select ${schema.name}.rate_delete_expired($1) as n`, [most])
    return rows[0].n
  }
  const client = await pool.connect()
  try {
    await client.query(`begin; select from ${schema.name}.rate where subject = 'a' for key share`)
    expect(await forget(2)).toBe(2)
    expect(await forget(10)).toBe(1)
    await client.query('rollback')
    expect(await forget(10)).toBe(1)
  } finally {
    client.release()
  }
})

describe('a subject', () => {
  const spec = { algorithm: 'token-bucket', limit: 5, perMs: 1_000 } as const

  it('has its own of each name, algorithm and period', async () => {
    const rate = dibs.rateLimit('r', spec)
    expect(await drain(rate, 'a')).toBe(5)
    expect(await drain(rate, 'b')).toBe(5)
    expect(await drain(dibs.rateLimit('other', spec), 'a')).toBe(5)
    expect(await drain(dibs.rateLimit('r', { ...spec, perMs: 2_000 }), 'a')).toBe(5)
    expect(await drain(dibs.rateLimit('r', { ...spec, algorithm: 'gcra', burst: 5 }), 'a')).toBe(5)
    expect((await rowsOf('a')).map(({ rule }) => rule)).toEqual([
      'gcra:1000',
      'token-bucket:1000',
      'token-bucket:1000',
      'token-bucket:2000',
    ])
  })

  it('is one round trip, also when it is new', async () => {
    const rate = dibs.rateLimit('r', spec)
    for (const ok of [true, true, false])
      expect(await countTraffic(pool, () => rate.tryTake('s', ok ? 2 : 5))).toMatchObject({
        value: { ok },
        roundTrips: 1,
        commits: 1,
      })
  })

  it('is updated without new entries in an index', async () => {
    const rate = dibs.rateLimit('hot', { algorithm: 'token-bucket', limit: 100_000, perMs: 1_000 })
    await rate.take('s')
    await dibs.transaction(async (tx) => {
      const updates = async () => {
        const { rows } = await tx.query<{ all: number; hot: number }>(
          `select n_tup_upd::int as "all", n_tup_hot_upd::int as hot from pg_catalog.pg_stat_xact_user_tables
           where schemaname = $1 and relname = 'rate'`,
          [schema.name],
        )
        return rows[0] ?? { all: 0, hot: 0 }
      }
      const before = await updates()
      for (let n = 0; n < 20; n++) {
        await advanceMs(1_000)
        await rate.take('s', 1, { tx })
      }
      expect(await updates()).toEqual({ all: before.all + 20, hot: before.hot + 20 })
    })
  })

  it('tells of a refusal without showing who it was', async () => {
    const rate = dibs.rateLimit('api', { ...spec, burst: 1 })
    const events: DibsEvents['dibs:rate.refused'][] = []
    const stop = onEvent('dibs:rate.refused', (event) => events.push(event))
    await rate.tryTake('ann@example.com')
    await rate.tryTake('ann@example.com')
    stop()
    expect(events).toEqual([
      {
        schema: schema.name,
        instance: expect.any(Number),
        template: 'api:*',
        keyHash: expect.stringMatching(/^[0-9a-f]{16}$/),
        cost: 1,
        retryAfterMs: 200,
      },
    ])
  })
})

describe('several costs in one statement', () => {
  const take = async (costs: string, waitMs: number | null = 500) => {
    const values = ['r', 's', 'token-bucket:1000', 'token-bucket', 5, 1_000_000, 5, costs, waitMs]
    const { rows } = await pool.query(
      `select ${schema.name}.rate_take($1, $2, $3, $4, $5, $6, $7, $8, $9) as told`,
      values,
    )
    return rows[0].told
  }

  it('are decided in order, each as if it came alone', async () => {
    expect(await take('{2,4,1,2}')).toEqual([
      { granted: true, remaining: 3, resetUs: 1_000_000 },
      // By what is left in the end: then it fits, though smaller ones came after it.
      { granted: false, remaining: 3, retryAfterUs: 800_000, resetUs: 1_000_000 },
      { granted: true, remaining: 2, resetUs: 1_000_000 },
      { granted: true, remaining: 0, resetUs: 1_000_000 },
    ])
    expect(await rowsOf('s')).toMatchObject([{ level: '5000000' }])
  })

  it('write once', async () => {
    await take('{1}')
    await pool.query(`
      create table ${schema.name}.written (n int);
      create function ${schema.name}.note() returns trigger language plpgsql as
        $$ begin insert into ${schema.name}.written values (1); return null; end $$;
      create trigger note after insert or update on ${schema.name}.rate
        for each row execute function ${schema.name}.note()`)
    try {
      await take('{1,1,5}')
      await take('{4,4}')
      expect((await pool.query(`select from ${schema.name}.written`)).rowCount).toBe(1)
    } finally {
      await pool.query(`drop function ${schema.name}.note cascade; drop table ${schema.name}.written`)
    }
  })

  it('wait for nobody where that is asked', async () => {
    const client = await pool.connect()
    try {
      expect(await take('{1}', 0)).toMatchObject([{ granted: true }])
      await client.query(`begin; select from ${schema.name}.rate for update`)
      expect(await take('{1}', 0)).toEqual({ state: 'busy' })
      await client.query('rollback')
      await client.query(`delete from ${schema.name}.rate`)
      await client.query('begin')
      await dibs
        .rateLimit('r', { algorithm: 'token-bucket', limit: 5, perMs: 1_000 })
        .take('s', 1, { tx: client })
      expect(await take('{1}', 0)).toEqual({ state: 'busy' })
      await client.query('rollback')
      expect(await take('{1}', 0)).toMatchObject([{ granted: true, remaining: 4 }])
    } finally {
      client.release()
    }
  })

  it('leave a transaction usable, and its lock_timeout as it was', async () => {
    const rate = dibs.rateLimit('r', { algorithm: 'token-bucket', limit: 5, perMs: 1_000 })
    const [holder, client] = [await pool.connect(), await pool.connect()]
    try {
      await holder.query('begin')
      await rate.take('s', 1, { tx: holder })
      await client.query("begin; set local lock_timeout = '7s'")
      const sql = `select ${schema.name}.rate_take('r', 's', 'token-bucket:1000', 'token-bucket', 5, 1000000, 5, '{1}', 0)`
      expect((await client.query(sql)).rows[0].rate_take).toEqual({ state: 'busy' })
      expect((await client.query('show lock_timeout')).rows).toEqual([{ lock_timeout: '7s' }])
      await holder.query('rollback')
      expect((await client.query(sql)).rows[0].rate_take).toMatchObject([{ granted: true }])
      expect((await client.query('show lock_timeout')).rows).toEqual([{ lock_timeout: '7s' }])
    } finally {
      await holder.query('rollback')
      await client.query('rollback')
      holder.release()
      client.release()
    }
  })
})

describe('in the transaction of the caller', () => {
  const rate = () => dibs.rateLimit('r', { algorithm: 'token-bucket', limit: 5, perMs: 1_000 })

  it('lives and dies with it', async () => {
    const failed = dibs.transaction(async (tx) => {
      await rate().take('s', 4, { tx })
      expect(await rate().peek('s', { tx })).toMatchObject({ remaining: 1 })
      expect(await rate().peek('s')).toMatchObject({ remaining: 5 })
      throw new Error('on purpose')
    })
    await expect(failed).rejects.toThrow('on purpose')
    expect(await rowsOf('s')).toEqual([])
    await dibs.transaction((tx) => rate().take('s', 4, { tx }))
    expect(await rate().peek('s')).toMatchObject({ remaining: 1 })
  })

  it('can be used further after a refusal', async () => {
    await dibs.transaction(async (tx) => {
      await rate().take('s', 5, { tx })
      await expect(rate().take('s', 1, { tx })).rejects.toThrow(RateLimitedError)
      await rate().take('other', 1, { tx })
    })
    expect(await rowsOf('other')).toHaveLength(1)
  })

  it('makes others wait for it, with a bound, and decides by the time after the wait', async () => {
    const one = dibs.rateLimit('r', { ...base, waitMs: 10_000 })
    const client = await pool.connect()
    try {
      // A row that is new, and one that is there.
      for (let round = 1; round <= 2; round++) {
        await client.query('begin')
        await one.take('s', 5, { tx: client })
        const short = dibs.rateLimit('r', { ...base, waitMs: 20 })
        const busy = await short.take('s').catch((thrown: unknown) => thrown)
        expect(busy).toBeInstanceOf(BusyError)
        expect(busy).toMatchObject({ subject: 'a turn at rate limit "r"' })
        await expect(dibs.rateLimit('r', { ...base, waitMs: 0 }).take('s')).rejects.toThrow(BusyError)
        const waiting = one.tryTake('s', 2)
        await blockedOnce()
        await advanceMs(400)
        await client.query('commit')
        expect(await waiting).toMatchObject({ ok: true, remaining: 0 })
        await advanceMs(10_000)
      }
    } finally {
      client.release()
    }
  })

  it('waits no longer than it says, and leaves the transaction usable', async () => {
    const [holder, client] = [await pool.connect(), await pool.connect()]
    try {
      await holder.query('begin')
      await rate().take('s', 1, { tx: holder })
      await client.query("begin; set local lock_timeout = '30s'")
      const hasty = dibs.rateLimit('r', { ...base, waitMs: 60 })
      await expect(hasty.take('s', 1, { tx: client })).rejects.toThrow(BusyError)
      expect((await client.query('show lock_timeout')).rows).toEqual([{ lock_timeout: '30s' }])
    } finally {
      await holder.query('rollback')
      await client.query('rollback')
      holder.release()
      client.release()
    }
  })
})

const base = { algorithm: 'token-bucket', limit: 5, perMs: 1_000 } as const

async function blockedOnce(): Promise<void> {
  await expect
    .poll(
      async () =>
        (
          await pool.query(
            `select from pg_catalog.pg_stat_activity where wait_event_type = 'Lock' and query like '%${schema.name}%'`,
          )
        ).rowCount,
    )
    .toBe(1)
}

it('gives up after ten looks at a row that comes and goes', async () => {
  const { name } = schema
  // Nothing is there, and nothing can be put there: as if it were forgotten each time before one can look.
  await pool.query(`
    create function ${name}.swallow() returns trigger language plpgsql as 'begin return null; end';
    create trigger swallow before insert on ${name}.rate for each row execute function ${name}.swallow()`)
  try {
    await expect(dibs.rateLimit('r', base).take('s')).rejects.toThrow(BusyError)
  } finally {
    await pool.query(`drop function ${name}.swallow() cascade`)
  }
})

describe('what is not acceptable is refused before anything is sent', () => {
  const options = (given: object) => ({ ...base, ...given }) as RateLimitOptions

  it.each([
    ['algorithm', { algorithm: 'leaky' }],
    ['algorithm', { algorithm: undefined }],
    ['limit', { limit: 0 }],
    ['limit', { limit: -1 }],
    ['limit', { limit: 1.5 }],
    ['limit', { limit: Number.NaN }],
    ['limit', { limit: '5' }],
    ['perMs', { perMs: 0 }],
    ['perMs', { perMs: Number.POSITIVE_INFINITY }],
    ['burst', { burst: 0 }],
    ['burst', { algorithm: 'fixed-window', burst: 5 }],
    ['burst', { algorithm: 'sliding-window', burst: 5 }],
    ['limit', { limit: Math.ceil(2 ** 51 / 1_000) }],
    ['burst', { burst: Math.ceil(2 ** 51 / 1_000) }],
    ['waitMs', { waitMs: -1 }],
    ['ifDown', { ifDown: 'maybe' }],
    ['downAfterMs', { downAfterMs: 5 }],
    ['downAfterMs', { downAfterMs: 0, ifDown: 'allow' }],
    ['leakMs', { leakMs: 5 }],
  ])('%s: %j', (field, given) => {
    const error = thrownBy(() => dibs.rateLimit('r', options(given)))
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error).toMatchObject({ field })
  })

  it('name, subject, cost', async () => {
    expect(thrownBy(() => dibs.rateLimit('', base))).toMatchObject({ field: 'name' })
    const rate = dibs.rateLimit('r', base)
    const { roundTrips } = await countTraffic(pool, async () => {
      await expect(rate.take('')).rejects.toMatchObject({ field: 'subject' })
      await expect(rate.peek('a\0')).rejects.toMatchObject({ field: 'subject' })
      for (const cost of [0, -1, 1.5, Number.NaN])
        await expect(rate.take('s', cost)).rejects.toMatchObject({ field: 'cost' })
    })
    expect(roundTrips).toBe(0)
  })

  it('options of a claim, which has none', () => {
    const rate = dibs.rateLimit('r', base)
    for (const options of [{ tx: {} }, { id: 'event-1' }, null]) {
      const error = thrownBy(() => rate.claim('s', 1, options as never))
      expect(error).toBeInstanceOf(InvalidInputError)
    }
    const error = thrownBy(() => rate.claim('s', 1, { limit: 7 } as never))
    expect(error).toMatchObject({
      field: 'limit',
      message: 'Unknown option "limit". This call has no options.',
    })
    expect(rate.claim('s', 1, {})).toEqual(rate.claim('s'))
  })

  it('a cost that no wait can make fit', async () => {
    const rate = dibs.rateLimit('r', { ...base, burst: 3 })
    const left = await rate.peek('s')
    expect(await rate.tryTake('s', 4)).toEqual({
      ...{ ok: false, limit: rate.limit, cost: 4, remaining: 3, degraded: false },
      resetsAt: expect.any(Date),
    })
    expect(await rate.peek('s')).toMatchObject({ remaining: left.remaining })
    const error = await rate.take('s', 4).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(NeverFitsError)
    expect(error).toMatchObject({
      code: 'DIBS_NEVER_FITS',
      status: 422,
      retryable: false,
      requested: 4,
      limit: 3,
    })
    await expect(
      dibs.rateLimit('r', { algorithm: 'fixed-window', limit: 3, perMs: 1 }).take('s', 4),
    ).rejects.toThrow(NeverFitsError)
  })

  it('takes what is at the very bound', async () => {
    const rate = dibs.rateLimit('r', { algorithm: 'sliding-window', limit: 2 ** 51, perMs: 1 })
    await rate.take('s', 2 ** 51)
    await setClock(START_US + 1_001n)
    expect(await rate.tryTake('s', 2 ** 51)).toMatchObject({ ok: false })
    const bucket = dibs.rateLimit('r', { algorithm: 'token-bucket', limit: 1, burst: 2 ** 51, perMs: 1 })
    await bucket.take('s', 2 ** 51)
    expect(await bucket.tryTake('s', 2 ** 51)).toMatchObject({ ok: false })
  })
})

function thrownBy(fn: () => unknown): unknown {
  try {
    return fn()
  } catch (error) {
    return error
  }
}
