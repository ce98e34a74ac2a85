import { expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'

const fixture = openJobs()

/** As behind a transaction that is held open elsewhere: a look from the start reads rows that nobody can vacuum. */
async function slowLook(ms: number): Promise<void> {
  await fixture.query(`alter function {schema}.job_probe rename to job_probe_quick`)
  await fixture.query(`create function {schema}.job_probe(p_workers text[], p_counts integer[], p_lanes integer[], p_lease_ms bigint[]) returns json language plpgsql as
    $$ begin perform pg_catalog.pg_sleep(${ms / 1000}); return {schema}.job_probe_quick(p_workers, p_counts, p_lanes, p_lease_ms); end $$`)
}

it('what is new does not wait for a look from the start that takes long, and what only that can find is found', async () => {
  const jobs = fixture.dibs.jobs({ note: {} })
  const startedAt = new Map<number, number>()
  await using worker = await jobs.work(
    { note: (input) => void startedAt.set(Number(input), performance.now()) },
    { pollMs: 200 },
  )
  await worker.ready
  await jobs.result((await jobs.add('note', 0)).id, { waitMs: 10_000 })
  await slowLook(800)
  await new Promise((resolve) => setTimeout(resolve, 2_000)) // it has been met once
  const addedAt: number[] = []
  for (let n = 1; n <= 150; n++) {
    addedAt[n] = performance.now()
    void jobs.add('note', n)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  await until(() => startedAt.size === 151, 'all to be started')
  const late = addedAt.filter((at, n) => (startedAt.get(n) as number) - at > 150)
  // A look is under way for a quarter of that time. One job in ten may be late for another reason.
  expect(late.length).toBeLessThan(15)
  // Of a priority that nobody knows of.
  await jobs.add('note', 151, { priority: 7 })
  await until(() => startedAt.has(151), 'what is found by a look from the start')
})
