import { beforeAll, describe, expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import type { Dibs } from '../dibs.js'

/** A full scan is slow while an open transaction elsewhere keeps vacuum from removing dead rows. */

const fixture = openJobs()
const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

beforeAll(() =>
  fixture.query(
    `create table {schema}.scans (begun_at timestamptz, ended_at timestamptz); alter function {schema}.job_claim_full_scan rename to job_fast_full_scan`,
  ),
)

/** Makes each scan wait before it reads, and again before it answers. */
const slowScan = (beforeMs: number, afterMs = 0) =>
  fixture.query(`create or replace function {schema}.job_claim_full_scan(p_workers text[], p_counts integer[], p_lanes integer[], p_lease_ms bigint[]) returns json language plpgsql as $$
    declare v json; begin
      perform pg_catalog.pg_sleep(${beforeMs / 1000});
      v := {schema}.job_fast_full_scan(p_workers, p_counts, p_lanes, p_lease_ms);
      perform pg_catalog.pg_sleep(${afterMs / 1000});
      insert into {schema}.scans values (pg_catalog.clock_timestamp() - interval '${beforeMs + afterMs} ms', pg_catalog.clock_timestamp());
      return v;
    end $$`)

/** When each scan began and ended. */
const scans = async (): Promise<[number, number][]> =>
  (await fixture.query('select begun_at, ended_at from {schema}.scans')).map((scan) => [
    Number(scan.begun_at),
    Number(scan.ended_at),
  ])

/** True while a scan has read, and has not answered yet. */
const isScanning = async (): Promise<boolean> => {
  const query = `select from pg_catalog.pg_stat_activity where wait_event = 'PgSleep' and query like '%{schema}.job_claim_full_scan(%'`
  return (await fixture.query(query)).length > 0
}

/** A worker that has seen a slow scan, and has claimed beside one. */
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
    await until(() => startedAt.has(n), 'the first jobs')
  }
  return { jobs, startedAt, worker }
}

describe('a slow full scan', () => {
  it('does not block claims of new jobs, and finds jobs that only a full scan finds', async () => {
    await slowScan(800)
    const { jobs, startedAt, worker } = await started({ pollMs: 200 })
    await using _ = worker
    for (let n = 0; n < 200; n++) {
      void jobs.add('note', n)
      await sleep(20)
    }
    await until(() => startedAt.size === 202, 'all to be started')
    await until(async () => !(await isScanning()), 'the running scan to end')
    const within = (await scans())
      .slice(1)
      .map(([begun, ended]) => [...startedAt.values()].filter((at) => at > begun + 200 && at < ended - 200))
    expect(within.flat().length).toBeGreaterThan(5)
    // No cursor knows this priority.
    await jobs.add('note', 200, { priority: 7 })
    await until(() => startedAt.has(200), 'the job that a full scan finds')
  })

  it('does not block heartbeats', async () => {
    await slowScan(900)
    const told = fixture.listen('dibs:worker.failed')
    const { jobs, worker } = await started({ pollMs: 200 }, { leaseMs: 1_500 })
    await using _ = worker
    const { id } = await jobs.add('long', 0)
    await jobs.result(id, { waitMs: 10_000 })
    expect(told).toEqual([])
    expect((await jobs.history(id)).items).toHaveLength(1)
  })

  it('is repeated if jobs became ready behind it', async () => {
    await slowScan(0, 900)
    // The worker gets one notification per job: a second one would come when the scan is over.
    const dibs = await fixture.elsewhere({ listen: false })
    const { jobs, startedAt, worker } = await started({ pollMs: 60_000 }, { dibs })
    await using _ = worker
    await jobs.add('note', 1)
    await until(isScanning, 'the scan that is due')
    await jobs.add('note', 2, { priority: 7 })
    await until(() => startedAt.has(2), 'the job that the scan has not seen', 10_000)
  })

  it('that fails is repeated in place of a claim, and sets aside jobs that cannot be claimed', async () => {
    await slowScan(400)
    const told = fixture.listen('dibs:job.quarantined')
    const { jobs, startedAt, worker } = await started({ pollMs: 200 })
    await using _ = worker
    await fixture.query(`create function {schema}.refuse() returns trigger language plpgsql as
        $$ begin raise exception 'not this one' using errcode = 'check_violation'; end $$;
      create trigger refuse before update on {schema}.job for each row
        when (new.state = 'running' and new.input #>> '{}' = '666') execute function {schema}.refuse()`)
    try {
      // No cursor knows this priority, so only the scan meets these jobs.
      await jobs.addMany([666, 1].map((input) => ({ name: 'note', input, priority: 9 })))
      await until(() => startedAt.has(1), 'the job behind it', 15_000)
      expect(told).toHaveLength(1)
    } finally {
      await fixture.query('drop trigger refuse on {schema}.job; drop function {schema}.refuse()')
    }
  })

  it.each([1, 10])(
    'runs no more often than `pollMs` says while there is nothing to do (concurrency %s)',
    async (concurrency) => {
      await slowScan(60)
      const { worker } = await started({ pollMs: 60_000, concurrency })
      await using _ = worker
      await sleep(3_000) // the running scan has ended
      const before = await scans()
      await sleep(4_000)
      expect((await scans()).length - before.length).toBeLessThanOrEqual(1)
    },
  )
})
