import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout as setTimer } from 'node:timers/promises'
import { promisify } from 'node:util'
import { describe, expect, it, vi } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { throughPool, url } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { realTime } from '../../test/real-time.js'
import { pendingTimers } from '../../test/watch-timers.js'
import { BusyError, ClosedError, ConnectionLostError, FenceLostError, GuardedError } from '../errors.js'
import { Database } from '../postgres/database.js'
import { databaseOf } from '../postgres/database-of.js'
import { onEvent } from '../postgres/events.js'
import { keyOf } from '../postgres/key.js'
import { countTraffic } from '../testing/count-traffic.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import { Election, type ElectOptions } from './election.js'
import type { Term } from './term.js'

const fixture = openClaims()
let made = 0
const fresh = () => `election-${++made}`
const soon = { timeout: 30_000 }
const untilLeads = (election: Election) => expect.poll(() => election.isLeader, soon).toBe(true)

describe('an election', () => {
  it('has one leader, with an epoch that is its fence, and another when that one stops', async () => {
    const name = fresh()
    const told: string[] = []
    const options = (who: string): ElectOptions => ({
      onElected: ({ epoch, tookOver }) => told.push(`${who} elected ${epoch > 0} ${tookOver}`),
      onLost: (_, reason) => told.push(`${who} lost ${reason}`),
    })
    await using ann = fixture.dibs.elect(name, options('ann'))
    await untilLeads(ann)
    const first = ann.term as Term
    await using bob = fixture.other.elect(name, options('bob'))
    const [lock] = await fixture.dibs.locks.inspect(`leader:${name}`)
    expect(lock).toMatchObject({ fence: first.epoch })
    first.assertLeading()
    expect([ann.isLeader, bob.isLeader, bob.term]).toEqual([true, false, undefined])
    await ann.stop()
    expect(() => first.assertLeading()).toThrow(FenceLostError)
    expect(first.signal.reason).toMatchObject({ reason: 'resigned' })
    await untilLeads(bob)
    expect(ann.isLeader).toBe(false)
    expect(bob.term?.epoch).toBeGreaterThan(first.epoch)
    await bob.stop()
    expect(told).toEqual([
      'ann elected true undefined',
      'ann lost resigned',
      'bob elected true undefined',
      'bob lost resigned',
    ])
  })

  it('hands over within a moment: whoever waits is told', realTime, async () => {
    const name = fresh()
    const ann = fixture.dibs.elect(name, { leaseMs: 60_000 })
    await untilLeads(ann)
    await using bob = fixture.other.elect(name, { leaseMs: 60_000 })
    // Waits until bob has polled once. The next poll is far away, so only a wake-up can be in time.
    await expect
      .poll(
        async () =>
          (
            await fixture.pool.query(
              `select from ${fixture.schema.name}.lock where name = $1 and wanted_until > now()`,
              [`leader:${name}`],
            )
          ).rowCount,
        soon,
      )
      .toBe(1)
    await ann.stop()
    const stoppedAt = performance.now()
    await untilLeads(bob)
    expect(performance.now() - stoppedAt).toBeLessThan(4_000)
  })

  it('waits with the handover until the leader’s work has ended', async () => {
    const name = fresh()
    const [began, ended] = [deferred(), deferred()]
    const order: string[] = []
    const ann = fixture.dibs.elect(name, {
      onElected: async ({ signal }) => {
        began.resolve()
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
        order.push('told to stop')
        await ended.promise
        order.push('ann has ended')
      },
    })
    await began.promise
    const term = ann.term as Term
    await using bob = fixture.other.elect(name, { onElected: () => order.push('bob begins') })
    const stopped = ann.stop()
    await expect.poll(() => order, soon).toEqual(['told to stop'])
    // Work that ann has begun may still write, under her own epoch.
    await fixture.dibs.transaction(async (tx) => {
      await term.guard(tx)
      expect(bob.isLeader).toBe(false)
    })
    expect(ann.isLeader).toBe(false)
    ended.resolve()
    await stopped
    await untilLeads(bob)
    expect(order).toEqual(['told to stop', 'ann has ended', 'bob begins'])
  })

  it('waits no longer than it was told to for work that does not end', async () => {
    const name = fresh()
    const began = deferred()
    const hangs = deferred()
    const ann = fixture.dibs.elect(name, {
      drainMs: 50,
      onElected: () => {
        began.resolve()
        return hangs.promise
      },
    })
    await began.promise
    await ann.stop()
    await using bob = fixture.other.elect(name)
    await untilLeads(bob)
    hangs.resolve()
  })

  it('is lost when another takes it away: the signal fires, and it may be elected again', async () => {
    const name = fresh()
    const told: string[] = []
    await using ann = fixture.dibs.elect(name, {
      leaseMs: 3_000,
      onElected: (term) => told.push(`elected ${term.epoch}`),
      onLost: (term, reason) => told.push(`lost ${term.epoch} ${reason}`),
    })
    await untilLeads(ann)
    const first = ann.term as Term
    await fixture.dibs.locks.forceRelease(`leader:${name}`)
    await expect.poll(() => told.length, soon).toBe(3)
    expect(first.signal.reason).toMatchObject({ reason: 'stolen', fence: first.epoch })
    const next = ann.term as Term
    expect(next.epoch).toBeGreaterThan(first.epoch)
    expect(told).toEqual([`elected ${first.epoch}`, `lost ${first.epoch} stolen`, `elected ${next.epoch}`])
    await expect(fixture.dibs.transaction((tx) => first.guard(tx))).rejects.toThrow(FenceLostError)
  })

  it('does not begin a second term before the work of the first has ended', async () => {
    const name = fresh()
    const first = deferred()
    let terms = 0
    await using ann = fixture.dibs.elect(name, {
      leaseMs: 900,
      onElected: async () => {
        if (++terms === 1) await first.promise
      },
    })
    await untilLeads(ann)
    const { signal } = ann.term as Term
    await fixture.dibs.locks.forceRelease(`leader:${name}`)
    await expect.poll(() => signal.aborted, soon).toBe(true)
    expect(await fixture.dibs.locks.inspect(`leader:${name}`)).toEqual([])
    expect(terms).toBe(1)
    first.resolve()
    await expect.poll(() => terms, soon).toBe(2)
  })

  it('resigns if what the leader does fails, says so, and is a candidate again', async () => {
    const name = fresh()
    const failed: unknown[] = []
    const stop = onEvent('dibs:leader.failed', ({ election, error }) => {
      if (election === name) failed.push(error)
    })
    const mistake = new Error('no')
    let terms = 0
    const reasons: string[] = []
    await using ann = fixture.dibs.elect(name, {
      leaseMs: 900,
      onElected: () => {
        if (++terms === 1) throw mistake
      },
      onLost: (_, reason) => {
        reasons.push(reason)
        if (reason === 'resigned' && terms === 1) throw mistake
      },
    })
    await expect.poll(() => terms, soon).toBe(2)
    await untilLeads(ann)
    stop()
    expect(reasons).toEqual(['resigned'])
    expect(failed).toEqual([mistake, mistake])
  })

  it('is nobody’s to keep while `onLost` hangs', async () => {
    const name = fresh()
    const began = deferred()
    const ann = fixture.dibs.elect(name, {
      ...{ leaseMs: 60_000, drainMs: 500 },
      onElected: () => {
        began.resolve()
        throw new Error('no')
      },
      onLost: () => new Promise(() => {}),
    })
    await began.promise
    await using bob = fixture.other.elect(name, { leaseMs: 60_000 })
    await untilLeads(bob)
    await ann.stop()
  })

  it('stops in `drainMs` in all, also if both what it does and `onLost` hang', realTime, async () => {
    const hangs = (): Promise<never> => new Promise(() => {})
    const ann = fixture.dibs.elect(fresh(), { drainMs: 1_500, onElected: hangs, onLost: hangs })
    await untilLeads(ann)
    const stoppedAt = performance.now()
    await ann.stop()
    const tookMs = performance.now() - stoppedAt
    expect(tookMs).toBeGreaterThan(1_400)
    expect(tookMs).toBeLessThan(2_800)
  })

  it('is no failure of a leader that a write which comes after its term is refused', async () => {
    const name = fresh()
    const failed = vi.fn()
    const stop = onEvent('dibs:leader.failed', failed)
    const [stopped, written] = [deferred(), deferred()]
    const refusals: unknown[] = []
    const ann = fixture.dibs.elect(name, {
      drainMs: 0,
      onElected: async (term) => {
        try {
          await stopped.promise
          await fixture.dibs.transaction((tx) => term.guard(tx))
        } catch (error) {
          refusals.push(error)
          throw error
        } finally {
          written.resolve()
        }
      },
    })
    await untilLeads(ann)
    const term = ann.term as Term
    await ann.stop()
    stopped.resolve()
    await written.promise
    await new Promise(setImmediate)
    stop()
    expect(refusals).toMatchObject([{ code: 'DIBS_FENCE_LOST', fence: term.epoch }])
    expect(refusals[0]).not.toBe(term.signal.reason)
    expect(failed).not.toHaveBeenCalled()
  })

  it('is one if it is refused by the fence of something else', async () => {
    const failed = vi.fn()
    const stop = onEvent('dibs:leader.failed', failed)
    const other = new FenceLostError('lock "another"', 1)
    const ann = fixture.dibs.elect(fresh(), {
      onElected: ({ signal }) =>
        new Promise((_, reject) => signal.addEventListener('abort', () => reject(other))),
    })
    await untilLeads(ann)
    await ann.stop()
    stop()
    expect(failed.mock.calls).toMatchObject([[{ error: other }]])
  })

  it.each([
    ['has the lock', new BusyError('lock "x"', 1, 1)],
    ['still writes under it', new GuardedError('x', 1, 1)],
  ])('looks again, and has not failed, if another %s for longer than a wait can be', async (_, refusal) => {
    const failed = vi.fn()
    const stop = onEvent('dibs:leader.failed', failed)
    const name = fresh()
    const lock = await fixture.dibs.lock(keyOf('leader', name), { leaseMs: 60_000 })
    let tries = 0
    const take = async (): ReturnType<typeof fixture.dibs.lock> => {
      if (++tries === 1) throw refusal
      return lock
    }
    await using ann = new Election(databaseOf(fixture.dibs), take, name, { leaseMs: 60_000 })
    await untilLeads(ann)
    stop()
    expect(tries).toBe(2)
    expect(failed).not.toHaveBeenCalled()
  })

  it.each<[string, (term: Term) => Promise<unknown>, number]>([
    [
      'takes it for no failure that a leader ends with what it was told to stop with',
      ({ signal }) =>
        new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
      0,
    ],
    ['nor with what a timer makes of that', ({ signal }) => setTimer(60_000, undefined, { signal }), 0],
    [
      'but says so if it fails for another reason when it is stopped',
      ({ signal }) =>
        new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('no')))),
      1,
    ],
  ])('%s', async (_, onElected, failures) => {
    const failed = vi.fn()
    const stop = onEvent('dibs:leader.failed', failed)
    const ann = fixture.dibs.elect(fresh(), { onElected })
    await untilLeads(ann)
    await ann.stop()
    stop()
    expect(failed).toHaveBeenCalledTimes(failures)
  })

  it('takes over from a leader that is gone, and says so', async () => {
    const name = fresh()
    const elected: boolean[] = []
    const stop = onEvent('dibs:leader.elected', ({ election, isTakeover }) => {
      if (election === name) elected.push(isTakeover)
    })
    const lock = await fixture.dibs.lock(`leader:${name}`, { leaseMs: 900, maxHoldMs: 900 })
    await using bob = fixture.other.elect(name, { leaseMs: 900 })
    await untilLeads(bob)
    expect(lock.signal.aborted).toBe(true) // it knew before
    expect(bob.term?.tookOver).toMatchObject({ fence: lock.fence })
    expect(elected).toEqual([true])
    stop()
  })

  it('ends by a signal, also one that has fired before', async () => {
    const name = fresh()
    const controller = new AbortController()
    const ann = fixture.dibs.elect(name, { signal: controller.signal })
    await untilLeads(ann)
    controller.abort()
    await ann.ended
    expect(await fixture.dibs.locks.inspect(`leader:${name}`)).toEqual([])
    const never = fixture.dibs.elect(name, { signal: controller.signal })
    await never.ended
    expect(never.isLeader).toBe(false)
  })

  it('is handed over when its instance is closed, and refused afterwards', async () => {
    const name = fresh()
    const reasons: string[] = []
    await fixture.beside(async (dibs) => {
      const ann = dibs.elect(name, { onLost: (_, reason) => reasons.push(reason) })
      await untilLeads(ann)
      const waiting = dibs.elect(name)
      await dibs.close()
      await Promise.all([ann.ended, waiting.ended])
      expect(() => dibs.elect(name)).toThrow(ClosedError)
    })
    expect(reasons).toEqual(['resigned'])
    expect(await fixture.dibs.locks.inspect(`leader:${name}`)).toEqual([])
  })

  it.each([
    ['its work', { onElected: () => new Promise(() => {}) }, 'resigned', 'closed'],
    ['what is done after a loss', { onLost: () => new Promise(() => {}) }, 'resigned', undefined],
    [
      'its work, after its lock was taken away',
      { onElected: () => new Promise(() => {}) },
      'stolen',
      'stolen',
    ],
  ])('is over with its instance if `close` has waited in vain for %s', async (_, options, reason, late) => {
    const name = fresh()
    const { close } = Database.prototype
    const waits = vi.spyOn(Database.prototype, 'close').mockImplementation(function (this: Database) {
      return close.call(this, 300)
    })
    const reasons: unknown[] = []
    await fixture.beside(async (dibs) => {
      const ann = dibs.elect(name, { leaseMs: 60_000, drainMs: 3_600_000, ...options })
      await untilLeads(ann)
      const term = ann.term as Term
      if (reason === 'stolen') {
        await fixture.dibs.locks.forceRelease(`leader:${name}`)
        await expect(fixture.dibs.transaction((tx) => term.guard(tx))).rejects.toThrow(FenceLostError)
      }
      await dibs.close()
      await ann.ended
      reasons.push(term.signal.reason.reason)
      const refused = await fixture.dibs.transaction((tx) => term.guard(tx)).catch((error) => error)
      expect(refused).toBeInstanceOf(FenceLostError)
      expect(refused.reason).toBe(late)
    })
    waits.mockRestore()
    expect(pendingTimers().filter((line) => line.includes('election.js'))).toEqual([])
    // The signal keeps its first reason: `close` aborted it before its wait timed out.
    expect(reasons).toEqual([reason])
  })

  it.each(['close', 'stop'] as const)(
    'does not lead if `%s` is called when its lock was just taken, and gives that back',
    async (how) => {
      const name = fresh()
      const called: string[] = []
      await fixture.beside(async (dibs) => {
        const ended = deferred<Promise<void>>()
        const stop = onEvent('dibs:lock.acquired', ({ instance }) => {
          if (instance === databaseOf(dibs).origin.instance)
            ended.resolve(how === 'close' ? dibs.close() : ann.stop())
        })
        const ann = dibs.elect(name, {
          ...{ leaseMs: 60_000, onElected: () => called.push('elected'), onLost: () => called.push('lost') },
        })
        await ended.promise
        await ann.ended
        stop()
      })
      expect(called).toEqual([])
      expect(await fixture.dibs.locks.inspect(`leader:${name}`)).toEqual([])
    },
  )

  it('does not begin its work if it is stopped by who hears of its election', async () => {
    const name = fresh()
    const called: string[] = []
    const stop = onEvent('dibs:leader.elected', ({ election }) => {
      if (election === name) void ann.stop()
    })
    const ann = fixture.dibs.elect(name, {
      ...{ leaseMs: 60_000, onElected: () => called.push('elected') },
      onLost: () => called.push('lost'),
    })
    await ann.ended
    stop()
    expect(called).toEqual([])
    expect(await fixture.dibs.locks.inspect(`leader:${name}`)).toEqual([])
  })

  it('can be stopped twice, and before it was elected', async () => {
    const name = fresh()
    await using ann = fixture.dibs.elect(name)
    await untilLeads(ann)
    const bob = fixture.other.elect(name)
    await Promise.all([bob.stop(), bob.stop()])
    expect(bob.isLeader).toBe(false)
    expect(ann.isLeader).toBe(true)
  })

  it('asks seldom while another leads', async () => {
    const name = fresh()
    await using ann = fixture.dibs.elect(name, { leaseMs: 60_000 })
    await untilLeads(ann)
    await fixture.beside(async (dibs, pool) => {
      await using _ = dibs.elect(name, { leaseMs: 60_000 })
      const { roundTrips } = await countTraffic(
        pool,
        () => new Promise((resolve) => setTimeout(resolve, 1_500)),
      )
      // After 0.1, 0.3, 0.7 and 1.5 seconds at the latest.
      expect(roundTrips).toBeLessThan(9)
    })
  })

  it('has the lock that is called after it, whatever it is called', async () => {
    const name = `${fresh()}:50%`
    await using ann = fixture.dibs.elect(name)
    await untilLeads(ann)
    expect(await fixture.dibs.locks.inspect(keyOf('leader', name))).toMatchObject([
      { fence: ann.term?.epoch },
    ])
    // As long as a name may be.
    await using bob = fixture.dibs.elect('x'.repeat(505))
    await untilLeads(bob)
  })

  it.each<[string, unknown, unknown, RegExp]>([
    ['name', '', {}, /`name` must not be empty/],
    ['name', 'x'.repeat(506), {}, /`name` must be at most 505 bytes long, .* and is 506; hash it/],
    ['name', ':'.repeat(169), {}, /`name` must be at most 505 bytes long, .* and is 507; hash it/],
    ['leaseMs', 'x', { leaseMs: 0 }, /`leaseMs` must be a whole number of milliseconds from 50/],
    ['drainMs', 'x', { drainMs: -1 }, /`drainMs` must be/],
    ['onElected', 'x', { onElected: 1 }, /`onElected` must be a function/],
    ['onLost', 'x', { onLost: {} }, /`onLost` must be a function/],
    ['signal', 'x', { signal: 1 }, /`signal` must be an AbortSignal/],
    ['holder', 'x', { holder: '' }, /`holder` must not be empty/],
    ['option', 'x', { waitMs: 1 }, /Unknown option "waitMs"/],
  ])('refuses a bad %s at once', (_, name, options, message) => {
    expect(() => fixture.dibs.elect(name as string, options as ElectOptions)).toThrow(message)
  })
})

