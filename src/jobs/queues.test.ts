import { describe, expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { InvalidInputError } from '../errors.js'
import type { Statement } from '../postgres/statement.js'
import { listDead, listLanes, MAX_HELD } from './inspection-queries.js'

const fixture = openJobs()
const define = (dibs = fixture.dibs) => dibs.jobs({ email: { queue: 'mail' }, fax: { queue: 'paper' } })
const emails = (length: number) => Array.from({ length }, (_, input) => ({ name: 'email' as const, input }))

describe('pause', () => {
  it('is strict: no job of the queue starts afterwards, and running jobs go on', async () => {
    const jobs = define()
    const other = define(await fixture.elsewhere())
    await jobs.addMany(emails(600))
    const began: number[] = []
    const handlers = { email: () => void began.push(performance.now()), fax: () => 'sent' }
    await using _one = await jobs.work(handlers, { concurrency: 4, prefetch: 0 })
    await using _two = await other.work(handlers, { concurrency: 4, prefetch: 0 })
    await until(() => began.length > 50, 'some to be run')
    await fixture.dibs.queues.pause('mail', { pausedBy: 'ann' })
    // Jobs claimed before the pause have started by now, or start at this moment.
    await until(
      async () => (await fixture.query(`select from {schema}.job where state = 'running'`)).length === 0,
      'those that run to end',
    )
    const { length } = began
    expect(length).toBeLessThan(600)
    // Other queues go on, and time passes by that.
    for (let n = 0; n < 5; n++)
      expect(await jobs.result((await jobs.add('fax', n)).id, { waitMs: 10_000 })).toBe('sent')
    const { id } = await jobs.add('email', 'while it is paused')
    expect(began.length).toBe(length)
    expect(await fixture.dibs.queues.resume('mail')).toEqual({ ok: true })
    await until(() => began.length === 601, 'the rest to be run')
    await jobs.result(id, { waitMs: 10_000 })
  })

  it('does not wait for running jobs, and may be repeated', async () => {
    const jobs = define()
    await jobs.addMany(emails(3))
    const go = deferred()
    await using worker = await jobs.work({ email: () => go.promise }, { concurrency: 1 })
    await until(() => worker.stats.running === 1, 'one to run')
    const { queues } = fixture.dibs
    await queues.pause('mail', { pausedBy: 'ann' })
    await queues.pause('mail', { pausedBy: 'bob' })
    const [mail] = (await queues.list({ prefix: 'mail' })).items
    expect(mail).toMatchObject({ pausedAt: expect.any(Date), pausedBy: 'ann' })
    go.resolve()
    await until(() => worker.stats.succeeded === 1, 'that one to be done')
    expect(await queues.resume('mail')).toEqual({ ok: true })
    expect(await queues.resume('mail')).toEqual({ ok: false })
    expect(await queues.resume('nobody knows it')).toEqual({ ok: false })
    await until(() => worker.stats.succeeded === 3, 'the others to be done')
  })

  it('works for queues that have no jobs yet', async () => {
    await fixture.dibs.queues.pause('fresh')
    const jobs = fixture.dibs.jobs({ a: { queue: 'fresh' } })
    const { id } = await jobs.add('a', null)
    await using worker = await jobs.work({ a: () => 'done' }, { pollMs: 50 })
    await worker.ready
    const other = define()
    await using _ = await other.work({ fax: () => 'sent' })
    await other.result((await other.add('fax', null)).id, { waitMs: 10_000 })
    expect((await jobs.get(id))?.state).toBe('ready')
    await fixture.dibs.queues.resume('fresh')
    expect(await jobs.result(id, { waitMs: 10_000 })).toBe('done')
  })

  it.each([
    [() => fixture.dibs.queues.pause(''), /`queue` must be a string of 1 to 200 characters/],
    [() => fixture.dibs.queues.pause(7 as never), /`queue`.* not a number/],
    [() => fixture.dibs.queues.pause('a\0'), /`queue` must not hold a NUL/],
    [() => fixture.dibs.queues.pause('a', { pausedBy: 7 as never }), /`pausedBy` must be a string/],
    [() => fixture.dibs.queues.pause('a', { pausedBy: '\0' }), /`pausedBy`/],
    [() => fixture.dibs.queues.pause('a', { pausedBy: 'x'.repeat(100_000) }), /`pausedBy`/],
    [() => fixture.dibs.queues.pause('a', { reason: 'x' } as never), /Unknown option "reason"/],
    [() => fixture.dibs.queues.resume(''), /`queue`/],
  ])('refuses what is wrong (%#)', async (fn, said) => {
    const error = await fn().catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.message).toMatch(said)
  })
})

