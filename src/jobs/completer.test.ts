import { expect, it } from 'vitest'
import { until, viaPgBouncer } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openJobs } from '../../test/jobs/open-jobs.js'

const fixture = openJobs()

/** Jobs that all end at the same moment, so that they are recorded together. */
async function endTogether(dibs = fixture.dibs, length = 20) {
  const jobs = dibs.jobs({ pay: { retry: () => 0 } })
  const added = await jobs.addMany(Array.from({ length }, (_, input) => ({ name: 'pay' as const, input })))
  const ids = added.map(({ id }) => id)
  const go = deferred()
  const signals = new Map<string, AbortSignal>()
  const worker = await jobs.work(
    {
      pay: async (input, { id, signal }) => {
        signals.set(id, signal)
        await go.promise
        return input
      },
    },
    { concurrency: length, prefetch: 0 },
  )
  await until(() => worker.stats.running === length, 'all to run')
  return { jobs: fixture.dibs.jobs({ pay: {} }), ids, worker, go, signals }
}

/** Another session that holds the lock of a job's row. */
async function holdRow(id: string) {
  const client = await fixture.pool.connect()
  await client.query('begin')
  await client.query(`select from ${fixture.schema.name}.job where id = $1 for update`, [id])
  return {
    async [Symbol.asyncDispose]() {
      await client.query('commit')
      client.release()
    },
  }
}

async function refuseHistoryOf(id: string) {
  await fixture.query(`
    create or replace function {schema}.refuse() returns trigger language plpgsql as $$
    begin raise exception 'there is no room for it' using errcode = 'check_violation'; end $$;
    create trigger refuse before insert on {schema}.job_history for each row
      when (new.id = ${id} and new.outcome = 'succeeded') execute function {schema}.refuse()`)
  return {
    [Symbol.asyncDispose]: async () =>
      void (await fixture.query('drop trigger refuse on {schema}.job_history')),
  }
}

it('does not block a batch on a locked row: that outcome comes later', async () => {
  const { jobs, ids, worker, go } = await endTogether()
  await using _worker = worker
  {
    await using _row = await holdRow(`${ids[3]}`)
    go.resolve()
    for (const id of ids.filter((id) => id !== ids[3])) await jobs.result(id, { waitMs: 5_000 })
    expect((await jobs.get(`${ids[3]}`))?.state).toBe('running')
  }
  expect(await jobs.result(`${ids[3]}`, { waitMs: 10_000 })).toBe(3)
  // The row is gone before the answer comes.
  await until(() => worker.stats.succeeded === 20, 'the worker to hear of it')
  expect(worker.stats.lost).toBe(0)
})

it('isolates an outcome that the server refuses: that job is dead, and the others are done', async () => {
  const { jobs, ids, worker, go } = await endTogether()
  await using _worker = worker
  const told = fixture.listen('dibs:job.not-recorded')
  await using _refusal = await refuseHistoryOf(`${ids[3]}`)
  go.resolve()
  for (const [n, id] of ids.entries()) if (n !== 3) expect(await jobs.result(id, { waitMs: 5_000 })).toBe(n)
  await expect(jobs.result(`${ids[3]}`, { waitMs: 5_000 })).rejects.toThrow(
    /result could not be stored: .*there is no room for it/,
  )
  expect(told.length).toBe(1)
  await until(() => worker.stats.succeeded === 19 && worker.stats.failed === 1, 'the worker to hear of it')
})

it('isolates it even while another row is locked', async () => {
  const { jobs, ids, worker, go } = await endTogether()
  await using _worker = worker
  await using _refusal = await refuseHistoryOf(`${ids[0]}`)
  {
    await using _row = await holdRow(`${ids[1]}`)
    go.resolve()
    for (const id of ids.slice(2)) await jobs.result(id, { waitMs: 5_000 })
    // And what ends later.
    const { id } = await jobs.add('pay', 'later')
    expect(await jobs.result(id, { waitMs: 5_000 })).toBe('later')
  }
  expect(await jobs.result(`${ids[1]}`, { waitMs: 10_000 })).toBe(1)
})

it('needs no client of the pool for a row that was locked', async () => {
  const dibs = await fixture.elsewhere({}, { max: 2 })
  const { jobs, ids, worker, go } = await endTogether(dibs, 3)
  await using _worker = worker
  const clients = [await dibs.pool.connect(), await dibs.pool.connect()]
  {
    await using _row = await holdRow(`${ids[1]}`)
    go.resolve()
    await jobs.result(`${ids[0]}`, { waitMs: 5_000 })
  }
  expect(await jobs.result(`${ids[1]}`, { waitMs: 5_000 })).toBe(1)
  for (const client of clients) client.release()
})

it('distinguishes two attempts of one job that end at the same moment', async () => {
  const jobs = fixture.dibs.jobs({ pay: {} })
  const go = deferred()
  const begun: number[] = []
  const handler = async (_: unknown, { attempt }: { attempt: number }) => {
    begun.push(attempt)
    await go.promise
    return attempt
  }
  await using worker = await jobs.work({ pay: handler }, { concurrency: 2, pollMs: 100 })
  const { id } = await jobs.add('pay', null)
  await until(() => begun.length === 1, 'the first')
  await fixture.endLeases()
  await until(() => begun.length === 2, 'the second, before the first has heard that it has lost the job')
  go.resolve()
  await until(() => worker.stats.succeeded + worker.stats.lost === 2, 'both to be told')
  expect(worker.stats).toMatchObject({ succeeded: 1, lost: 1 })
  expect(await jobs.result(id)).toBe(2)
  expect((await jobs.history(id)).items.map(({ outcome }) => outcome)).toEqual(['lost', 'succeeded'])
})

it.runIf(!viaPgBouncer)('learns of a cancellation however many jobs run', async () => {
  const length = 2_200
  const { jobs, ids, worker, go, signals } = await endTogether(fixture.dibs, length)
  await using _worker = worker
  const last = `${ids[length - 1]}`
  await jobs.cancel(last)
  // Before any heartbeat of its own is due.
  await until(() => signals.get(last)?.aborted, 'the last one to be told', 4_000)
  go.resolve()
  await until(() => worker.stats.running === 0 && worker.stats.succeeded === length, 'all to end')
})