it('a candidate outlives a database that refuses it, and says so', async () => {
  const name = fresh()
  const failed: unknown[] = []
  const stop = onEvent('dibs:leader.failed', ({ election, error }) => {
    if (election === name) failed.push(error)
  })
  const rename = (from: string, to: string) =>
    fixture.pool.query(`alter function ${fixture.schema.name}.${from} rename to ${to}`)
  await rename('lock_acquire', 'lock_away')
  await using ann = fixture.dibs.elect(name, { leaseMs: 900 })
  await expect
    .poll(() => failed.length, soon)
    .toBeGreaterThan(0)
    .finally(() => rename('lock_away', 'lock_acquire'))
  await untilLeads(ann)
  stop()
  expect(failed[0]).toMatchObject({ sqlState: '42883' })
})

it('a candidate outlives a database that is away', async () => {
  const name = fresh()
  const failures = vi.fn()
  const stop = onEvent('dibs:leader.failed', failures)
  await using proxy = await PgProxy.start({ url })
  await fixture.beside(
    async (dibs, pool) => {
      const away = [proxy.inject({ kind: 'refuse' }), proxy.inject({ kind: 'reset' })]
      await using ann = dibs.elect(name, { leaseMs: 900 })
      await expect.poll(() => pool.totalCount, soon).toBe(0)
      expect(ann.isLeader).toBe(false)
      for (const fault of away) fault.end()
      await untilLeads(ann)
    },
    { connectionString: proxy.url },
  )
  stop()
  for (const [{ error }] of failures.mock.calls) expect(error).toBeInstanceOf(ConnectionLostError)
})

it('a candidate whose work has failed keeps its process until it is elected again', async () => {
  const told = { url, schema: fixture.schema.name, name: fresh(), leaseMs: 3_000, ...throughPool }
  const script = join(import.meta.dirname, '../../test/children/unlucky-candidate.mjs')
  const { stdout } = await promisify(execFile)(process.execPath, [script, JSON.stringify(told)])
  expect(stdout).toBe('2 terms\n')
})
