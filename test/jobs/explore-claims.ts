import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { describe, it } from 'vitest'
import type { ClaimedJob } from '../../src/jobs/claimed-job.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { itInDepth } from '../depth.js'
import { type Depth, exploredJobs, type Process, type PutJob, resultOf } from './explored-jobs.js'
import type { Careful } from './job-calls.js'

const ready = (...ids: number[]): PutJob[] => ids.map((id) => ({ id }))
const idsOf = (outcome: Outcome | undefined): number[] =>
  (resultOf<ClaimedJob[] | null>(outcome) ?? []).map(({ id }) => id)

/** Every race of those who claim that is known, and that must not be one. */
export function describeClaimSchedules(bound: Depth): void {
  const { asProcess, exploreJobs, rowsOf, statesOf, outcomesOf, timePasses } = exploredJobs(bound)
  const claims = (worker: string, count = 1, lanes?: number[]) =>
    asProcess((own) => own.claim(worker, count, lanes ? { lanes } : {}))
  const probes = (worker: string, count = 1) => asProcess((own) => own.probe(worker, count))

  /** Checks that each worker holds the jobs that its claim returned, under the returned fence. */
  const ownersAreRight = async (db: Pool, outcomes: Readonly<Record<string, Outcome>>) => {
    const rows = await rowsOf(
      db,
      "select id::int, worker, fence::float8 from {schema}.job where state = 'running'",
    )
    const held = Object.entries(outcomes).flatMap(([worker, outcome]) =>
      (resultOf<ClaimedJob[] | null>(outcome) ?? []).map(({ id, fence }) => ({ id, worker, fence })),
    )
    const sorted = (all: readonly Record<string, unknown>[]) =>
      all.toSorted((one, other) => Number(one.id) - Number(other.id))
    assert.deepEqual(sorted(held), sorted(rows))
  }

  describe('of several who claim, each job goes to one, and none is left though there was room', () => {
    it.each([
      ['two, each as many as there are', 2, ready(1, 2), 2],
      ['two, with room for less', 1, ready(1, 2, 3), 2],
    ])('%s', async (_, count, jobs, actors) => {
      await exploreJobs({
        jobs,
        actors: Object.fromEntries(
          ['ann', 'bob', 'eve'].slice(0, actors).map((name) => [name, claims(name, count)]),
        ),
        invariant: async (db, outcomes) => {
          await ownersAreRight(db, outcomes)
          const taken = Object.values(outcomes).flatMap(idsOf)
          assert.equal(taken.length, Math.min(actors * count, jobs.length))
          // The oldest first.
          assert.deepEqual(
            taken.toSorted(),
            jobs.slice(0, taken.length).map(({ id }) => id),
          )
        },
      })
    })

    itInDepth('three', async () => {
      await exploreJobs({
        jobs: ready(1, 2),
        actors: { ann: claims('ann'), bob: claims('bob'), eve: claims('eve') },
        bound: bound(1),
        invariant: async (db, outcomes) => {
          await ownersAreRight(db, outcomes)
          assert.deepEqual(Object.values(outcomes).flatMap(idsOf).toSorted(), [1, 2])
        },
      })
    })

    it('one that goes on from its place, and one that looks from the start', async () => {
      await exploreJobs({
        jobs: ready(1, 2),
        actors: { ann: claims('ann', 2), bob: probes('bob', 2) },
        invariant: async (db, outcomes) => {
          await ownersAreRight(db, outcomes)
          assert.deepEqual(Object.values(outcomes).flatMap(idsOf).toSorted(), [1, 2])
        },
      })
    })

    it('what is more urgent is claimed before the rest', async () => {
      await exploreJobs({
        jobs: [
          { id: 1, priority: 0 },
          { id: 2, priority: 9 },
          { id: 3, priority: 5 },
        ],
        actors: { ann: probes('ann'), bob: probes('bob') },
        invariant: async (db, outcomes) => {
          await ownersAreRight(db, outcomes)
          assert.deepEqual(Object.values(outcomes).flatMap(idsOf).toSorted(), [2, 3])
        },
      })
    })
  })

  describe('what becomes due is claimed once, or waits for the next', () => {
    const promotes = asProcess(async (own) => (await own.promote()).count)
    const expectOneClaim = (others: Readonly<Record<string, typeof promotes>>, preemptions: number) =>
      exploreJobs({
        jobs: [{ id: 1, state: 'scheduled', runAt: '2025-12-31' }],
        actors: { ...others, ann: claims('ann') },
        bound: bound(preemptions),
        invariant: async (db, { ann, ...promoted }) => {
          assert.equal(
            Object.values(promoted).reduce((sum, one) => sum + resultOf<number>(one), 0),
            1,
          )
          await ownersAreRight(db, { ann } as Record<string, Outcome>)
          assert.deepEqual(await statesOf(db), { 1: idsOf(ann).length === 1 ? 'running' : 'ready' })
        },
      })

    it('one promotes', () => expectOneClaim({ promotion: promotes }, 2))
    itInDepth('two promote', () => expectOneClaim({ promotion: promotes, another: promotes }, 1))
  })

  describe('a pause', () => {
    /** Pauses, and looks what runs: whatever is begun after that was begun in spite of it. */
    const pauses = asProcess(async (own) => {
      await own.pause('q')
      return rowsOf(own.db, "select id::int from {schema}.job where state = 'running' order by id")
    })

    it.each([
      ['by one who goes on from its place', (own: Process) => own.claim('ann', 2, { lanes: [1, 3] })],
      ['by one who looks from the start', (own: Process) => own.probe('ann', 2, [1, 3])],
      [
        'by one who goes carefully',
        async (own: Process) => (await own.claimCarefully('ann', 2, [1, 3]))?.jobs ?? null,
      ],
    ])('once it is committed, nothing of the queue is begun %s', async (_, claim) => {
      await exploreJobs({
        jobs: [
          { id: 1, lane: 1 },
          { id: 2, lane: 3 },
        ],
        actors: { operator: pauses, ann: asProcess(claim) },
        invariant: async (db, { operator, ann }) => {
          await ownersAreRight(db, { ann } as Record<string, Outcome>)
          const seen = resultOf<{ id: number }[]>(operator).map(({ id }) => id)
          const taken = idsOf(ann)
          assert.equal(
            taken.includes(1),
            seen.includes(1),
            `${taken} were begun, ${seen} ran when it was paused`,
          )
          // The other queue goes on, but for the moment in which one is being paused.
          if (resultOf(ann) !== null) assert(taken.includes(2))
        },
      })
    })

    itInDepth('two pauses, and one who claims', async () => {
      await exploreJobs({
        jobs: ready(1),
        actors: { operator: pauses, another: pauses, ann: claims('ann') },
        bound: bound(1),
        invariant: async (_, { operator, another, ann }) => {
          for (const one of [operator, another])
            assert.deepEqual(
              resultOf<{ id: number }[]>(one).map(({ id }) => id),
              idsOf(ann),
            )
        },
      })
    })

    it('that ends while somebody claims: it is claimed, or waits for the next', async () => {
      await exploreJobs({
        jobs: ready(1),
        before: (db) => rowsOf(db, "insert into {schema}.queue values ('q', '2026-01-01', 'ann')"),
        actors: { operator: asProcess((own) => own.resume('q')), ann: claims('ann') },
        invariant: async (db, { operator, ann }) => {
          assert.equal(resultOf(operator), 'resumed')
          await ownersAreRight(db, { ann } as Record<string, Outcome>)
        },
      })
    })
  })

  it('a canceled job is claimed, and its worker learns of the cancellation, or is not claimed', async () => {
    await exploreJobs({
      jobs: ready(1),
      actors: { operator: asProcess((own) => own.cancel(1)), ann: claims('ann') },
      invariant: async (db, { operator, ann }) => {
        const isTaken = idsOf(ann).length === 1
        assert.equal(resultOf(operator), isTaken ? 'canceling' : 'canceled')
        assert.deepEqual(await outcomesOf(db), isTaken ? [] : ['canceled'])
        if (isTaken)
          assert.deepEqual(await rowsOf(db, 'select cancel_at is not null as "isMarked" from {schema}.job'), [
            { isMarked: true },
          ])
      },
    })
  })

  it('what has expired is run by nobody, and ends once', async () => {
    await exploreJobs({
      jobs: [{ id: 1, expiresAt: '2026-01-01T00:00:01Z' }, { id: 2 }],
      actors: {
        time: async (db) => timePasses(db),
        upkeep: asProcess((own) => own.expire()),
        ann: claims('ann', 2),
      },
      bound: bound(1),
      invariant: async (db, { upkeep, ann }) => {
        const taken = idsOf(ann)
        assert(taken.includes(2))
        const outcomes = await outcomesOf(db)
        if (taken.includes(1)) assert.deepEqual([outcomes, resultOf(upkeep)], [[], 0])
        else if (resultOf(upkeep) === 1) assert.deepEqual(outcomes, ['expired'])
      },
    })
  })

  describe('a row that cannot be claimed', () => {
    /** The fence of the first cannot grow. */
    const jobs: PutJob[] = [{ id: 1, fence: '9223372036854775807' }, { id: 2 }, { id: 3 }]

    it('is set aside once, and the rest is claimed', async () => {
      const carefully = (worker: string) =>
        asProcess(async (own) => {
          const refused = await own.claim(worker, 2).catch(() => null)
          return refused === null
            ? own.claimCarefully(worker, 2)
            : { jobs: refused, quarantined: [], stuck: [] }
        })
      await exploreJobs({
        jobs,
        actors: { ann: carefully('ann'), bob: carefully('bob') },
        bound: bound(1),
        invariant: async (db, { ann, bob }) => {
          const all = [resultOf<Careful>(ann), resultOf<Careful>(bob)]
          const taken = all.flatMap(({ jobs: own }) => own.map(({ id }) => id))
          assert.deepEqual(taken.toSorted(), [2, 3])
          assert.deepEqual(
            [all.flatMap(({ quarantined }) => quarantined), all.flatMap(({ stuck }) => stuck)],
            [[1], []],
          )
          assert.deepEqual(await statesOf(db), { 1: 'dead', 2: 'running', 3: 'running' })
        },
      })
    })

    it('beside one who claims and one who cancels it', async () => {
      await exploreJobs({
        jobs,
        actors: {
          ann: asProcess((own) => own.claimCarefully('ann', 2)),
          operator: asProcess((own) => own.cancel(1)),
        },
        invariant: async (db, { ann, operator }) => {
          const { jobs: own, quarantined } = resultOf<Careful>(ann)
          assert.deepEqual(own.map(({ id }) => id).toSorted(), [2, 3])
          assert.deepEqual(quarantined, resultOf(operator) === 'dead' ? [1] : [])
          assert(['dead', 'canceled'].includes(resultOf<string>(operator)))
          assert.deepEqual(await outcomesOf(db), resultOf(operator) === 'dead' ? [] : ['canceled'])
        },
      })
    })
  })
}
