import { inspect } from 'node:util'
import { expect, it } from 'vitest'
import { until, url, viaPgBouncer } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import type { Dibs } from '../dibs.js'
import { JobTimeoutError, PermanentError, WorkerStoppedError } from '../errors.js'
import { PgProxy } from '../testing/index.js'
import type { TransactionalContext } from './job-context.js'

const fixture = openJobs()
const retry = () => 0

const define = (dibs: Dibs, options: object = {}) =>
  dibs.jobs({
    book: { transactional: true, retry, ...options } as { transactional: true; retry: typeof retry },
  })

const write = ({ tx }: TransactionalContext, name: string) =>
  tx.query(`insert into ${fixture.log} (name) values ($1)`, [name])

const stateOf = async (id: string) => (await define(fixture.dibs).get(id))?.state

it('keeps effect and completion in one commit', async () => {
  const jobs = define(fixture.dibs)
  const { id } = await jobs.add('book', { seat: 7 })
  const inside = deferred()
  const go = deferred()
  await using _ = await jobs.work({
    book: async (input, ctx) => {
      await write(ctx, 'booked')
      inside.resolve()
      await go.promise
      return { booked: input }
    },
  })
  await inside.promise
  expect([await fixture.logged(), await stateOf(id)]).toEqual([[], 'running'])
  go.resolve()
  expect(await jobs.result(id, { waitMs: 10_000 })).toEqual({ booked: { seat: 7 } })
  expect(await fixture.logged()).toEqual(['booked'])
})

it('keeps nothing of an attempt that throws', async () => {
  const jobs = define(fixture.dibs)
  const { id } = await jobs.add('book', {})
  await using _ = await jobs.work({
    book: async (_, ctx) => {
      await write(ctx, `attempt ${ctx.attempt}`)
      if (ctx.attempt === 1) throw new Error('not this time')
    },
  })
  await jobs.result(id, { waitMs: 10_000 })
  expect(await fixture.logged()).toEqual(['attempt 2'])
  expect((await jobs.history(id)).items.map(({ outcome }) => outcome)).toEqual(['failed', 'succeeded'])
})

it('records an error with the SQLSTATE of a lost claim that its own statement raises', async () => {
  const jobs = define(fixture.dibs, { maxAttempts: 1 })
  const { id } = await jobs.add('book', {})
  await using _ = await jobs.work({
    book: async (_, { tx }) => {
      await tx.query(`do $$ begin raise exception 'mine' using errcode = 'DIB01'; end $$`)
    },
  })
  await expect(jobs.result(id, { waitMs: 20_000 })).rejects.toThrow('mine')
})

it('runs again after a COMMIT that the server refuses', async () => {
  await fixture.pool.query(
    `create table ${fixture.log}_once (name text, constraint ${fixture.log}_one unique (name) deferrable initially deferred)`,
  )
  await fixture.pool.query(`insert into ${fixture.log}_once values ('taken')`)
  const jobs = define(fixture.dibs)
  const { id } = await jobs.add('book', {})
  {
    await using _ = await jobs.work({
      book: async (_, { tx, attempt }) => {
        await tx.query(`insert into ${fixture.log}_once values ($1)`, [attempt === 1 ? 'taken' : 'free'])
      },
    })
    await jobs.result(id, { waitMs: 10_000 })
  }
  const history = (await jobs.history(id)).items
  expect(history.map(({ outcome }) => outcome)).toEqual(['failed', 'succeeded'])
  expect(history[0]?.error?.message).toContain('_one')
  await fixture.pool.query(`drop table ${fixture.log}_once`)
})

it('keeps nothing of an attempt whose lease is lost, and the effect of the next', async () => {
  const jobs = define(fixture.dibs)
  const other = define(await fixture.elsewhere())
  const { id } = await jobs.add('book', {})
  const inside = deferred()
  const go = deferred()
  const reasons: unknown[] = []
  await using slow = await jobs.work(
    {
      book: async (_, ctx) => {
        ctx.signal.addEventListener('abort', () => reasons.push(ctx.signal.reason))
        await write(ctx, `slow ${ctx.attempt}`)
        inside.resolve()
        await go.promise
      },
    },
    { concurrency: 1 },
  )
  await inside.promise
  await fixture.endLeases()
  await using _ = await other.work({ book: async (_, ctx) => void (await write(ctx, `fast ${ctx.attempt}`)) })
  await other.result(id, { waitMs: 10_000 })
  go.resolve()
  await until(() => slow.stats.lost === 1, 'the slow one to learn of it')
  expect(await fixture.logged()).toEqual(['fast 2'])
  expect((await jobs.history(id)).items.map(({ outcome }) => outcome)).toEqual(['lost', 'succeeded'])
})

it('ends the transaction of a handler that ignores its timeout', async () => {
  const jobs = define(fixture.dibs, { timeoutMs: 300 })
  const { id } = await jobs.add('book', {})
  const go = deferred()
  const reasons: unknown[] = []
  await using worker = await jobs.work({
    book: async (_, ctx) => {
      await write(ctx, `attempt ${ctx.attempt}`)
      if (ctx.attempt > 1) return
      ctx.signal.addEventListener('abort', () => reasons.push(ctx.signal.reason))
      await go.promise
    },
  })
  await jobs.result(id, { waitMs: 10_000 })
  go.resolve()
  expect(reasons).toEqual([expect.any(JobTimeoutError)])
  expect(await fixture.logged()).toEqual(['attempt 2'])
  expect(worker.stats).toMatchObject({ succeeded: 1, retried: 1 })
})

