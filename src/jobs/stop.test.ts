import { describe, expect, it } from 'vitest'
import { until, url, viaPgBouncer } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { pendingTimers } from '../../test/watch-timers.js'
import { ClosedError, WorkerStoppedError } from '../errors.js'
import { PgProxy } from '../testing/index.js'

const fixture = openJobs()

describe('stop', () => {
  it('waits for running jobs, and takes no more', async () => {
    const jobs = fixture.dibs.jobs({ slow: {} })
    const [first, second] = await jobs.addMany([1, 2].map((input) => ({ name: 'slow', input })))
    const go = deferred()
    const inside = deferred()
    const worker = await jobs.work(
      {
        slow: async (input) => {
          inside.resolve()
          await go.promise
          return input
        },
      },
      { concurrency: 1 },
    )
    await inside.promise
    const stopped = worker.stop()
    expect(worker.stats.isStopping).toBe(true)
    go.resolve()
    await stopped
    await worker.stop()
    expect(await jobs.result(`${first?.id}`)).toBe(1)
    expect(await jobs.get(`${second?.id}`)).toMatchObject({ state: 'ready', attempt: 0, error: undefined })
    expect((await fixture.dibs.workers.list()).items.some(({ id }) => id === worker.id)).toBe(false)
  })

  it('releases the rest after `drainMs`: another worker gets it at once, and the attempt does not count', async () => {
    const jobs = fixture.dibs.jobs({ slow: { maxAttempts: 1 } })
    const { id } = await jobs.add('slow', null)
    const failures = fixture.listen('dibs:job.failed')
    const inside = deferred<AbortSignal>()
    const worker = await jobs.work({
      slow: async (_, { signal }) => {
        inside.resolve(signal)
        await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
      },
    })
    const signal = await inside.promise
    const other = (await fixture.elsewhere()).jobs({ slow: {} })
    await using _ = await other.work(
      { slow: (_, { attempt }) => attempt },
      { pollMs: viaPgBouncer ? 200 : 60_000 },
    )
    await worker.stop({ drainMs: 0 })
    expect(signal.reason).toBeInstanceOf(WorkerStoppedError)
    // Far less than its lease.
    expect(await jobs.result(id, { waitMs: 10_000 })).toBe(1)
    expect(failures).toEqual([])
    expect(worker.stats).toMatchObject({ released: 1, failed: 0, retried: 0, running: 0 })
  })

  it('releases jobs that were claimed ahead, and notifies other workers', async () => {
    const jobs = fixture.dibs.jobs({ slow: {} })
    await jobs.addMany(Array.from({ length: 40 }, () => ({ name: 'slow' as const, input: null })))
    const go = deferred()
    let runs = 0
    const worker = await jobs.work(
      { slow: () => (++runs > 20 ? go.promise : undefined) },
      { concurrency: 2, prefetch: 10 },
    )
    await until(() => worker.stats.running === 2 && runs >= 22, 'the worker to be full')
    const stopped = worker.stop({ drainMs: 200 })
    const other = (await fixture.elsewhere()).jobs({ slow: {} })
    await using second = await other.work({ slow: () => {} })
    await stopped
    await until(async () => (await fixture.query('select from {schema}.job')).length === 0, 'all jobs to end')
    expect(worker.stats.succeeded + second.stats.succeeded).toBe(40)
    go.resolve()
  })

  it.each([1, 2, 3, 4, 5])('just after the start leaves nothing behind (%i)', async () => {
    const dibs = await fixture.elsewhere()
    const jobs = dibs.jobs({ a: {}, b: {}, c: {} })
    const worker = await jobs.work({ a: () => 1, b: () => 1, c: () => 1 })
    await Promise.race([worker.ready, new Promise((resolve) => setTimeout(resolve, Math.random() * 30))])
    await worker.stop()
    await worker.ready.catch((error) => expect(error).toBeInstanceOf(WorkerStoppedError))
    expect((await dibs.workers.list()).items).toEqual([])
  })

  it('refuses an unknown option, and the worker goes on', async () => {
    const jobs = fixture.dibs.jobs({ pay: {} })
    await using worker = await jobs.work({ pay: () => 'paid' })
    for (const [options, said] of [
      [{ drain: 1 }, /^Unknown option "drain". Did you mean drainMs\? Expected one of: drainMs\.$/],
      [{ drainMs: '5' }, /^`drainMs` must be a whole number of milliseconds from 0 to .*, not "5"\.$/],
      [{ drainMs: -1 }, /^`drainMs` must be .*, not -1\.$/],
      [7, /^`options` must be an object, not a number\.$/],
    ] as const)
      await expect(worker.stop(options as never)).rejects.toThrow(
        expect.objectContaining({ name: 'InvalidInputError', message: expect.stringMatching(said) }),
      )
    expect(worker.stats.isStopping).toBe(false)
    expect(await jobs.result((await jobs.add('pay', null)).id, { waitMs: 10_000 })).toBe('paid')
  })

  it('is part of `await using`, and of `close`', async () => {
    const dibs = await fixture.elsewhere()
    const jobs = dibs.jobs({ slow: {} })
    const { id } = await jobs.add('slow', null)
    const inside = deferred()
    const go = deferred()
    const worker = await jobs.work({
      slow: async () => {
        inside.resolve()
        await go.promise
        return 'done'
      },
    })
    await inside.promise
    const closed = dibs.close()
    await expect(jobs.work({ slow: () => 1 })).rejects.toThrow(ClosedError)
    go.resolve()
    await closed
    expect(worker.stats).toMatchObject({ succeeded: 1, running: 0 })
    expect(await fixture.dibs.jobs({ slow: {} }).result(id)).toBe('done')
    expect((await fixture.dibs.workers.list()).items).toEqual([])
  })

  it('ends while the database is unavailable, and leaves no connection afterwards', async () => {
    await using proxy = await PgProxy.start({ url })
    const dibs = await fixture.elsewhere({ listen: false }, { connectionString: proxy.url })
    const jobs = dibs.jobs({ slow: { leaseMs: 20_000 } })
    const { id } = await jobs.add('slow', null)
    const inside = deferred()
    const worker = await jobs.work({
      slow: async (_, { signal }) => {
        inside.resolve()
        await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
      },
    })
    await inside.promise
    const away = proxy.inject({ kind: 'refuse' })
    proxy.inject({ kind: 'reset' })
    const since = performance.now()
    await worker.stop({ drainMs: 100 })
    expect(performance.now() - since).toBeLessThan(9_000)
    away.end()
    // The worker sends the release when the database is available again.
    await until(
      async () => (await fixture.dibs.jobs({ slow: {} }).get(id))?.state === 'ready',
      'the job to be released',
    )
    await dibs.close()
    await dibs.pool.end()
    await until(() => proxy.connections === 0, 'all connections to be closed', 10_000)
  })

  // Through PgBouncer nobody hears that a job is canceled, so that the heartbeat would come ten seconds later.
  it.skipIf(viaPgBouncer)('sends no heartbeat after it has stopped, though the last one failed', async () => {
    await using proxy = await PgProxy.start({ url })
    const dibs = await fixture.elsewhere({}, { connectionString: proxy.url })
    const jobs = dibs.jobs({ slow: {} })
    const worker = await jobs.work({ slow: async () => {} })
    await worker.ready
    const failures = fixture.listen('dibs:worker.failed')
    const others = fixture.dibs.jobs({ other: {} })
    const inside = deferred()
    const other = await others.work({
      other: async (_, { signal }) => {
        inside.resolve()
        await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
      },
    })
    const { id } = await others.add('other', null)
    await inside.promise
    proxy.inject({
      kind: 'cut',
      when: 'before',
      how: 'black-hole',
      times: 'always',
      statement: '/job_heartbeat/',
    })
    // While the worker waits for the answer to its last statement, it still listens. A canceled job makes it send a heartbeat.
    proxy.inject({ kind: 'latency', delayMs: 500 })
    const stopping = worker.stop()
    await others.cancel(id)
    await Promise.all([stopping, other.stop()])
    await until(() => failures.some(({ what }) => what === 'heartbeat'), 'the heartbeat to fail')
    const heartbeats = () => pendingTimers().filter((line) => line.includes('lease-renewer.js'))
    await until(() => heartbeats().length === 0, 'the heartbeats to end')
    // The next heartbeat would have a timer of a second.
    for (let check = 0; check < 20; check++) {
      await new Promise((resolve) => setTimeout(resolve, 50))
      expect(heartbeats()).toEqual([])
    }
    await dibs.close()
    await dibs.pool.end()
  })
})
