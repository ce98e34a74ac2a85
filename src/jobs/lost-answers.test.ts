import { expect, it } from 'vitest'
import { until, url } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { realTime } from '../../test/real-time.js'
import { CommitOutcomeUnknownError } from '../errors.js'
import { PgProxy } from '../testing/index.js'

const fixture = openJobs()

/** A worker behind a proxy that has looked for jobs once, and has found none. */
async function workThrough(proxy: PgProxy, handler: (input: unknown, attempt: number) => unknown) {
  const dibs = await fixture.elsewhere({ listen: false }, { connectionString: proxy.url })
  const jobs = dibs.jobs({ pay: { retry: () => 0 } })
  const worker = await jobs.work({ pay: (input, { attempt }) => handler(input, attempt) }, { pollMs: 50 })
  await worker.ready
  return { worker, jobs, mine: fixture.dibs.jobs({ pay: {} }) }
}

it.each(['before', 'after'] as const)(
  'claims jobs again whose claim had no answer (cut %s)',
  realTime,
  async (when) => {
    await using proxy = await PgProxy.start({ url })
    const { worker, mine } = await workThrough(proxy, (_, attempt) => attempt)
    await using _ = worker
    await mine.addMany(Array.from({ length: 5 }, (_, input) => ({ name: 'pay' as const, input })))
    const cut = proxy.inject({ kind: 'cut', when, statement: 'job_claim_full_scan' })
    const [last] = await mine.addMany([{ name: 'pay', input: 'last' }])
    // Long before a lease expires. A released attempt does not count.
    expect(await mine.result(`${last?.id}`, { waitMs: 10_000 })).toBe(1)
    await until(
      async () => (await fixture.query('select from {schema}.job')).length === 0,
      'all to be done',
      10_000,
    )
    expect((await cut.happened)?.statement).toContain('job_claim_full_scan')
    expect(await fixture.query(`select from {schema}.job_history where outcome <> 'succeeded'`)).toEqual([])
  },
)

it.each([
  ['before', 'job_complete'],
  ['after', 'job_complete'],
  ['before', 'job_settle'],
  ['after', 'job_settle'],
] as const)('records each end once (cut %s %s)', async (when, statement) => {
  await using proxy = await PgProxy.start({ url })
  const refused = fixture.listen('dibs:job.refused')
  const { worker, mine } = await workThrough(proxy, (_, attempt) => {
    if (statement === 'job_settle' && attempt === 1) throw new Error('not yet')
    return attempt
  })
  await using _ = worker
  const cut = proxy.inject({ kind: 'cut', when, statement })
  const added = await mine.addMany(Array.from({ length: 5 }, (_, input) => ({ name: 'pay' as const, input })))
  const attempts = statement === 'job_settle' ? 2 : 1
  for (const { id } of added) {
    expect(await mine.result(id, { waitMs: 10_000 })).toBe(attempts)
    expect((await mine.history(id)).items.length).toBe(attempts)
  }
  await cut.happened
  await until(() => worker.stats.succeeded === 5, 'the worker to know')
  expect([worker.stats.started, refused]).toEqual([5 * attempts, []])
})

it('reports if it is unknown whether a job was added', async () => {
  await using proxy = await PgProxy.start({ url })
  const dibs = await fixture.elsewhere({ listen: false }, { connectionString: proxy.url })
  const jobs = dibs.jobs({ pay: {} })
  proxy.inject({ kind: 'cut', when: 'after', statement: 'job_add' })
  await expect(jobs.add('pay', null)).rejects.toThrow(CommitOutcomeUnknownError)
  expect((await fixture.query('select from {schema}.job')).length).toBe(1)
  expect((await jobs.add('pay', null)).created).toBe(true)
})

it('keeps its leases when a heartbeat is not answered', async () => {
  await using proxy = await PgProxy.start({ url })
  const dibs = await fixture.elsewhere({ listen: false }, { connectionString: proxy.url })
  const jobs = dibs.jobs({ slow: { leaseMs: 4_000 } })
  const lost = fixture.listen('dibs:job.lost', 'dibs:job.recovered')
  const { id } = await jobs.add('slow', null)
  let end: (() => void) | undefined
  const gone = new Promise<void>((resolve) => {
    end = resolve
  })
  await using worker = await jobs.work({ slow: () => gone })
  await until(() => worker.stats.running === 1, 'it to run')
  const leaseOf = async () => (await fixture.dibs.jobs({ slow: {} }).get(id))?.leaseUntil?.getTime() as number
  const first = await leaseOf()
  const cuts = proxy.inject({ kind: 'cut', when: 'before', statement: 'job_heartbeat', times: 2 })
  await until(async () => (await leaseOf()) > first && cuts.strikes === 2, 'a heartbeat to get through')
  expect(lost).toEqual([])
  end?.()
  await jobs.result(id, { waitMs: 10_000 })
})
