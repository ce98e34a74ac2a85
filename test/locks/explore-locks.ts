import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { describe, it } from 'vitest'
import { BusyError, ConflictError, FenceLostError, GuardedError } from '../../src/errors.js'
import {
  acquireLock,
  forgetLocks,
  releaseLock,
  renewLock,
  renewLocks,
} from '../../src/locks/lock-statements.js'
import type { Isolation } from '../../src/postgres/transaction-types.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { type Depth, exploredLocks, type Process, TTL_MS } from './explored-locks.js'

const readResult = (outcome: Outcome | undefined): unknown => {
  assert.equal(outcome?.status, 'fulfilled', String((outcome as { reason?: unknown })?.reason))
  return outcome.value
}

const isRefused = (error: unknown): boolean =>
  [FenceLostError, GuardedError, BusyError, ConflictError].some((type) => error instanceof type)

const acquire =
  (holder: string, { permits = 1, wantedMs = 0 } = {}) =>
  async ({ database }: Process): Promise<{ state: string; permit?: number; fence?: number }> => {
    const values = ['x', String(permits), holder, String(TTL_MS), String(wantedMs)]
    return JSON.parse(`${(await database.send(acquireLock, values))[0]?.result}`)
  }
const release =
  (fence = 100, permit = 0) =>
  async ({ database }: Process): Promise<{ state: string; isWanted?: boolean }> =>
    JSON.parse(
      `${(await database.send(releaseLock, ['x', String(permit), 'ann', String(fence), '60000']))[0]?.result}`,
    )
const renewAlone = async ({ database }: Process): Promise<unknown> =>
  (await database.send(renewLock, ['x', '0', '100', String(TTL_MS), '60000']))[0]?.state
const renew = async (own: Process): Promise<unknown> => {
  const asked = JSON.stringify([{ name: 'x', permit: 0, fence: 100, ttlMs: TTL_MS }])
  const [state] = JSON.parse(`${(await own.database.send(renewLocks, [asked]))[0]?.states}`)
  return state === 'locked' ? renewAlone(own) : state
}

/** Every race of a guarded transaction that is known, and that must not be one. */
export function describeGuardSchedules(bound: Depth, isolation: Isolation): void {
  const { asProcess, exploreAll, countUnder, timePasses, countIs } = exploredLocks(bound, isolation)
  const ofThree = isolation === 'read committed' ? 1 : 0

  /** Checks that each actor has counted whose result says so, and no other. */
  const countsAreKept =
    (names: readonly string[]) => async (db: Pool, outcomes: Readonly<Record<string, Outcome>>) => {
      const counted = names.filter(
        (name) => outcomes[name]?.status === 'fulfilled' && outcomes[name].value !== null,
      )
      await countIs(db, counted.length)
    }

  /** Waits until the lease has run out, takes over if it can, and counts. */
  const successor = asProcess(async (own) => {
    await timePasses(own.db)
    const lock = await own.manager.tryLock('x', { leaseMs: TTL_MS })
    if (lock) await countUnder(lock, own)
    return lock
  })
  const holder = (when: 'first' | 'last' = 'first') =>
    asProcess(async (own) => {
      await countUnder(own.held(), own, when)
      return 'counted'
    })

  it.each(['first', 'last'] as const)('a holder that guards %s, and its successor', async (when) => {
    await exploreAll({
      actors: { ann: holder(when), bob: successor },
      mayFail: isRefused,
      invariant: countsAreKept(['ann', 'bob']),
      bound: bound(1),
    })
  })

  it('a holder, its successor, and a renewal', async () => {
    await exploreAll({
      actors: { ann: holder(), bob: successor, renewal: asProcess(renew) },
      mayFail: isRefused,
      invariant: countsAreKept(['ann', 'bob']),
      bound: bound(ofThree),
    })
  })

  it('a holder, its release meanwhile, and the next', async () => {
    await exploreAll({
      actors: {
        ann: holder(),
        release: asProcess(release()),
        bob: asProcess(async (own) => {
          const lock = await own.manager.tryLock('x', { leaseMs: TTL_MS })
          if (lock) await countUnder(lock, own)
          return lock
        }),
      },
      mayFail: isRefused,
      invariant: async (db, outcomes) => {
        await countsAreKept(['ann', 'bob'])(db, outcomes)
        assert.equal((readResult(outcomes.release) as { state: string }).state, 'released')
      },
      bound: bound(ofThree),
    })
  })

  it('a holder, and an operator that takes its lock away for another', async () => {
    await exploreAll({
      actors: {
        ann: holder('last'),
        operator: asProcess(async (own) => {
          const { released } = await own.locks.forceRelease('x', { ifFence: 100 })
          const lock = await own.manager.tryLock('x', { leaseMs: TTL_MS })
          assert.equal(released, 1)
          if (lock) await countUnder(lock, own)
          return lock
        }),
        renewal: asProcess(renew),
      },
      mayFail: isRefused,
      invariant: countsAreKept(['ann', 'operator']),
      bound: bound(0),
    })
  })

  it('two transactions of one holder, and its successor', async () => {
    await exploreAll({
      actors: {
        ann: holder(),
        again: asProcess(async (own) => {
          await own.transaction(async (tx) => {
            await own.held().guard(tx)
            await tx.query('insert into done values (1, 1)')
          })
        }),
        bob: successor,
      },
      mayFail: isRefused,
      invariant: countsAreKept(['ann', 'bob']),
      bound: bound(0),
    })
  })
}