it('runs more handlers than the pool has clients, and stores their progress', async () => {
  const dibs = await fixture.elsewhere({}, { max: 2 })
  const jobs = define(dibs, { maxAttempts: 1 })
  const ids = (
    await jobs.addMany(Array.from({ length: 6 }, () => ({ name: 'book', input: {} }) as const))
  ).map(({ id }) => id)
  const began: string[] = []
  const go = deferred()
  await using worker = await jobs.work(
    {
      book: async (_, ctx) => {
        began.push(ctx.id)
        await write(ctx, 'booked')
        await ctx.progress({ half: true })
        if (began.length <= 2) await go.promise
      },
    },
    { concurrency: 6 },
  )
  await until(
    async () => {
      const rows = await fixture.query(`select from {schema}.job where progress is not null`)
      return rows.length === 2
    },
    'the first two to say how far they are',
    4_000,
  )
  // Longer than anybody waits for a client of the pool.
  const since = performance.now()
  await until(() => performance.now() - since > 5_500, 'the others to wait for long')
  expect(began.length).toBe(2)
  go.resolve()
  for (const id of ids) await jobs.result(id, { waitMs: 10_000 })
  expect((await fixture.logged()).length).toBe(6)
  expect(worker.stats).toMatchObject({ started: 6, succeeded: 6, retried: 0, failed: 0 })
})

it('releases jobs that are not committed when the worker stops', async () => {
  const jobs = define(fixture.dibs)
  const { id } = await jobs.add('book', {})
  const inside = deferred<AbortSignal>()
  await using worker = await jobs.work({
    book: async (_, ctx) => {
      await write(ctx, 'booked')
      inside.resolve(ctx.signal)
      await new Promise(() => {})
    },
  })
  const signal = await inside.promise
  await worker.stop({ drainMs: 50 })
  expect(signal.reason).toBeInstanceOf(WorkerStoppedError)
  expect(await jobs.get(id)).toMatchObject({ state: 'ready', attempt: 0, error: undefined })
  expect(await fixture.logged()).toEqual([])
})

it('is dead with its error when that is permanent, and nothing is kept', async () => {
  const jobs = define(fixture.dibs)
  const { id } = await jobs.add('book', {})
  await using _ = await jobs.work({
    book: async (_, ctx) => {
      await write(ctx, 'booked')
      throw new PermanentError('there is no such seat')
    },
  })
  await expect(jobs.result(id, { waitMs: 10_000 })).rejects.toThrow('there is no such seat')
  expect(await fixture.logged()).toEqual([])
})

it.runIf(!viaPgBouncer).each([
  ['before', 2],
  ['after', 1],
] as const)('has one effect if the connection is lost %s COMMIT', async (when, runs) => {
  await using proxy = await PgProxy.start({ url })
  const dibs = await fixture.elsewhere({}, { connectionString: proxy.url })
  const jobs = define(dibs)
  const { id } = await jobs.add('book', {})
  let begun = 0
  await using worker = await jobs.work({
    book: async (_, ctx) => {
      await write(ctx, 'booked')
      if (++begun === 1) proxy.inject({ kind: 'cut', when, statement: '/^commit$/' })
    },
  })
  await until(async () => (await stateOf(id)) === 'succeeded', 'the job to succeed', 20_000)
  await until(
    async () => (await dibs.workers.list()).items.every(({ running }) => running.length === 0),
    'no leftovers',
  )
  expect([begun, await fixture.logged()]).toEqual([runs, ['booked']])
  // Nothing is renewed any more of what is over.
  await until(() => worker.stats.succeeded === 1, 'the worker to know')
  expect(worker.stats).toMatchObject({ started: runs, succeeded: 1, lost: 0 })
})

it('reports a fence that is lost by the time it completes', async () => {
  const events = fixture.listen('dibs:job.lost')
  const jobs = define(fixture.dibs)
  const { id } = await jobs.add('book', {})
  let begun = 0
  await using worker = await jobs.work({
    book: async (_, ctx) => {
      await write(ctx, `attempt ${ctx.attempt}`)
      if (++begun > 1) return
      // As if it had been recovered, and nobody had told us yet.
      await fixture.endLeases()
      await until(async () => (await stateOf(id)) !== 'running' || begun > 1, 'its recovery')
    },
  })
  await jobs.result(id, { waitMs: 10_000 })
  expect(await fixture.logged()).toEqual(['attempt 2'])
  await until(() => worker.stats.running === 0, 'all to end')
  expect(events.every(({ reason }) => reason === 'stolen')).toBe(true)
})

it('has no `tx` otherwise: reading it throws, copying or logging the context does not', async () => {
  const jobs = fixture.dibs.jobs({ book: { maxAttempts: 1 } })
  const { id } = await jobs.add('book', null)
  const said: unknown[] = []
  await using _ = await jobs.work({
    book: (_, ctx) => {
      said.push({ ...ctx }, inspect(ctx).includes('tx'), JSON.stringify(ctx))
      const { tx } = ctx as TransactionalContext
      return tx.query('select 1').then(() => {})
    },
  })
  const error = await jobs.result(id, { waitMs: 10_000 }).catch((error) => error)
  expect(error).toMatchObject({
    message: '`tx` is there only in a handler with `transactional: true`.',
    cause: { name: 'InvalidInputError' },
  })
  expect(said).toEqual([{}, false, '{}'])
})
