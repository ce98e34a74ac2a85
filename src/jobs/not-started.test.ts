import { expect, it } from 'vitest'
import { until, url, viaPgBouncer } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import type { Dibs } from '../dibs.js'
import { PgProxy } from '../testing/index.js'

// An attempt counts from the moment its handler starts. These handlers have one attempt, and their transactions cannot begin.
const fixture = openJobs()

const define = (dibs: Dibs, options: object = {}) =>
  dibs.jobs({
    warmUp: {},
    book: { transactional: true, maxAttempts: 1, ...options } as { transactional: true },
  })

/** A worker whose pool makes a connection for each use; those for claims, ends and heartbeats are connected. */
async function startWorker(proxy: PgProxy, options: object = {}) {
  const dibs = await fixture.elsewhere({ listen: false }, { connectionString: proxy.url, maxUses: 1 })
  const jobs = define(dibs, options)
  const runs: number[] = []
  const worker = await jobs.work(
    { warmUp: () => {}, book: async (_, { attempt }) => void runs.push(attempt) },
    { pollMs: 50 },
  )
  await jobs.result((await jobs.add('warmUp', null)).id, { waitMs: 20_000 })
  return { dibs, jobs, worker, runs }
}

it.runIf(!viaPgBouncer)('does not count an attempt for which no connection could be made', async () => {
  await using proxy = await PgProxy.start({ url })
  const events = fixture.listen('dibs:job.not-started', 'dibs:job.failed')
  const { worker, runs } = await startWorker(proxy)
  const refusal = proxy.inject({ kind: 'refuse' })
  const jobs = define(fixture.dibs)
  const { id } = await jobs.add('book', null)
  await until(() => events.length >= 3, 'three tries without a connection')
  expect(runs).toEqual([])
  expect((await jobs.history(id)).items).toEqual([])
  refusal.end()
  await jobs.result(id, { waitMs: 20_000 })
  expect(runs).toEqual([1])
  expect(new Set(events.map(({ event }) => event))).toEqual(new Set(['dibs:job.not-started']))
  // Each pause is longer than the one before, give or take.
  const delays = events.map(({ retryInMs }) => Number(retryInMs))
  expect(Math.min(...delays)).toBeGreaterThan(0)
  expect(Math.max(...delays)).toBeLessThanOrEqual(5_000)
  // The worker counts an end after the database has it.
  await until(() => worker.stats.succeeded === 2, 'the worker to count it')
  expect(worker.stats).toMatchObject({ started: 2, succeeded: 2, failed: 0, retried: 0 })
  expect(worker.stats.released).toBe(events.length)
})

it.runIf(!viaPgBouncer)(
  'does not count it when the whole server is gone before the handler starts',
  async () => {
    await using proxy = await PgProxy.start({ url })
    const events = fixture.listen('dibs:job.not-started')
    const { dibs, runs } = await startWorker(proxy, { leaseMs: 60_000 })
    let refusal: { end(): void } | undefined
    const connect = dibs.pool.connect
    dibs.pool.connect = ((...given: unknown[]) => {
      if (!refusal) {
        refusal = proxy.inject({ kind: 'refuse' })
        proxy.inject({ kind: 'reset' })
      }
      return Reflect.apply(connect, dibs.pool, given)
    }) as typeof connect
    const jobs = define(fixture.dibs)
    const { id } = await jobs.add('book', null)
    await until(() => events.length === 1, 'the worker to notice')
    expect(await jobs.get(id)).toMatchObject({ state: 'running' })
    refusal?.end()
    await jobs.result(id, { waitMs: 30_000 })
    expect(runs).toEqual([1])
    expect((await jobs.history(id)).items.map(({ outcome }) => outcome)).toEqual(['succeeded'])
  },
)

it('does not count the wait for a connection of the pool as time of the handler', async () => {
  const dibs = await fixture.elsewhere({}, { max: 1 })
  // Long enough for the handler on a slow machine.
  const jobs = define(dibs, { timeoutMs: 4_000 })
  const taken = await dibs.pool.connect()
  const runs: number[] = []
  await using worker = await jobs.work({
    warmUp: () => {},
    book: async (_, { attempt, tx }) => {
      await tx.query('select pg_sleep(0.1)')
      runs.push(attempt)
    },
  })
  const other = define(fixture.dibs)
  const { id } = await other.add('book', null)
  await until(() => worker.stats.running === 1, 'the job to wait for a connection')
  const since = performance.now()
  await until(() => performance.now() - since > 5_000, 'its time to be over, if it ran')
  expect(worker.stats).toMatchObject({ running: 1, failed: 0, retried: 0 })
  taken.release()
  await other.result(id, { waitMs: 20_000 })
  expect(runs).toEqual([1])
})

it('releases a job that has waited for a connection of the pool for longer than its lease', async () => {
  const dibs = await fixture.elsewhere({}, { max: 1 })
  const taken = await dibs.pool.connect()
  const events = fixture.listen('dibs:job.not-started')
  const jobs = define(dibs, { leaseMs: 1_000 })
  await using full = await jobs.work({ warmUp: () => {}, book: () => {} }, { concurrency: 1 })
  const other = define(fixture.dibs, { leaseMs: 1_000 })
  const { id } = await other.add('book', null)
  await until(() => full.stats.running === 1, 'the job to wait for a connection')
  await using free = await other.work({ warmUp: () => {}, book: async (_, { attempt }) => attempt })
  expect(await other.result(id, { waitMs: 20_000 })).toBe(1)
  expect(free.stats.succeeded).toBe(1)
  expect(events.length).toBeGreaterThan(0)
  taken.release()
})

it('does not start a handler whose job was released while it waited for a connection', async () => {
  const dibs = await fixture.elsewhere({}, { max: 1 })
  const jobs = define(dibs)
  const taken = await dibs.pool.connect()
  let runs = 0
  const worker = await jobs.work({ warmUp: () => {}, book: () => void runs++ })
  const other = define(fixture.dibs)
  const { id } = await other.add('book', null)
  await until(() => worker.stats.running === 1, 'the job to wait for a connection')
  await worker.stop({ drainMs: 0 })
  expect(await other.get(id)).toMatchObject({ state: 'ready', attempt: 0 })
  taken.release()
  await dibs.close()
  expect(runs).toBe(0)
})