describe('list', () => {
  it('counts the jobs of each state in each queue, up to a thousand', async () => {
    const jobs = define()
    await jobs.addMany(emails(1_200))
    await jobs.addMany(emails(1_001).map((job) => ({ ...job, delayMs: 3_600_000 })))
    await jobs.add('fax', 0, { delayMs: 3_600_000 })
    await jobs.addMany([1, 2, 3].map((input) => ({ name: 'fax', input })))
    await fixture.query(
      `update {schema}.job set state = 'dead', indexed_in = 'dead', error = '{}' where id = (select max(id) from {schema}.job)`,
    )
    const go = deferred()
    await using worker = await jobs.work({ fax: () => go.promise }, { concurrency: 1, prefetch: 0 })
    await until(() => worker.stats.running === 1, 'one to run')
    const { items } = await fixture.dibs.queues.list()
    const none = { count: 0, isMore: false }
    const one = { count: 1, isMore: false }
    const many = { count: 1_000, isMore: true }
    expect(items.filter(({ name }) => ['mail', 'paper'].includes(name))).toEqual([
      {
        ...{ name: 'mail', pausedAt: undefined, pausedBy: undefined },
        lanes: [
          {
            ...{ name: 'email', version: 1, ready: many, scheduled: many, running: none, dead: none },
            nextCreatedAt: expect.any(Date),
          },
        ],
      },
      {
        ...{ name: 'paper', pausedAt: undefined, pausedBy: undefined },
        lanes: [
          {
            ...{ name: 'fax', version: 1, ready: one, scheduled: one, running: one, dead: one },
            nextCreatedAt: expect.any(Date),
          },
        ],
      },
    ])
    go.resolve()
  })

  it('counts running jobs up to a thousand', async () => {
    const jobs = define()
    await jobs.addMany(emails(1_001))
    // As a claim of all of them leaves them.
    const later = "clock_timestamp() + interval '1 h'"
    await fixture.query(`update {schema}.job set state = 'running', indexed_in = 'none', worker = 'w', fence = 1, attempt = 1,
      started_at = clock_timestamp(), lease_until = ${later}`)
    await fixture.query(`insert into {schema}.job_held (worker, check_at, ids)
      select 'w', ${later}, array_agg(id) from {schema}.job group by id % 10`)
    const countIn = async () =>
      (await fixture.dibs.queues.list({ prefix: 'mail' })).items[0]?.lanes.map(({ running }) => running)
    expect(await countIn()).toEqual([{ count: 1_000, isMore: true }])
    // More claims than one list reads: there may be more running jobs.
    await fixture.query('delete from {schema}.job')
    await fixture.query(`insert into {schema}.job_held (worker, check_at, ids)
      select 'w', ${later}, array_agg(n) from generate_series(1, ${MAX_HELD}) n`)
    expect(await countIn()).toEqual([{ count: 0, isMore: true }])
    await fixture.query('delete from {schema}.job_held')
    expect(await countIn()).toEqual([{ count: 0, isMore: false }])
  })

  it('has paused queues that have no jobs, until they are resumed', async () => {
    const { queues } = fixture.dibs
    const none = { items: [], nextCursor: undefined }
    expect(await queues.list({ prefix: 'unused' })).toEqual(none)
    await queues.pause('unused', { pausedBy: 'ann' })
    expect(await queues.list({ prefix: 'unused' })).toEqual({
      items: [{ name: 'unused', pausedAt: expect.any(Date), pausedBy: 'ann', lanes: [] }],
      nextCursor: undefined,
    })
    await queues.resume('unused')
    expect(await queues.list({ prefix: 'unused' })).toEqual(none)
  })

  it('is ordered by name, a page at a time', async () => {
    const { dibs } = fixture
    const names = ['page', 'page 1', 'page 2', 'page_3', 'pagé', 'page 🙂']
    const jobs = dibs.jobs({ a: { queue: 'page' }, b: { queue: 'page' }, c: { queue: 'page_3' } })
    await jobs.addMany([
      { name: 'a', input: 1 },
      { name: 'b', input: 1 },
      { name: 'c', input: 1 },
    ])
    for (const name of names) await dibs.queues.pause(name)
    await dibs.queues.pause('other')
    const found: string[] = []
    let cursor: string | undefined
    do {
      const page = await dibs.queues.list({ prefix: 'pag' }, { limit: 4, cursor })
      found.push(...page.items.map(({ name }) => name))
      cursor = page.nextCursor
    } while (cursor !== undefined)
    expect(found).toEqual(
      names.toSorted((one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other))),
    )
    const { items } = await dibs.queues.list({ prefix: 'page_' })
    expect(items.map(({ name }) => name)).toEqual(['page_3'])
    const [page] = (await dibs.queues.list({ prefix: 'page' }, { limit: 1 })).items
    expect(page?.lanes.map(({ name }) => name)).toEqual(['a', 'b'])
  })

  it.each([
    [() => fixture.dibs.queues.list({ prefix: 7 as never }), /`prefix` must be a string, not a number/],
    [() => fixture.dibs.queues.list({ prefix: '\0' }), /`prefix` must not hold a NUL/],
    [() => fixture.dibs.queues.list({ limit: 1 } as never), /Unknown option "limit"/],
    [() => fixture.dibs.queues.list({}, { limit: 0 }), /`limit` must be a whole number from 1 to 1000/],
    [() => fixture.dibs.queues.list({}, { cursor: 'mail' }), /`cursor` must be `nextCursor`/],
  ])('refuses what is wrong (%#)', async (fn, said) => {
    await expect(fn()).rejects.toThrow(InvalidInputError)
    await expect(fn()).rejects.toThrow(said)
  })
})

