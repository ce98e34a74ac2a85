import { hostname } from 'node:os'
import { describe, expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { InvalidInputError } from '../errors.js'
import type { Statement } from '../postgres/statement.js'
import { listDead, listLanes } from './record-statements.js'

const fixture = openJobs()
const define = (dibs = fixture.dibs) => dibs.jobs({ email: { queue: 'mail' }, fax: { queue: 'paper' } })
const emails = (length: number) => Array.from({ length }, (_, input) => ({ name: 'email' as const, input }))

describe('pause', () => {
  it('is strict: no job of the queue is begun once it is there, and those that run go on', async () => {
    const jobs = define()
    const other = define(await fixture.elsewhere())
    await jobs.addMany(emails(600))
    const began: number[] = []
    const handlers = { email: () => void began.push(performance.now()), fax: () => 'sent' }
    await using _one = await jobs.work(handlers, { concurrency: 4, prefetch: 0 })
    await using _two = await other.work(handlers, { concurrency: 4, prefetch: 0 })
    await until(() => began.length > 50, 'some to be run')
    await fixture.dibs.queues.pause('mail', { by: 'ann' })
    // Those that were claimed before are begun by now, or in this very moment.
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
    expect(await fixture.dibs.queues.resume('mail')).toBe(true)
    await until(() => began.length === 601, 'the rest to be run')
    await jobs.result(id, { waitMs: 10_000 })
  })

  it('does not wait for what runs, and may be said twice', async () => {
    const jobs = define()
    await jobs.addMany(emails(3))
    const go = deferred()
    await using worker = await jobs.work({ email: () => go.promise }, { concurrency: 1 })
    await until(() => worker.stats.running === 1, 'one to run')
    const { queues } = fixture.dibs
    await queues.pause('mail', { by: 'ann' })
    await queues.pause('mail', { by: 'bob' })
    const [mail] = (await queues.list()).filter(({ queue }) => queue === 'mail')
    expect(mail).toMatchObject({ pausedAt: expect.any(Date), pausedBy: 'ann' })
    go.resolve()
    await until(() => worker.stats.succeeded === 1, 'that one to be done')
    expect(await queues.resume('mail')).toBe(true)
    expect(await queues.resume('mail')).toBe(false)
    expect(await queues.resume('nobody knows it')).toBe(false)
    await until(() => worker.stats.succeeded === 3, 'the others to be done')
  })

  it('concerns queues that nobody has used yet', async () => {
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
    [() => fixture.dibs.queues.pause(''), /`queue` must be a text of 1 to 200 characters/],
    [() => fixture.dibs.queues.pause(7 as never), /`queue`.* not a number/],
    [() => fixture.dibs.queues.pause('a\0'), /`queue` must not hold a NUL/],
    [() => fixture.dibs.queues.pause('a', { by: 7 as never }), /`by` must be a text/],
    [() => fixture.dibs.queues.pause('a', { by: '\0' }), /`by`/],
    [() => fixture.dibs.queues.pause('a', { by: 'x'.repeat(100_000) }), /`by`/],
    [() => fixture.dibs.queues.pause('a', { reason: 'x' } as never), /Unknown option "reason"/],
    [() => fixture.dibs.queues.resume(''), /`queue`/],
  ])('refuses what is wrong (%#)', async (fn, said) => {
    const error = await fn().catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.message).toMatch(said)
  })
})

