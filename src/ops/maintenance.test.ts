import { describe, expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { throughPool, url } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { Dibs } from '../dibs.js'
import { BusyError, ClosedError, ConnectionLostError } from '../errors.js'
import { Database } from '../postgres/database.js'
import { onEvent } from '../postgres/events.js'
import { markUnderTest } from '../postgres/pools-under-test.js'
import type { MonitorRunOptions } from '../tables/monitor/monitor.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import { type Maintained, Maintenance } from './maintenance.js'

const fixture = openClaims()
const HOUR_MS = 3_600_000

/** Rounds as they are told while `fn` runs. */
async function roundsOf(fn: (rounds: Record<string, number>[], failures: unknown[]) => Promise<void>) {
  const rounds: Record<string, number>[] = []
  const failures: unknown[] = []
  const stops = [
    onEvent('dibs:maintenance.done', ({ counts }) => rounds.push(counts)),
    onEvent('dibs:maintenance.failed', ({ error }) => failures.push(error)),
  ]
  try {
    await fn(rounds, failures)
  } finally {
    for (const stop of stops) stop()
  }
}

describe('one round', () => {
  it('removes what is over of every kind, and says how much that was', async () => {
    const { dibs, schema } = fixture
    await dibs.kv.setIfAbsent('k', 1, { ttlMs: 1_000 })
    await dibs.once({ scope: 's', key: 'k', keepMs: 1_000 }, async () => 1)
    await dibs.quota('q', { limit: 5, per: 'day', timeZone: 'UTC' }).take('a', 1)
    await dibs.rateLimit('r', { algorithm: 'token-bucket', limit: 5, perMs: 1_000 }).take('a')
    await (await dibs.lock('l')).release()
    await schema.clock.advance(100 * 24 * HOUR_MS)
    await roundsOf(async (rounds) => {
      const report = await dibs.maintain({ once: true })
      expect(report).toMatchObject({
        ...{ keysForgotten: 1, claimsForgotten: 1, locksForgotten: 1, ratesForgotten: 1 },
        ...{ parentsRecomputed: 0, operationsFinished: 0, monitors: [] },
      })
      expect(report.quotasForgotten).toBeGreaterThan(0)
      const { monitors, ...counts } = report
      expect(rounds).toEqual([counts])
    })
    expect(await dibs.maintain({ once: true })).toMatchObject({ keysForgotten: 0, locksForgotten: 0 })
  })

  it('is safe in any number of processes at once', async () => {
    const { dibs, other, schema } = fixture
    for (let n = 0; n < 20; n++) await dibs.kv.setIfAbsent(`k${n}`, n, { ttlMs: 1_000 })
    await schema.clock.advance(HOUR_MS)
    const reports = await Promise.all([dibs, other, dibs].map((one) => one.maintain({ once: true })))
    expect(reports.reduce((sum, { keysForgotten }) => sum + keysForgotten, 0)).toBe(20)
  })

  it.each<[string, unknown, RegExp]>([
    ['once', { once: 1 }, /`once` must be true or false/],
    ['everyMs', { everyMs: 0 }, /`everyMs` must be a whole number of milliseconds from 100/],
    ['both', { once: true, everyMs: 100 }, /`everyMs` must not be given with `once`/],
    ['option', { every: 1 }, /Unknown option "every"/],
  ])('refuses a bad %s', (_, options, message) => {
    expect(() => fixture.dibs.maintain(options as never)).toThrow(message)
  })
})

describe('a loop', () => {
  const monitored = (run: (options?: MonitorRunOptions) => Promise<never>, everyMs: number): Maintained => ({
    monitors: new Map([['m', { name: 'm', everyMs, run }]]),
  })
  const repeat = async (maintained: Maintained, fn: () => Promise<void>) => {
    const database = new Database(fixture.pool, { schema: fixture.schema.name, prepared: false })
    const loop = new Maintenance(database, maintained).start(100)
    await fn()
    await loop.stop()
    await database.close()
  }

  it('goes on until it is stopped, and tells of each round', async () => {
    await roundsOf(async (rounds) => {
      await using loop = fixture.dibs.maintain({ everyMs: 100 })
      await expect.poll(() => rounds.length).toBeGreaterThan(2)
      await loop.stop()
      const { length } = rounds
      await fixture.dibs.maintain({ once: true })
      expect(rounds).toHaveLength(length + 1)
    })
  })

  it('is one for all who ask, at the shortest interval, until the last has stopped it', async () => {
    await roundsOf(async (rounds) => {
      await using _ = fixture.dibs.maintain({ everyMs: 600_000 })
      const [first, second] = [
        fixture.dibs.maintain({ everyMs: 100 }),
        fixture.dibs.maintain({ everyMs: 100 }),
      ]
      await expect.poll(() => rounds.length).toBeGreaterThan(1)
      await first.stop()
      await first.stop() // twice is fine
      const { length } = rounds
      await expect.poll(() => rounds.length).toBeGreaterThan(length + 1)
      await second.stop()
    })
  })

  it('in each interval one process removes expired rows', async () => {
    const { dibs, other, schema } = fixture
    const rounds: number[] = []
    const stop = onEvent('dibs:maintenance.done', ({ instance, counts }) => {
      if (counts.keysForgotten) rounds.push(instance)
    })
    await dibs.kv.setIfAbsent('turn', 1, { ttlMs: 1_000 })
    await schema.clock.advance(HOUR_MS)
    await using _ = dibs.maintain({ everyMs: 100 })
    await expect.poll(() => rounds.length).toBe(1)
    // Now this test has the turn, for an hour: neither instance removes anything.
    await expect.poll(() => dibs.tryLock('dibs:maintenance', { leaseMs: HOUR_MS })).not.toBeNull()
    await dibs.kv.setIfAbsent('turn', 1, { ttlMs: 1 })
    await using __ = other.maintain({ everyMs: 100 })
    const monitor = deferred()
    let runs = 0
    const run = async () => {
      if (++runs === 3) monitor.resolve()
      return undefined as never
    }
    // Each process runs what it has defined in its own rounds, whichever process has the turn.
    await repeat(monitored(run, 100), () => monitor.promise)
    expect(rounds).toHaveLength(1)
    stop()
    await dibs.locks.forceRelease('dibs:maintenance')
  })

  it('says once that a schema has no tables, then asks less and less often', async () => {
    await using dibs = await Dibs.open({
      ...throughPool,
      pool: fixture.pool,
      schema: 'missing',
      migrate: 'off',
    })
    const times: number[] = []
    const stop = onEvent('dibs:maintenance.failed', ({ schema, error }) => {
      if (schema !== 'missing') return
      expect(error).toMatchObject({ sqlState: '3F000' })
      times.push(performance.now())
    })
    await using _ = dibs.maintain({ everyMs: 100 })
    await expect.poll(() => times.length).toBe(3)
    stop()
    expect(Number(times[2]) - Number(times[1])).toBeGreaterThan(250) // 400 ms, less a fifth
  })

  it('that `Dibs.open` has started sends nothing through a pool that the test kit orders or counts', async () => {
    const [automatic, byHand] = [{ runs: 0 }, { runs: 0 }]
    const countIn = (counter: { runs: number }) => monitored(async () => void counter.runs++ as never, 100)
    const database = new Database(fixture.pool, { schema: fixture.schema.name, prepared: false })
    const unmark = markUnderTest(fixture.pool)
    const loop = new Maintenance(database, countIn(automatic)).start(100, { isAutomatic: true })
    await repeat(countIn(byHand), () => expect.poll(() => byHand.runs).toBeGreaterThan(3))
    expect(automatic.runs).toBe(0)
    unmark()
    await expect.poll(() => automatic.runs).toBeGreaterThan(0)
    await loop.stop()
    await database.close()
  })

  it('ends with its instance, and is refused afterwards', async () => {
    await fixture.beside(async (dibs) => {
      const loop = dibs.maintain({ everyMs: 100 })
      await dibs.close()
      await loop.stop()
      expect(() => dibs.maintain()).toThrow(ClosedError)
    })
  })

  it('asks a database that is away less and less often, and goes on when it is back', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        await roundsOf(async (rounds, failures) => {
          const away = [proxy.inject({ kind: 'refuse' }), proxy.inject({ kind: 'reset' })]
          const times: number[] = []
          const stop = onEvent('dibs:maintenance.failed', () => times.push(performance.now()))
          await using _ = dibs.maintain({ everyMs: 100 })
          await expect.poll(() => failures.length).toBe(4)
          stop()
          for (const fault of away) fault.end()
          expect(failures[1]).toBeInstanceOf(ConnectionLostError)
          // 200, 400 and 800 ms, give or take a fifth: each is longer than the one before.
          const pauses = times.slice(1).map((time, n) => time - (times[n] as number))
          expect(pauses[0]).toBeGreaterThan(140)
          expect(pauses[2]).toBeGreaterThan(600)
          expect(rounds).toEqual([])
          await expect.poll(() => rounds.length).toBeGreaterThan(1)
        })
      },
      { connectionString: proxy.url },
    )
  })

  it('sends out a monitor as often as that is to be', async () => {
    let runs = 0
    const run = async () => void runs++ as never
    await roundsOf(async (rounds) => {
      await repeat(monitored(run, 600_000), () => expect.poll(() => rounds.length).toBeGreaterThan(3))
      expect(runs).toBe(1)
      await repeat(monitored(run, 100), () => expect.poll(() => runs).toBeGreaterThan(2))
    })
  })

  it('is held up by no monitor, and sends none out twice; but waits for it at the end', async () => {
    const hung = deferred()
    let runs = 0
    const run = async () => {
      runs++
      await hung.promise
      return undefined as never
    }
    const database = new Database(fixture.pool, { schema: fixture.schema.name, prepared: false })
    let isEnded = false
    await roundsOf(async (rounds) => {
      const loop = new Maintenance(database, monitored(run, 100)).start(100)
      await expect.poll(() => rounds.length).toBeGreaterThan(3)
      expect(runs).toBe(1)
      const ended = loop.stop().then(() => {
        isEnded = true
      })
      await fixture.dibs.now()
      expect(isEnded).toBe(false)
      hung.resolve()
      await ended
    })
    await database.close()
  })

  it('is held up by no aggregate whose tables somebody has locked', async () => {
    const locked = new BusyError('the tables of aggregate "a"', 1_000, 100)
    let [counted, watched] = [0, 0]
    const done = { recomputed: 1, marks: 1, locked: 0, failed: 0, isMore: false }
    const aggregates: Maintained['aggregates'] = new Map([
      ['a', { refresh: () => Promise.reject(locked) }],
      ['b', { refresh: async () => ({ ...done, recomputed: ++counted && 1 }) }],
    ])
    const { monitors } = monitored(async () => void watched++ as never, 100)
    await roundsOf(async (rounds, failures) => {
      await repeat({ aggregates, monitors }, () => expect.poll(() => rounds.length).toBeGreaterThan(2))
      expect(failures[0]).toBe(locked)
      expect(rounds[0]).toMatchObject({ parentsRecomputed: 1 })
    })
    expect(counted).toBeGreaterThan(2)
    expect(watched).toBeGreaterThan(1)
  })

  it('goes on after a monitor that fails, and says so', async () => {
    const mistake = new Error('no')
    await roundsOf(async (rounds, failures) => {
      await repeat(
        monitored(() => Promise.reject(mistake), 100),
        () => expect.poll(() => failures.length).toBeGreaterThan(1),
      )
      expect(failures[0]).toBe(mistake)
      expect(rounds.length).toBeGreaterThan(1)
    })
  })
})