it('reads few rows, however many jobs are dead or scheduled', async () => {
  const jobs = define()
  await jobs.addMany([...emails(1), { name: 'fax', input: 1 }])
  await fixture.query(`with of as (select id from {schema}.lane where name = 'email')
    insert into {schema}.job (created_at, run_at, lane, priority, max_attempts, keep_days, state, input, error)
    select now(), now(), of.id, 0, 1, 7, 'ready', '{}', '{}' from of, generate_series(1, 50000)`)
  await fixture.query(`update {schema}.job set state = 'dead', indexed_in = 'dead' where error is not null`)
  await fixture.query(`with of as (select id from {schema}.lane where name = 'email')
    insert into {schema}.job (created_at, run_at, lane, priority, max_attempts, keep_days, state, indexed_in, input)
    select now(), now() + interval '1 day', of.id, 0, 1, 7, 'scheduled', 'scheduled', '{}' from of, generate_series(1, 50000)`)
  await fixture.query('analyze {schema}.job')
  /** How many jobs it has read. */
  const readBy = async ({ text }: Statement, values: readonly unknown[]): Promise<number> => {
    const plans = await fixture.query(`explain (analyze, format json) ${text}`, [...values])
    return rowsOf((plans as { 'QUERY PLAN': [{ Plan: PlanNode }] }[])[0]?.['QUERY PLAN'][0].Plan as PlanNode)
  }
  expect(await readBy(listLanes, ['', '', '101'])).toBeLessThan(3_000)
  for (const name of ['email', 'fax'])
    expect(await readBy(listDead, ['{mail,paper}', `{${name},${name}}`, '0', '0', null, '100'])).toBeLessThan(
      300,
    )
})

interface PlanNode {
  readonly 'Relation Name'?: string
  readonly 'Actual Rows': number
  readonly 'Actual Loops': number
  readonly 'Rows Removed by Filter'?: number
  readonly Plans?: readonly PlanNode[]
}

function rowsOf(node: PlanNode): number {
  const own = (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)) * node['Actual Loops']
  const below = (node.Plans ?? []).reduce((sum, one) => sum + rowsOf(one), 0)
  return below + (node['Relation Name'] === 'job' ? own : 0)
}
