import { expect, it } from 'vitest'
import { url } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { PgProxy } from '../testing/index.js'

const fixture = openJobs()

/** Counts the statements sent through the proxy within `ms`, by function. */
async function countSent(proxy: PgProxy, ms: number): Promise<Record<string, number>> {
  const before = proxy.history.length
  await new Promise((resolve) => setTimeout(resolve, ms))
  const counts: Record<string, number> = {}
  for (const { event, statement } of proxy.history.slice(before)) {
    const name = event === 'statement' ? /\.(job_\w+|worker_\w+)\(/.exec(`${statement}`)?.[1] : undefined
    if (name) counts[name] = (counts[name] ?? 0) + 1
  }
  return counts
}

it.each(['nothing', 'only something for later'])(
  'sends few statements while there is %s to do',
  async (what) => {
    await using proxy = await PgProxy.start({ url })
    const dibs = await fixture.elsewhere({}, { connectionString: proxy.url })
    const jobs = dibs.jobs({ note: {}, later: { queue: 'other' } })
    if (what !== 'nothing') await jobs.add('later', null, { delayMs: 3_600_000 })
    await using worker = await jobs.work({ note: () => {}, later: () => {} })
    await worker.ready
    await jobs.result((await jobs.add('note', null)).id, { waitMs: 10_000 })
    const counts = await countSent(proxy, 3_000)
    // Each about once a second, and a bit more as they begin at different times.
    for (const [name, count] of Object.entries(counts)) expect([name, count <= 6]).toEqual([name, true])
    expect(Object.keys(counts)).toContain('job_claim_full_scan')
  },
)

it('sends as few while all queues that have jobs are paused', async () => {
  await using proxy = await PgProxy.start({ url })
  const dibs = await fixture.elsewhere({}, { connectionString: proxy.url })
  const jobs = dibs.jobs({ note: {} })
  await dibs.queues.pause('default')
  await jobs.addMany(Array.from({ length: 50 }, () => ({ name: 'note' as const, input: null })))
  await using worker = await jobs.work({ note: () => {} })
  await worker.ready
  const counts = await countSent(proxy, 2_000)
  for (const [name, count] of Object.entries(counts)) expect([name, count <= 6]).toEqual([name, true])
  expect(worker.stats.started).toBe(0)
  await dibs.queues.resume('default')
})

it('sends as few while all slots are taken', async () => {
  await using proxy = await PgProxy.start({ url })
  const dibs = await fixture.elsewhere({}, { connectionString: proxy.url })
  const jobs = dibs.jobs({ note: {} })
  let go: (() => void) | undefined
  const gone = new Promise<void>((resolve) => {
    go = resolve
  })
  await jobs.addMany(Array.from({ length: 50 }, () => ({ name: 'note' as const, input: null })))
  await using worker = await jobs.work({ note: () => gone }, { concurrency: 5 })
  await worker.ready
  const counts = await countSent(proxy, 2_000)
  for (const [name, count] of Object.entries(counts)) expect([name, count <= 6]).toEqual([name, true])
  go?.()
})
