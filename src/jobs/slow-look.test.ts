import { beforeAll, describe, expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import type { Dibs } from '../dibs.js'

/** As behind a transaction that is held open elsewhere: a look from the start reads rows that nobody can vacuum. */

const fixture = openJobs()
const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

beforeAll(() =>
  fixture.query(
    `create table {schema}.looks (begun_at timestamptz, ended_at timestamptz); alter function {schema}.job_probe rename to job_probe_quick`,
  ),
)

/** It looks so long after it was asked, and answers so long after that. */
const slowLook = (beforeMs: number, afterMs = 0) =>
  fixture.query(`create or replace function {schema}.job_probe(p_workers text[], p_counts integer[], p_lanes integer[], p_lease_ms bigint[]) returns json language plpgsql as $$
    declare v json; begin
      perform pg_catalog.pg_sleep(${beforeMs / 1000});
      v := {schema}.job_probe_quick(p_workers, p_counts, p_lanes, p_lease_ms);
      perform pg_catalog.pg_sleep(${afterMs / 1000});
      insert into {schema}.looks values (pg_catalog.clock_timestamp() - interval '${beforeMs + afterMs} ms', pg_catalog.clock_timestamp());
      return v;
    end $$`)

/** Since when, until when. */
const looks = async (): Promise<[number, number][]> =>
  (await fixture.query('select begun_at, ended_at from {schema}.looks')).map((look) => [
    Number(look.begun_at),
    Number(look.ended_at),
  ])

/** It has looked, and has not answered yet. */
const isLooking = async (): Promise<boolean> => {
  const asked = `select from pg_catalog.pg_stat_activity where wait_event = 'PgSleep' and query like '%{schema}.job_probe(%'`
  return (await fixture.query(asked)).length > 0
}

/** A worker that has met it, and has claimed beside it. */
async function started(
  options: { pollMs: number; concurrency?: number },
  { leaseMs = 30_000, dibs = fixture.dibs }: { leaseMs?: number; dibs?: Dibs } = {},
) {
  const jobs = dibs.jobs({ note: {}, long: { leaseMs } })
  const startedAt = new Map<number, number>()
  const worker = await jobs.work(
    {
      note: (input) => void startedAt.set(Number(input), Date.now()),
      long: () => sleep(4_000),
    },
    options,
  )
  await worker.ready
  for (const n of [-1, -2]) {
    await jobs.add('note', n)
    await until(() => startedAt.has(n), 'the first')
  }
  return { jobs, startedAt, worker }
}

describe('a look that takes long', () => {
  it('does not keep what is new, and finds what only it can find', async () => {
    await slowLook(800)
    const { jobs, startedAt, worker } = await started({ pollMs: 200 })
    await using _ = worker
    for (let n = 0; n < 200; n++) {
      void jobs.add('note', n)
      await sleep(20)
    }
    await until(() => startedAt.size === 202, 'all to be started')
    await sleep(1_000) // what it has begun is over
    const within = (await looks())
      .slice(1)
      .map(([begun, ended]) => [...startedAt.values()].filter((at) => at > begun + 200 && at < ended - 200))
    expect(within.flat().length).toBeGreaterThan(5)
    // Of a priority that nobody knows of.
    await jobs.add('note', 200, { priority: 7 })
    await until(() => startedAt.has(200), 'what is found by a look from the start')
  })

  it('does not keep heartbeats', async () => {
    await slowLook(900)
    const told = fixture.listen('dibs:worker.failed')
    const { jobs, worker } = await started({ pollMs: 200 }, { leaseMs: 1_500 })
    await using _ = worker
    const { id } = await jobs.add('long', 0)
    await jobs.result(id, { waitMs: 10_000 })
    expect(told).toEqual([])
    expect((await jobs.history(id)).items).toHaveLength(1)
  })

  it('is repeated for what became ready behind it', async () => {
    await slowLook(0, 900)
    // It hears of each job once: a second hint would come when the look is over.
    const dibs = await fixture.elsewhere({ listen: false })
    const { jobs, startedAt, worker } = await started({ pollMs: 60_000 }, { dibs })
    await using _ = worker
    await jobs.add('note', 1)
    await until(isLooking, 'the look that is due')
    await jobs.add('note', 2, { priority: 7 })
    await until(() => startedAt.has(2), 'what it has not seen', 10_000)
  })

  it('and fails is repeated in the place of a claim, which sets aside what cannot be claimed', async () => {
    await slowLook(400)
    const told = fixture.listen('dibs:job.quarantined')
    const { jobs, startedAt, worker } = await started({ pollMs: 200 })
    await using _ = worker
    await fixture.query(`create function {schema}.refuse() returns trigger language plpgsql as
        $$ begin raise exception 'not this one' using errcode = 'check_violation'; end $$;
      create trigger refuse before update on {schema}.job for each row
        when (new.state = 'running' and new.input #>> '{}' = '666') execute function {schema}.refuse()`)
    try {
      // Claims do not know of this priority, so it is not they who meet it.
      await jobs.addMany([666, 1].map((input) => ({ name: 'note', input, priority: 9 })))
      await until(() => startedAt.has(1), 'what is behind it', 15_000)
      expect(told).toHaveLength(1)
    } finally {
      await fixture.query('drop trigger refuse on {schema}.job; drop function {schema}.refuse()')
    }
  })

  it.each([1, 10])(
    'comes as seldom as was asked for while there is nothing to do (%s at once)',
    async (concurrency) => {
      await slowLook(60)
      const { worker } = await started({ pollMs: 60_000, concurrency })
      await using _ = worker
      await sleep(3_000) // what it has begun is over
      const before = await looks()
      await sleep(4_000)
      expect((await looks()).length - before.length).toBeLessThanOrEqual(1)
    },
  )
})