/** Explores callers that acquire, renew and release. */
export function describeLockSchedules(bound: Depth): void {
  const { asProcess, exploreAll, rowsOf, timePasses } = exploredLocks(bound)
  const rows = (db: Pool) =>
    rowsOf(
      db,
      "select permit, holder, fence::float8, expires_at > '-infinity' as held from {schema}.lock order by permit",
    )
  const states = (outcomes: Readonly<Record<string, Outcome>>, ...names: string[]) =>
    names.map((name) => readResult(outcomes[name]) as { state: string; permit?: number; fence?: number })

  describe('one of two gets a lock', () => {
    it.each([
      ['that was never taken', 0, '', 0],
      ['that was given back', 1, "update {schema}.lock set expires_at = '-infinity'", 0],
      ['whose lease has run out', 1, "update {schema}.lock set expires_at = '2020-01-01'", 0],
      ['for which both will wait', 1, "update {schema}.lock set expires_at = '2020-01-01'", 1_000],
    ])('%s', async (_, held, sql, wantedMs) => {
      await exploreAll({
        held,
        before: (db) => rowsOf(db, sql || 'select 1'),
        actors: {
          bob: asProcess(acquire('bob', { wantedMs })),
          eve: asProcess(acquire('eve', { wantedMs })),
        },
        invariant: async (db, outcomes) => {
          const both = states(outcomes, 'bob', 'eve')
          const [row, ...others] = await rows(db)
          assert.equal(both.filter(({ state }) => state === 'taken').length, 1)
          // A call that is ready to wait does not wait for the row lock. It polls again.
          assert(both.some(({ state }) => state === 'held' || (wantedMs > 0 && state === 'busy')))
          const winner = both.find(({ state }) => state === 'taken')
          assert.deepEqual([others, row?.fence, row?.held], [[], winner?.fence, true])
          assert(Number(row?.fence) > (held ? 100 : 0))
        },
        bound: bound(2),
      })
    })
  })

  it('of three, two get one of two permits', async () => {
    await exploreAll({
      held: 0,
      actors: Object.fromEntries(
        ['bob', 'eve', 'joe'].map((name) => [name, asProcess(acquire(name, { permits: 2 }))]),
      ),
      invariant: async (db, outcomes) => {
        const all = states(outcomes, 'bob', 'eve', 'joe')
        assert.equal(all.filter(({ state }) => state === 'taken').length, 2)
        assert.deepEqual(
          (await rows(db)).map(({ permit, held }) => [permit, held]),
          [
            [0, true],
            [1, true],
          ],
        )
      },
      bound: bound(0),
    })
  })

  describe('whoever waits is known to whoever gives back', () => {
    it.each([
      ['one permit', 1, 1],
      ['two permits, of which one is given back', 2, 1],
    ])('%s', async (_, permits, depth) => {
      await exploreAll({
        held: permits,
        actors: {
          bob: asProcess(acquire('bob', { permits, wantedMs: 1_000 })),
          ann: asProcess(release(99 + permits, permits - 1)),
        },
        invariant: async (_, { bob, ann }) => {
          const waits = (readResult(bob) as { state: string }).state
          const { state, isWanted } = readResult(ann) as { state: string; isWanted: boolean }
          assert.equal(state, 'released')
          assert(['held', 'busy', 'taken'].includes(waits), waits)
          // `busy` looks again at once.
          if (waits === 'held') assert(isWanted, 'it is given back, and nobody tells the one that waits')
        },
        bound: bound(depth + 1),
      })
    })

    it('though another that waits has marked it before, and takes it', async () => {
      await exploreAll({
        actors: {
          bob: asProcess(acquire('bob', { wantedMs: 1_000 })),
          eve: asProcess(acquire('eve', { wantedMs: 1_000 })),
          ann: asProcess(release()),
        },
        invariant: async (_, outcomes) => {
          const [bob, eve] = states(outcomes, 'bob', 'eve')
          const { isWanted } = readResult(outcomes.ann) as { isWanted: boolean }
          const taken = [bob, eve].filter((one) => one?.state === 'taken')
          assert(taken.length <= 1)
          // A waiting call gets its notification from the holder that it waits for.
          if ([bob, eve].some((one) => one?.state === 'held') && taken.length === 0) assert(isWanted)
        },
        bound: bound(0),
      })
    })
  })

  it('a renewal beside a release does not revive it, and is no loss of another', async () => {
    await exploreAll({
      actors: { renewal: asProcess(renew), release: asProcess(release()), bob: asProcess(acquire('bob')) },
      invariant: async (db, outcomes) => {
        const [bob] = states(outcomes, 'bob')
        const [row] = await rows(db)
        assert.equal((readResult(outcomes.release) as { state: string }).state, 'released')
        assert.deepEqual([row?.held, row?.holder], bob?.state === 'taken' ? [true, 'bob'] : [false, 'ann'])
        assert(['held', 'lost'].includes(`${readResult(outcomes.renewal)}`))
      },
    })
  })

  it.each([
    ['with all of its locks', renew],
    ['alone', renewAlone],
  ])('a renewal %s keeps the lock, or another has it', async (_, renewal) => {
    await exploreAll({
      actors: {
        late: asProcess(renewal),
        bob: asProcess(async (own) => {
          await timePasses(own.db)
          return acquire('bob')(own)
        }),
      },
      invariant: async (_, outcomes) => {
        const [bob] = states(outcomes, 'bob')
        assert.equal(readResult(outcomes.late), bob?.state === 'taken' ? 'lost' : 'held')
      },
      bound: bound(2),
    })
  })

  it('a holder that wakes up late keeps it, or another has it', async () => {
    await exploreAll({
      actors: {
        late: asProcess(renew),
        release: asProcess(async (own) => (await release()(own)).state),
        bob: asProcess(async (own) => {
          await timePasses(own.db)
          return acquire('bob')(own)
        }),
      },
      invariant: async (db, outcomes) => {
        const [bob] = states(outcomes, 'bob')
        const [row] = await rows(db)
        if (bob?.state === 'taken')
          assert.deepEqual([row?.holder, row?.fence, row?.held], ['bob', bob.fence, true])
        else assert.deepEqual([row?.holder, readResult(outcomes.release)], ['ann', 'released'])
      },
    })
  })

  it('a call that asks again for its answer is not given what is another’s by now', async () => {
    await exploreAll({
      actors: {
        again: asProcess(acquire('ann')),
        operator: asProcess(async (own) => {
          await own.locks.forceRelease('x')
          return acquire('bob')(own)
        }),
      },
      invariant: async (db, outcomes) => {
        const [again, bob] = states(outcomes, 'again', 'operator')
        const [row] = await rows(db)
        if (again?.state === 'taken' && bob?.state === 'taken') assert.notEqual(again.fence, bob.fence)
        if (bob?.state === 'taken') assert.deepEqual([row?.holder, row?.fence], ['bob', bob.fence])
      },
      bound: bound(2),
    })
  })

  it('an operator takes away what was seen, and not what another has since', async () => {
    await exploreAll({
      actors: {
        operator: asProcess(async ({ locks }) => (await locks.forceRelease('x', { ifFence: 100 })).released),
        ann: asProcess(release()),
        bob: asProcess(acquire('bob')),
      },
      invariant: async (db, outcomes) => {
        const [bob] = states(outcomes, 'bob')
        const [row] = await rows(db)
        if (bob?.state === 'taken') assert.deepEqual([row?.holder, row?.held], ['bob', true])
        else assert.equal(row?.held, false)
        // One of the two has ended it.
        assert.equal(
          (readResult(outcomes.ann) as { state: string }).state === 'lost',
          readResult(outcomes.operator) === 1,
        )
      },
    })
  })

  it('a row that maintenance removes is made again, with a higher fence', async () => {
    await exploreAll({
      before: (db) =>
        rowsOf(
          db,
          "update {schema}.lock set expires_at = '-infinity', acquired_at = '2020-01-01', fence = 100",
        ),
      actors: {
        maintenance: asProcess(async ({ database }) => (await database.send(forgetLocks, ['10']))[0]?.count),
        bob: asProcess(acquire('bob')),
        eve: asProcess(acquire('eve')),
      },
      invariant: async (db, outcomes) => {
        const both = states(outcomes, 'bob', 'eve')
        assert.deepEqual(both.map(({ state }) => state).toSorted(), ['held', 'taken'])
        const [row] = await rows(db)
        assert(Number(row?.fence) > 100)
        assert.equal(row?.fence, both.find(({ state }) => state === 'taken')?.fence)
      },
    })
  })
}
