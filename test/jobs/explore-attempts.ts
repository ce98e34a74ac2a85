import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { describe, it } from 'vitest'
import { isDeep, itInDepth } from '../depth.js'
import { type Depth, exploredJobs, type Process, type PutJob, resultOf } from './explored-jobs.js'
import type { Beaten, Recovered, Settling } from './job-calls.js'

/** The claim that each exploration starts with: `old` holds it, until time passes. */
const HELD = { id: 1, fence: 100 }
const running = (more: Partial<PutJob> = {}): PutJob[] => [{ id: 1, state: 'running', ...more }]
const RETRY: Settling = { ...HELD, to: 'retry', delayMs: 0, error: { name: 'Error', message: 'again' } }

/** All of them where guards are removed and in the soak, else the first. */
const inDepth = <T>(first: T, ...others: T[]): T[] => (isDeep ? [first, ...others] : [first])

/** Every race about the end of an attempt that is known, and that must not be one. */
export function describeAttemptSchedules(bound: Depth): void {
  const { asProcess, exploreJobs, rowsOf, statesOf, outcomesOf, timePasses } = exploredJobs(bound)

  const completes = asProcess(async (own) => (await own.complete([HELD])).length === 1)
  /** Completes as the engine does: first in a batch, and then alone if the batch has skipped the job. */
  const completesWithRetries = asProcess(async (own) => {
    const [id] = await own.complete([HELD])
    return id === undefined ? (await own.completeOne(HELD)) === 'done' : true
  })
  const settles = (item: Settling) => asProcess(async (own) => (await own.settle(item))[0]?.state)
  /** Ends an attempt that has not succeeded, first in a batch and then alone. */
  const settlesWithRetries = (item: Settling) =>
    asProcess(async (own) =>
      (await own.settle(item)).length === 1 ? true : ['done', 'canceled'].includes(await own.settleOne(item)),
    )
  const recovers = asProcess(async (own) => {
    await timePasses(own.db)
    return (await own.recover()).length === 1
  })
  /** Takes the job over as soon as it can, and completes it. */
  const succeeds = asProcess(async (own) => {
    await timePasses(own.db)
    await own.recover()
    const [job] = (await own.claim('new')) ?? []
    if (!job) return false
    assert.deepEqual(await own.complete([job]), [1])
    return true
  })
  const cancels = asProcess((own) => own.cancel(1))

  describe('an end, and a lease that has run out', () => {
    it.each([
      ['with others', completes],
      ['with others, and then by itself', completesWithRetries],
      ['by itself', asProcess(async (own) => (await own.completeOne(HELD)) === 'done')],
    ])('one of both counts: completed %s', async (_, end) => {
      await exploreJobs({
        jobs: running(),
        actors: { old: end, upkeep: recovers },
        invariant: async (db, { old, upkeep }) => {
          const outcomes = await outcomesOf(db)
          if (resultOf(old)) assert.deepEqual([outcomes, resultOf(upkeep)], [['succeeded'], false])
          else if (resultOf(upkeep)) {
            assert.deepEqual(outcomes, ['lost'])
            assert.deepEqual(await statesOf(db), { 1: 'ready' })
          } else assert.deepEqual(await statesOf(db), { 1: 'running' })
        },
      })
    })

    it.each(
      inDepth<[string, Settling, string | undefined, string]>(
        ['it is tried again', RETRY, 'failed', 'ready'],
        ['it is tried later', { ...RETRY, delayMs: 1_000 }, 'failed', 'scheduled'],
        ['it is dead', { ...RETRY, to: 'dead' }, 'failed', 'dead'],
        ['it is given back', { ...HELD, to: 'release' }, undefined, 'ready'],
      ),
    )('one of both counts: %s', async (_, item, outcome, state) => {
      await exploreJobs({
        jobs: running({ attempt: 2 }),
        actors: { old: settles(item), upkeep: recovers },
        invariant: async (db, { old, upkeep }) => {
          const outcomes = await outcomesOf(db)
          const [row] = await rowsOf(db, 'select state, attempt, worker from {schema}.job')
          const ended = resultOf(old)
          if (ended !== undefined)
            assert.deepEqual(
              [outcomes, row, resultOf(upkeep)],
              [outcome ? [outcome] : [], { state, attempt: outcome ? 2 : 1, worker: null }, false],
            )
          else if (resultOf(upkeep))
            assert.deepEqual([outcomes, row], [['lost'], { state: 'ready', attempt: 2, worker: null }])
          else assert.deepEqual([outcomes, row?.state], [[], 'running'])
        },
      })
    })

    it('of the last attempt: it is dead, or has succeeded', async () => {
      await exploreJobs({
        jobs: running({ attempt: 5 }),
        actors: { old: completesWithRetries, upkeep: recovers, another: recovers },
        bound: bound(1),
        invariant: async (db, { old }) => {
          assert.deepEqual(await outcomesOf(db), [resultOf(old) ? 'succeeded' : 'lost'])
          assert.deepEqual(await statesOf(db), resultOf(old) ? {} : { 1: 'dead' })
        },
      })
    })

    it('of two who look for what was left, one takes it', async () => {
      await exploreJobs({
        jobs: [...running(), { id: 2, state: 'running' }],
        actors: {
          upkeep: asProcess(async (own) => {
            await timePasses(own.db)
            return own.recover()
          }),
          another: asProcess((own) => own.recover()),
        },
        invariant: async (_, { upkeep, another }) => {
          const found = [...resultOf<Recovered[]>(upkeep), ...resultOf<Recovered[]>(another)].map(
            ({ id }) => id,
          )
          assert.deepEqual(found.toSorted(), [1, 2])
        },
      })
    })
  })

  describe('a claim that is said to be over', () => {
    const looks = asProcess((own) => own.recover(10, [1]))

    it('while its job is given back, and claimed again, by whom ever: what runs is watched', async () => {
      await exploreJobs({
        jobs: running(),
        actors: {
          old: asProcess(async (own) => {
            await own.settle({ ...HELD, to: 'release' })
            return own.claim('old')
          }),
          another: asProcess((own) => own.claim('new')),
          upkeep: looks,
        },
        bound: bound(1),
      })
    })
  })

  describe('a worker that comes late, and one that has taken over', () => {
    it.each([
      ['completes with others', completes],
      ['completes by itself', asProcess(async (own) => (await own.completeOne(HELD)) === 'done')],
    ])('it is done once: the first %s', async (_, end) => {
      await exploreJobs({
        jobs: running(),
        actors: { old: end, successor: succeeds },
        invariant: async (db, { old, successor }) => {
          const outcomes = await outcomesOf(db)
          assert(!(resultOf(old) && resultOf(successor)), 'both have succeeded')
          if (resultOf(old)) assert.deepEqual(outcomes, ['succeeded'])
          if (resultOf(successor)) assert.deepEqual(outcomes, ['lost', 'succeeded'])
        },
      })
    })

    it('it is done once: the first fails', async () => {
      await exploreJobs({
        jobs: running(),
        actors: { old: settlesWithRetries(RETRY), successor: succeeds },
        invariant: async (db, { old, successor }) => {
          const outcomes = await outcomesOf(db)
          if (resultOf(successor))
            assert.deepEqual(outcomes, [resultOf(old) ? 'failed' : 'lost', 'succeeded'])
          else assert.deepEqual(outcomes, [resultOf(old) ? 'failed' : 'lost'])
        },
      })
    })

    it('the first changes nothing of the next, whatever it says', async () => {
      await exploreJobs({
        jobs: running(),
        actors: {
          old: asProcess(async (own) => [
            await own.beat([HELD]),
            await own.settle({ ...HELD, to: 'dead', error: {} }),
            await own.tell(HELD, { half: true }),
          ]),
          successor: asProcess(async (own) => {
            await timePasses(own.db)
            await own.recover()
            return (await own.claim('new'))?.[0]
          }),
        },
        bound: bound(1),
        invariant: async (db, { successor }) => {
          const job = resultOf<{ fence: number } | undefined>(successor)
          if (job)
            assert.deepEqual(
              await rowsOf(db, 'select state, worker, fence::float8, progress from {schema}.job'),
              [{ state: 'running', worker: 'new', fence: job.fence, progress: null }],
            )
        },
      })
    })

    itInDepth('it is done once, whoever looks for what was left', async () => {
      await exploreJobs({
        jobs: running(),
        actors: {
          old: completesWithRetries,
          upkeep: recovers,
          successor: asProcess(async (own) => {
            const [job] = (await own.claim('new')) ?? []
            return job !== undefined && (await own.complete([job])).length === 1
          }),
        },
        bound: bound(2),
        invariant: async (_, { old, successor }) => assert(!(resultOf(old) && resultOf(successor))),
      })
    })
  })

  describe('a heartbeat', () => {
    it.each([
      [
        'with others',
        async (own: Process) => {
          const { lost, locked } = await own.beat([HELD])
          return lost.length > 0 ? 'lost' : locked.length > 0 ? 'locked' : 'held'
        },
      ],
      ['of a handler that tells how far it is', (own: Process) => own.tell(HELD, { half: true })],
    ])('keeps the job, or it is taken: %s', async (_, beats) => {
      await exploreJobs({
        jobs: running(),
        actors: { old: asProcess(beats), upkeep: recovers },
        invariant: async (db, { old, upkeep }) => {
          const [row] = await rowsOf(
            db,
            `select state, lease_until > {schema}.clock() as "isHeld" from {schema}.job`,
          )
          if (resultOf(old) === 'held')
            assert.deepEqual([row?.state, row?.isHeld, resultOf(upkeep)], ['running', true, false])
          if (resultOf(upkeep)) assert.notEqual(resultOf(old), 'held')
          if (resultOf(old) === 'locked') assert(resultOf(upkeep), 'nobody had its row')
        },
      })
    })

    it('beside an end of the same attempt: it ends', async () => {
      await exploreJobs({
        jobs: running(),
        actors: { beat: asProcess((own) => own.beat([HELD])), old: completesWithRetries },
        invariant: async (db, { old }) => {
          assert(resultOf(old))
          assert.deepEqual(await outcomesOf(db), ['succeeded'])
        },
      })
    })

    it('hears of a cancellation, or the next does', async () => {
      await exploreJobs({
        jobs: running(),
        actors: {
          old: asProcess(async (own) => [await own.beat([HELD]), await own.beat([HELD])]),
          operator: cancels,
        },
        invariant: async (db, { old, operator }) => {
          assert.equal(resultOf(operator), 'canceling')
          for (const { lost } of resultOf<Beaten[]>(old)) assert.deepEqual(lost, [])
          const [row] = await rowsOf(db, 'select cancel_at is not null as "isMarked" from {schema}.job')
          assert.equal(row?.isMarked, true)
        },
      })
    })
  })

  describe('a cancellation', () => {
    it('of what is just being completed: it has succeeded', async () => {
      await exploreJobs({
        jobs: running(),
        actors: { old: completesWithRetries, operator: cancels },
        invariant: async (db, { old, operator }) => {
          assert(resultOf(old))
          assert(['canceling', 'ended'].includes(resultOf<string>(operator)))
          assert.deepEqual(await outcomesOf(db), ['succeeded'])
        },
      })
    })

    it.each(
      inDepth<[string, Settling]>(
        ['fails, and is tried again', RETRY],
        ['fails for good', { ...RETRY, to: 'dead' }],
        ['is given back', { ...HELD, to: 'release' }],
      ),
    )('of what just %s: it is over, or never was', async (_, item) => {
      await exploreJobs({
        jobs: running(),
        actors: { old: settlesWithRetries(item), operator: cancels },
        invariant: async (db, { old, operator }) => {
          const outcomes = await outcomesOf(db)
          const state = resultOf<string>(operator)
          assert(resultOf(old))
          const before = item.to === 'release' ? [] : ['failed']
          if (state === 'canceling') assert.deepEqual(outcomes, ['canceled'])
          else if (state === 'canceled') assert.deepEqual(outcomes, [...before, 'canceled'])
          else assert.deepEqual([state, outcomes, await statesOf(db)], ['dead', before, { 1: 'dead' }])
        },
      })
    })

    it('of what is just taken from a worker that is gone: it is over', async () => {
      await exploreJobs({
        jobs: running(),
        actors: { upkeep: recovers, operator: cancels },
        invariant: async (db, { upkeep, operator }) => {
          const outcomes = await outcomesOf(db)
          if (resultOf(operator) === 'canceled') assert.deepEqual(outcomes, ['lost', 'canceled'])
          else if (resultOf(upkeep))
            assert.deepEqual([resultOf(operator), outcomes], ['canceling', ['canceled']])
          else assert.deepEqual(await statesOf(db), { 1: 'running' })
        },
      })
    })

    it('twice: it is canceled once', async () => {
      await exploreJobs({
        jobs: [{ id: 1 }],
        actors: { operator: cancels, another: cancels },
        invariant: async (db, { operator, another }) => {
          assert.deepEqual([resultOf<string>(operator), resultOf<string>(another)].toSorted(), [
            'canceled',
            'ended',
          ])
          assert.deepEqual(await outcomesOf(db), ['canceled'])
        },
      })
    })
  })

  describe('an end that is sent twice, since its answer was lost', () => {
    it.each([
      ['both with others', completes, completes],
      ['the second by itself', completes, asProcess(async (own) => (await own.completeOne(HELD)) === 'done')],
    ])('it is recorded once: %s', async (_, first, second) => {
      await exploreJobs({
        jobs: running(),
        actors: { first, second },
        invariant: async (db, outcomes) => {
          assert.deepEqual(await outcomesOf(db), ['succeeded'])
          // An end that is sent alone learns that the job has ended, whoever has ended it.
          if (second !== completes) assert.equal(resultOf(outcomes.second), true)
          else assert(resultOf(outcomes.first) || resultOf(outcomes.second))
        },
      })
    })

    it('it has failed once', async () => {
      await exploreJobs({
        jobs: running(),
        actors: { first: settles(RETRY), second: settlesWithRetries(RETRY) },
        invariant: async (db, { second }) => {
          assert.equal(resultOf(second), true)
          assert.deepEqual(await outcomesOf(db), ['failed'])
          assert.deepEqual(await statesOf(db), { 1: 'ready' })
        },
      })
    })

    it('two ends of two fences in one statement: the one that holds counts, once', async () => {
      const stale = { id: 1, fence: 99 }
      await exploreJobs({
        jobs: running(),
        actors: {
          both: asProcess((own) => own.complete([stale, HELD], { results: ['stale', 'good'] })),
          operator: cancels,
        },
        invariant: async (db, { both }) => {
          // Passed over, since the operator had its row.
          if (resultOf<number[]>(both).length === 0) return
          assert.deepEqual(await rowsOf(db, 'select fence::int, result from {schema}.job_history'), [
            { fence: 100, result: 'good' },
          ])
        },
      })
      await exploreJobs({
        jobs: running(),
        actors: {
          both: asProcess((own) =>
            own.settle(
              { ...stale, to: 'dead', error: { message: 'stale' } },
              { ...RETRY, error: { message: 'good' } },
            ),
          ),
          beat: asProcess((own) => own.beat([HELD])),
        },
        invariant: async (db, { both }) => {
          if (resultOf<unknown[]>(both).length === 0) return
          assert.deepEqual(
            await rowsOf(db, "select fence::int, error ->> 'message' as message from {schema}.job_history"),
            [{ fence: 100, message: 'good' }],
          )
          assert.deepEqual(await statesOf(db), { 1: 'ready' })
        },
      })
    })
  })

  describe('dead jobs', () => {
    const dead: PutJob[] = [{ id: 1, state: 'dead', attempt: 5 }]
    const redrives = asProcess(async (own) => (await own.redrive(1)).ids.length)
    const discards = asProcess(async (own) => (await own.discard(1)).length)

    it.each([
      ['are driven again once', redrives, redrives],
      ['are driven again, or discarded', redrives, discards],
      ['are discarded once', discards, discards],
    ])('%s', async (_, one, other) => {
      await exploreJobs({
        jobs: dead,
        mayBeDiscarded: true,
        actors: { operator: one, another: other },
        invariant: async (db, { operator, another }) => {
          assert.equal(resultOf<number>(operator) + resultOf<number>(another), 1)
          const isDriven =
            (one === redrives && resultOf(operator) === 1) || (other === redrives && resultOf(another) === 1)
          assert.deepEqual(
            await rowsOf(db, 'select state, attempt from {schema}.job'),
            isDriven ? [{ state: 'ready', attempt: 0 }] : [],
          )
        },
      })
    })

    it('are not discarded when somebody runs them again', async () => {
      await exploreJobs({
        jobs: dead,
        mayBeDiscarded: true,
        actors: {
          operator: asProcess(async (own) => {
            await own.redrive(1)
            return (await own.claim('new'))?.[0]?.id
          }),
          another: discards,
        },
        invariant: async (db, { operator, another }) => {
          assert.deepEqual(await statesOf(db), resultOf(another) === 1 ? {} : { 1: 'running' })
          assert.equal(resultOf(operator), resultOf(another) === 1 ? undefined : 1)
        },
      })
    })
  })

  describe('a handler with a transaction', () => {
    /** The effect and the end of the job commit together. */
    const inTransaction = async (own: Process, held: { id: number; fence: number }, by: string) => {
      try {
        return await own.transaction(async (tx) => {
          await tx.query('insert into effect values ($1, $2)', [held.id, by])
          const state = await own.completeOne(held, tx)
          if (state !== 'done') throw new Error(state)
          return state
        })
      } catch (error) {
        return (error as Error).message
      }
    }
    const effectsAre = async (db: Pool, ...by: string[]) =>
      assert.deepEqual(
        (await rowsOf(db, 'select by from effect')).map((row) => row.by),
        by,
      )
    const first = asProcess((own) => inTransaction(own, HELD, 'old'))

    it('has an effect once, or the one that takes over has', async () => {
      await exploreJobs({
        jobs: running(),
        actors: {
          old: first,
          successor: asProcess(async (own) => {
            await timePasses(own.db)
            await own.recover()
            const [job] = (await own.claim('new')) ?? []
            return job && inTransaction(own, job, 'new')
          }),
        },
        invariant: async (db, { old, successor }) => {
          const outcomes = await outcomesOf(db)
          if (resultOf(old) === 'done') {
            assert.deepEqual([outcomes, resultOf(successor)], [['succeeded'], undefined])
            await effectsAre(db, 'old')
          } else {
            // A late handler has locked the row until it rolls back. A claim skips the row meanwhile.
            const isDone = resultOf(successor) === 'done'
            assert.deepEqual(
              [resultOf(old), outcomes, await statesOf(db)],
              isDone ? ['lost', ['lost', 'succeeded'], {}] : ['lost', ['lost'], { 1: 'ready' }],
            )
            await effectsAre(db, ...(isDone ? ['new'] : []))
          }
        },
      })
    })

    it('beside a heartbeat, one who cancels, and one who looks for what was left', async () => {
      await exploreJobs({
        jobs: running(),
        actors: { old: first, operator: cancels, upkeep: recovers },
        bound: bound(1),
        invariant: async (db, { old }) => {
          const isDone = resultOf(old) === 'done'
          await effectsAre(db, ...(isDone ? ['old'] : []))
          assert.equal((await outcomesOf(db)).includes('succeeded'), isDone)
        },
      })
    })
  })
}