describe('list', () => {
  it('counts what there is in each queue, to a thousand', async () => {
    const jobs = define()
    await jobs.addMany(emails(1_200))
    await jobs.addMany([1, 2, 3].map((input) => ({ name: 'fax', input })))
    await fixture.query(
      `update {schema}.job set state = 'dead', listed = 'dead', error = '{}' where id = (select max(id) from {schema}.job)`,
    )
    const go = deferred()
    await using worker = await jobs.work({ fax: () => go.promise }, { concurrency: 1, prefetch: 0 })
    await until(() => worker.stats.running === 1, 'one to run')
    const queues = (await fixture.dibs.queues.list()).filter(({ queue }) => ['mail', 'paper'].includes(queue))
    const none = { count: 0, isMore: false }
    expect(queues).toEqual([
      {
        ...{ queue: 'mail', pausedAt: undefined, pausedBy: undefined },
        lanes: [
          {
            ...{ name: 'email', version: 1, ready: { count: 1_000, isMore: true }, running: 0, dead: none },
            nextCreatedAt: expect.any(Date),
          },
        ],
      },
      {
        ...{ queue: 'paper', pausedAt: undefined, pausedBy: undefined },
        lanes: [
          {
            ...{ name: 'fax', version: 1, ready: { count: 1, isMore: false }, running: 1 },
            ...{ dead: { count: 1, isMore: false }, nextCreatedAt: expect.any(Date) },
          },
        ],
      },
    ])
    go.resolve()
  })
})

it('however many are dead, those who look read a page', async () => {
  const jobs = define()
  await jobs.addMany([...emails(1), { name: 'fax', input: 1 }])
  await fixture.query(`with of as (select id from {schema}.lane where name = 'email')
    insert into {schema}.job (created_at, run_at, lane, priority, max_attempts, keep_days, state, input, error)
    select now(), now(), of.id, 0, 1, 7, 'ready', '{}', '{}' from of, generate_series(1, 50000)`)
  await fixture.query(`update {schema}.job set state = 'dead', listed = 'dead' where error is not null`)
  await fixture.query('analyze {schema}.job')
  /** How many jobs it has read. */
  const readBy = async ({ text }: Statement, values: readonly unknown[]): Promise<number> => {
    const plans = await fixture.query(`explain (analyze, format json) ${text}`, [...values])
    return rowsOf((plans as { 'QUERY PLAN': [{ Plan: PlanNode }] }[])[0]?.['QUERY PLAN'][0].Plan as PlanNode)
  }
  expect(await readBy(listLanes, [])).toBeLessThan(2_000)
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

describe('workers', () => {
  it('are listed with what they run, as long as they are heard of', async () => {
    const jobs = define()
    const dibs = await fixture.elsewhere()
    const [first, second] = await jobs.addMany(emails(2))
    const go = deferred()
    await using worker = await define(dibs).work(
      { email: () => go.promise, fax: () => 1 },
      { concurrency: 2 },
    )
    await until(() => worker.stats.running === 2, 'both to run')
    const [record, ...others] = await fixture.dibs.workers()
    expect(others).toEqual([])
    expect(record).toEqual({
      ...{ id: worker.id, host: hostname(), pid: process.pid, concurrency: 2, isAlive: true },
      ...{ startedAt: expect.any(Date), seenAt: expect.any(Date) },
      lanes: [
        { queue: 'mail', name: 'email', version: 1 },
        { queue: 'paper', name: 'fax', version: 1 },
      ],
      running: [first?.id, second?.id],
    })
    await fixture.query(`update {schema}.worker set seen_at = clock_timestamp() - interval '31 s'`)
    expect((await fixture.dibs.workers())[0]).toMatchObject({ id: worker.id, isAlive: false })
    go.resolve()
    await until(async () => (await fixture.dibs.workers())[0]?.running.length === 0, 'both to be done')
  })

  it('that were forgotten enter again', async () => {
    const dibs = await fixture.elsewhere()
    const jobs = dibs.jobs({ short: { leaseMs: 4_000 } })
    const { id } = await jobs.add('short', null)
    const go = deferred()
    await using worker = await jobs.work({ short: () => go.promise })
    await until(() => worker.stats.running === 1, 'it to run')
    await fixture.query('delete from {schema}.worker')
    await until(
      async () => (await fixture.dibs.workers()).some(({ id }) => id === worker.id),
      'it to be there again',
    )
    go.resolve()
    await jobs.result(id, { waitMs: 10_000 })
  })
})
