import pg from 'pg'
import { afterEach, expect, it, vi } from 'vitest'
import { openQuotas } from '../../../test/claims/open-quotas.js'
import { directUrl } from '../../../test/database.js'
import { Dibs } from '../../dibs.js'
import { CommitOutcomeUnknownError, ConnectionLostError } from '../../errors.js'
import { PgProxy } from '../../testing/index.js'

const fixture = openQuotas()
const daily = { limit: 50, per: 'day', waitMs: 500 } as const
const rule = { algorithm: 'token-bucket', limit: 50, perMs: 3_600_000 } as const

afterEach(() => void vi.useRealTimers())

/**
 * Makes a call whose statement, or its answer, gets lost without a word, and lets time go by: how long it took to say so, and what it
 * said.
 */
async function loseSilently(
  when: 'before' | 'after',
  statement: string,
  call: (dibs: Dibs) => Promise<unknown>,
): Promise<{ readonly tookMs: number; readonly error: unknown }> {
  await using proxy = await PgProxy.start({ url: directUrl })
  const pool = new pg.Pool({ connectionString: proxy.url, max: 2 })
  pool.on('error', () => {})
  try {
    const dibs = await Dibs.open({ pool, schema: fixture.schema.name, migrate: 'off', listen: false })
    const cut = proxy.inject({ kind: 'cut', when, statement, how: 'black-hole' })
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
    let error: unknown
    const ended = call(dibs).catch((thrown: unknown) => {
      error = thrown
    })
    await cut.happened
    let tookMs = 0
    for (; error === undefined && tookMs < 70_000; tookMs += 500) {
      vi.advanceTimersByTime(500)
      for (let n = 0; n < 20; n++) await new Promise((resolve) => setImmediate(resolve))
    }
    vi.useRealTimers()
    await ended
    cut.end()
    await dibs.close()
    return { tookMs, error }
  } finally {
    vi.useRealTimers()
    await pool.end()
  }
}

it.each(['before', 'after'] as const)(
  'a take on a network that goes silent %s it arrives ends ten seconds after its wait, and may have been made',
  async (when) => {
    const take = (dibs: Dibs) => dibs.quota('points', daily).take('child', 5, { id: 'event-1' })
    const { tookMs, error } = await loseSilently(when, 'quota_take', take)
    expect(error).toBeInstanceOf(CommitOutcomeUnknownError)
    expect(tookMs).toBeGreaterThan(10_000)
    expect(tookMs).toBeLessThanOrEqual(11_000)
    // A retry with the same id counts once, although the lost request may still arrive.
    expect(await take(fixture.dibs)).toMatchObject({ used: 5 })
    expect(await take(fixture.dibs)).toMatchObject({ used: 5, replayed: true })
  },
)

it.each([
  ['reserve', 'quota_take', (dibs: Dibs) => dibs.quota('points', daily).reserve('child', 5)],
  ['settle', 'quota_resolve', (dibs: Dibs) => dibs.quota('points', daily).settle('id', 5)],
  [
    'a rate limit',
    'rate_take',
    (dibs: Dibs) => dibs.rateLimit('api', { ...rule, waitMs: 500 }).take('child'),
  ],
])('so does %s', async (_, statement, call) => {
  const { tookMs, error } = await loseSilently('before', statement, call)
  expect(error).toBeInstanceOf(CommitOutcomeUnknownError)
  expect(tookMs).toBeLessThanOrEqual(11_000)
})

it.each([
  ['a quota', 'quota_peek', (dibs: Dibs) => dibs.quota('points', daily).peek('child')],
  ['a rate limit', 'rate_peek', (dibs: Dibs) => dibs.rateLimit('api', rule).peek('child')],
])('a look at %s has changed nothing', async (_, statement, call) => {
  const { tookMs, error } = await loseSilently('before', statement, call)
  expect(error).toBeInstanceOf(ConnectionLostError)
  expect(tookMs).toBeLessThanOrEqual(11_000)
})
