import { expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { realTime } from '../../test/real-time.js'

/** Jobs that claims at the cursors do not find, and a full scan does. */

const fixture = openJobs()

it('starts retries in time while there is nothing else to do', realTime, async () => {
  const jobs = fixture.dibs.jobs({
    note: { maxAttempts: 9, retry: { backoff: 'fixed', baseMs: 200, jitter: 0 } },
  })
  const begunAt: Record<string, number[]> = { first: [], second: [] }
  const worker = await jobs.work({
    note: (name) => {
      begunAt[name as string]?.push(performance.now())
      throw new Error('not yet')
    },
  })
  await using _ = worker
  await worker.ready
  await jobs.add('note', 'first') // moves the cursor on
  await jobs.add('note', 'second')
  const starts = Object.values(begunAt)
  await until(() => starts.every(({ length }) => length === 9), 'all attempts', 60_000)
  // A machine with much else to do delays some attempts. Attempts that wait for the next full scan are all a second late.
  const gaps = starts.flatMap((times) => times.slice(1).map((time, n) => time - (times[n] as number)))
  const median = gaps.sort((a, b) => a - b)[gaps.length / 2] as number
  expect(median).toBeLessThan(200 + 500)
})

it('runs jobs of many priorities as fast as jobs of one priority', realTime, async () => {
  const length = 3_000
  const drained = async (priorityOf: (n: number) => number): Promise<number> => {
    const jobs = fixture.dibs.jobs({ note: {} })
    await jobs.addMany(
      Array.from({ length }, (_, n) => ({ name: 'note', input: n, priority: priorityOf(n) })),
    )
    const startedAt = performance.now()
    await using worker = await jobs.work({ note: () => {} })
    await until(() => worker.stats.succeeded === length, 'all jobs to end', 20_000)
    return performance.now() - startedAt
  }
  await drained(() => 0)
  // A busy machine makes either of them slow by chance, but not the second one in each round.
  const rounds: { together: number; apart: number }[] = []
  while (rounds.length < 5) {
    const together = await drained(() => 0)
    const apart = await drained((n) => n)
    rounds.push({ together, apart })
    if (apart < 2 * together + 200) return
  }
  expect(rounds).toBe('as fast in one round')
})
