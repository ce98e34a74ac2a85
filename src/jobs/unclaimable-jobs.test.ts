import { expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'

const fixture = openJobs()

/** Five processes with four workers each. */
async function twentyWorkers(handler: (input: unknown) => unknown, pollMs?: number) {
  const workers = []
  for (let n = 0; n < 5; n++) {
    const jobs = (await fixture.elsewhere({}, { max: 2 })).jobs({ pay: {} })
    for (let m = 0; m < 4; m++) workers.push(jobs.work({ pay: handler }, { concurrency: 2, pollMs }))
  }
  const all = await Promise.all(workers)
  return Object.assign(all, {
    [Symbol.asyncDispose]: async () => void (await Promise.all(all.map((worker) => worker.stop()))),
  })
}

/** The oldest of eleven jobs can never be run, as of now. `isFrozen`: nothing about it can be changed at all. */
async function addEleven(isFrozen: boolean): Promise<string[]> {
  const jobs = fixture.dibs.jobs({ pay: {} })
  const ids = (
    await jobs.addMany(Array.from({ length: 11 }, (_, input) => ({ name: 'pay' as const, input })))
  ).map(({ id }) => id)
  await fixture.query(`
    create sequence if not exists {schema}.refusals;
    select setval('{schema}.refusals', 1, false);
    create or replace function {schema}.refuse() returns trigger language plpgsql as $$
    begin
      perform nextval('{schema}.refusals');
      raise exception 'duplicate key value violates unique constraint "one_payment"' using errcode = 'unique_violation';
    end $$;
    create trigger refuse before update on {schema}.job for each row
      when (old.id = ${ids[0]} ${isFrozen ? '' : "and new.state = 'running'"}) execute function {schema}.refuse()`)
  return ids
}

const refusals = async () =>
  Number((await fixture.query('select last_value from {schema}.refusals'))[0]?.last_value)

it('runs the other jobs if the oldest cannot be claimed, and sets that one aside', async () => {
  const ids = await addEleven(false)
  const told = fixture.listen('dibs:job.quarantined')
  const seen: unknown[] = []
  {
    await using workers = await twentyWorkers((input) => void seen.push(input))
    await until(() => seen.length === 10, 'the other ten to be run', 10_000)
    const jobs = fixture.dibs.jobs({ pay: {} })
    await until(async () => (await jobs.get(`${ids[0]}`))?.state === 'dead', 'the bad one to be set aside')
    expect(await jobs.get(`${ids[0]}`)).toMatchObject({
      attempt: 0,
      error: {
        name: 'QuarantinedError',
        message: expect.stringMatching(/^It could not be claimed: .*one_payment/),
      },
    })
    await expect(jobs.result(`${ids[0]}`)).rejects.toThrow(/could not be claimed/)
    expect(told.map(({ id, isSetAside }) => [id, isSetAside])).toEqual([[ids[0], true]])
    const succeeded = () => workers.reduce((sum, { stats }) => sum + stats.succeeded, 0)
    await until(() => succeeded() >= 10, 'the ten ends to be recorded')
    expect(succeeded()).toBe(10)
    // When what was in its way is gone, it can be driven again.
    await fixture.query('drop trigger refuse on {schema}.job')
    expect((await jobs.redrive(`${ids[0]}`)).ids).toEqual([ids[0]])
    await until(() => seen.length === 11, 'it to be run after all')
  }
  expect(seen.sort()).toEqual(Array.from({ length: 11 }, (_, n) => n).sort())
})

it('skips a job that cannot even be set aside, reports it, and does not spin', async () => {
  const ids = await addEleven(true)
  const told = fixture.listen('dibs:job.quarantined', 'dibs:worker.breaker-opened')
  const seen: unknown[] = []
  {
    await using _ = await twentyWorkers((input) => void seen.push(input), 200)
    await until(() => seen.length === 10, 'the other ten to be run', 10_000)
    const jobs = fixture.dibs.jobs({ pay: {} })
    await until(() => told.length > 0, 'it to be told')
    expect(told.every(({ id, isSetAside }) => id === ids[0] && isSetAside === false)).toBe(true)
    // A claim meets it twice, or three times. Five processes may scan every five seconds, though they poll five times a second.
    const before = await refusals()
    expect(before).toBeGreaterThan(1)
    await new Promise((resolve) => setTimeout(resolve, 3_000))
    expect((await refusals()) - before).toBeLessThan(40)
    // Jobs that are added later still run at once.
    const { id } = await jobs.add('pay', 'later')
    await jobs.result(id, { waitMs: 8_000 })
    expect((await jobs.get(`${ids[0]}`))?.state).toBe('ready')
    await fixture.query('drop trigger refuse on {schema}.job')
    await jobs.result(`${ids[0]}`, { waitMs: 15_000 })
  }
})

it.each([1, 5])('goes on while many jobs cannot be claimed (concurrency %s)', async (concurrency) => {
  const jobs = fixture.dibs.jobs({ pay: {} })
  await fixture.query(`
    create or replace function {schema}.refuse() returns trigger language plpgsql as $$
    begin raise exception 'no odd ones' using errcode = 'check_violation'; end $$;
    create trigger refuse before update on {schema}.job for each row
      when (new.state = 'running' and (new.input #>> '{}')::int % 2 = 1) execute function {schema}.refuse()`)
  await jobs.addMany(Array.from({ length: 400 }, (_, input) => ({ name: 'pay' as const, input })))
  {
    await using worker = await jobs.work({ pay: () => {} }, { concurrency })
    await until(
      async () => (await jobs.dead({}, { limit: 1_000 })).items.length === 200,
      'all odd ones to be set aside',
    )
    await until(() => worker.stats.succeeded === 200, 'all even ones to be done')
  }
  await fixture.query('drop trigger refuse on {schema}.job')
})
