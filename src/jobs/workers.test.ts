import { hostname } from 'node:os'
import { describe, expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { BusyError, InvalidInputError } from '../errors.js'

const fixture = openJobs()
const define = (dibs = fixture.dibs) => dibs.jobs({ email: { queue: 'mail' }, fax: { queue: 'paper' } })
const emails = (length: number) => Array.from({ length }, (_, input) => ({ name: 'email' as const, input }))

describe('workers.list', () => {
  it('has workers with their running jobs, and whether they are alive', async () => {
    const jobs = define()
    const dibs = await fixture.elsewhere()
    const [first, second] = await jobs.addMany(emails(2))
    const go = deferred()
    await using worker = await define(dibs).work(
      { email: () => go.promise, fax: () => 1 },
      { concurrency: 2 },
    )
    await until(() => worker.stats.running === 2, 'both to run')
    const busy = await jobs.result(first?.id ?? '').catch((error) => error)
    expect(busy).toBeInstanceOf(BusyError)
    expect(busy).toMatchObject({ holder: worker.id, leaseUntil: expect.any(Date) })
    const { items, nextCursor } = await fixture.dibs.workers.list()
    expect([items.length, nextCursor]).toEqual([1, undefined])
    expect(items[0]).toEqual({
      ...{ id: worker.id, host: hostname(), pid: process.pid, concurrency: 2, isAlive: true },
      ...{ startedAt: expect.any(Date), seenAt: expect.any(Date) },
      lanes: [
        { queue: 'mail', name: 'email', version: 1 },
        { queue: 'paper', name: 'fax', version: 1 },
      ],
      running: [first?.id, second?.id],
    })
    await fixture.query(`update {schema}.worker set seen_at = clock_timestamp() - interval '31 s'`)
    expect((await fixture.dibs.workers.list()).items[0]).toMatchObject({ id: worker.id, isAlive: false })
    go.resolve()
    await until(
      async () => (await fixture.dibs.workers.list()).items[0]?.running.length === 0,
      'both to be done',
    )
  })

  it('has a worker again that was removed by mistake', async () => {
    const dibs = await fixture.elsewhere()
    const jobs = dibs.jobs({ short: { leaseMs: 4_000 } })
    const { id } = await jobs.add('short', null)
    const go = deferred()
    await using worker = await jobs.work({ short: () => go.promise })
    await until(() => worker.stats.running === 1, 'it to run')
    await fixture.query('delete from {schema}.worker')
    await until(
      async () => (await fixture.dibs.workers.list()).items.some(({ id }) => id === worker.id),
      'it to be there again',
    )
    go.resolve()
    await jobs.result(id, { waitMs: 10_000 })
  })

  /** Workers that nobody runs. */
  const enter = (count: number, seconds = 0) =>
    fixture.query(`insert into {schema}.worker (id, host, pid, lanes, concurrency, started_at, seen_at)
      select 'w' || lpad(n::text, 2, '0'), 'h', n, '{}', 1, timestamptz '2026-01-01' + interval '1 s' * (n / 3),
        clock_timestamp() - interval '${seconds} s' from generate_series(1, ${count}) n`)

  it('is ordered by age, a page at a time', async () => {
    await fixture.query('delete from {schema}.worker')
    await enter(10)
    const found: string[] = []
    let cursor: string | undefined
    do {
      const page = await fixture.dibs.workers.list({}, { limit: 4, cursor })
      found.push(...page.items.map(({ id }) => id))
      cursor = page.nextCursor
    } while (cursor !== undefined)
    expect(found).toEqual(Array.from({ length: 10 }, (_, n) => `w${String(n + 1).padStart(2, '0')}`))
    await fixture.query('delete from {schema}.worker')
  })

  it('can be limited to live workers, or to the others', async () => {
    await fixture.query('delete from {schema}.worker')
    await enter(2, 31)
    await fixture.query(`update {schema}.worker set seen_at = clock_timestamp() where id = 'w02'`)
    const idsOf = async (isAlive?: boolean) =>
      (await fixture.dibs.workers.list({ isAlive })).items.map(({ id }) => id)
    expect(await idsOf(true)).toEqual(['w02'])
    expect(await idsOf(false)).toEqual(['w01'])
    expect(await idsOf()).toEqual(['w01', 'w02'])
    await fixture.query('delete from {schema}.worker')
  })

  it.each([
    [() => fixture.dibs.workers.list({ isAlive: 'yes' as never }), /`isAlive` must be true or false/],
    [() => fixture.dibs.workers.list({ limit: 1 } as never), /Unknown option "limit"/],
    [() => fixture.dibs.workers.list({}, { limit: 1_001 }), /`limit` must be a whole number from 1 to 1000/],
    [() => fixture.dibs.workers.list({}, { cursor: '' }), /`cursor` must be `nextCursor`/],
  ])('refuses what is wrong (%#)', async (fn, said) => {
    await expect(fn()).rejects.toThrow(InvalidInputError)
    await expect(fn()).rejects.toThrow(said)
  })
})
