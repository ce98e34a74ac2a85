import { expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { onTime } from '../../test/on-time.js'

/** What claims do not find where they go on, and a look from the start does. */

const fixture = openJobs()

it('what is tried again is begun in time while there is nothing else to do', onTime, async () => {
  const jobs = fixture.dibs.jobs({
    note: { maxAttempts: 9, retry: { backoff: 'fixed', baseMs: 200, jitter: 0 } },
  })
  const begunAt: number[] = []
  const worker = await jobs.work({
    note: () => {
      begunAt.push(performance.now())
      throw new Error('not yet')
    },
  })
  await using _ = worker
  await worker.ready
  await jobs.add('note', 'one that moves the place on')
  await jobs.add('note', 'another')
  await until(() => begunAt.length === 18, 'all attempts', 20_000)
  const last = begunAt.at(-1) as number
  expect(last - (begunAt[0] as number)).toBeLessThan(8 * 200 + 1_000)
})

it('jobs with a priority each are no slower than jobs with one for all', onTime, async () => {
  const length = 3_000
  const drained = async (priorityOf: (n: number) => number): Promise<number> => {
    const jobs = fixture.dibs.jobs({ note: {} })
    await jobs.addMany(
      Array.from({ length }, (_, n) => ({ name: 'note', input: n, priority: priorityOf(n) })),
    )
    const startedAt = performance.now()
    await using worker = await jobs.work({ note: () => {} })
    await until(() => worker.stats.succeeded === length, 'all to be done', 20_000)
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
  expect(rounds).toBe('slower in no round')
})
