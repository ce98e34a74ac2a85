import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { it, vi } from 'vitest'
import { inShort } from '../../test/depth.js'
import { exploredLocks, type Process, TTL_MS } from '../../test/locks/explored-locks.js'
import { ClosedError, ConflictError, FenceLostError } from '../errors.js'
import type { Outcome } from '../testing/gate/actor.js'
import { Election } from './election.js'
import type { Lock } from './lock.js'
import type { Term } from './term.js'

vi.setConfig({ testTimeout: 120_000 })
const { asProcess, exploreAll, timePasses, countIs, rowsOf } = exploredLocks(inShort)

/** The lock that `setup` has put there is that of the election. */
const alreadyHeld = (own: Process): Promise<Lock> => Promise.resolve(own.held())
/** Asks once, and is no candidate any more if another leads. */
const acquired = async (own: Process): Promise<Lock> => {
  const lock = await own.manager.tryLock('x', { leaseMs: TTL_MS })
  if (!lock) throw new ClosedError()
  return lock
}

/** Reads, and writes what it has read and one more; only the term protects it. */
const count = (term: Term, own: Process): Promise<void> =>
  own.transaction(async (tx) => {
    await term.guard(tx)
    const { rows } = await tx.query<{ n: number }>('select n from counter')
    await tx.query('update counter set n = $1', [Number(rows[0]?.n) + 1])
  })

/** Leads for one piece of work if it can, and hands over. Answers whether that was done. */
const candidate = (
  take: (own: Process) => Promise<Lock>,
  before: (db: Pool) => Promise<unknown> = async () => {},
) =>
  asProcess(async (own) => {
    await before(own.db)
    let isDone = false
    let error: unknown
    const controller = new AbortController()
    const election = new Election(own.database, () => take(own), 'x', {
      leaseMs: TTL_MS,
      signal: controller.signal,
      onElected: async (term) => {
        try {
          await count(term, own)
          isDone = true
        } catch (reason) {
          error = reason
        }
        controller.abort()
      },
    })
    await election.ended
    if (error && !(error instanceof FenceLostError) && !(error instanceof ConflictError)) throw error
    return isDone
  })

const countsAreKept = async (db: Pool, outcomes: Readonly<Record<string, Outcome>>): Promise<void> => {
  const done = Object.values(outcomes).filter((outcome) => {
    assert.equal(outcome.status, 'fulfilled', String((outcome as { reason?: unknown }).reason))
    return outcome.value === true
  })
  await countIs(db, done.length)
}

it('a leader hands over to the next', async () => {
  await exploreAll({
    actors: { ann: candidate(alreadyHeld), bob: candidate(acquired) },
    invariant: async (db, outcomes) => {
      await countsAreKept(db, outcomes)
      assert.equal((outcomes.ann as { value?: unknown }).value, true)
      const held = await rowsOf(db, "select from {schema}.lock where expires_at > '-infinity'")
      assert.equal(held.length, 0)
    },
    bound: inShort(2),
  })
})

it('a leader that is late, and the one that takes over', async () => {
  await exploreAll({
    actors: { ann: candidate(alreadyHeld), bob: candidate(acquired, timePasses) },
    invariant: countsAreKept,
    bound: inShort(2),
  })
})

it('two candidates where nobody leads', async () => {
  await exploreAll({
    held: 0,
    actors: { ann: candidate(acquired), bob: candidate(acquired) },
    invariant: countsAreKept,
    bound: inShort(2),
  })
})
