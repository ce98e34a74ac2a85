import { describe, expect, it, vi } from 'vitest'
import { until, viaPgBouncer, withPool } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { realTime } from '../../test/real-time.js'
import { ConstraintViolationError, InvalidInputError, NotInTransactionError } from '../errors.js'
import type { StandardSchema } from '../postgres/standard-schema.js'
import { Wakeups } from '../postgres/wakeups.js'
import { countTraffic } from '../testing/count-traffic.js'

const fixture = openJobs()
const HOUR_MS = 3_600_000

const define = () => fixture.dibs.jobs({ email: {}, report: { queue: 'slow', maxAttempts: 2, version: 3 } })
const count = async () => (await fixture.query('select from {schema}.job')).length
const emails = (length: number) => Array.from({ length }, (_, input) => ({ name: 'email' as const, input }))

describe('add', () => {
  it('stores the job, and does not run it', async () => {
    const jobs = define()
    const runAt = new Date(Date.now() + HOUR_MS)
    const expiresAt = new Date(Date.now() + 2 * HOUR_MS)
    const ref = await jobs.add('report', { n: 1 }, { runAt, expiresAt, priority: -7, correlationId: 'o 7' })
    expect(ref).toEqual({ id: expect.stringMatching(/^\d+$/), name: 'report', created: true })
    const { id } = ref
    expect(await jobs.get(id)).toEqual({
      ...{
        id,
        name: 'report',
        queue: 'slow',
        version: 3,
        state: 'scheduled',
        priority: -7,
        attempt: 0,
        maxAttempts: 2,
      },
      ...{ fence: 0, createdAt: expect.any(Date), runAt, startedAt: undefined, endedAt: undefined },
      ...{ leaseUntil: undefined, expiresAt, isCanceling: false, worker: undefined, correlationId: 'o 7' },
      ...{ input: { n: 1 }, progress: undefined, result: undefined, error: undefined },
    })
  })

  it.each([
    ['nothing', undefined, null],
    ['null', null, null],
    ['a text', 'ä "quoted" \\ 😀', 'ä "quoted" \\ 😀'],
    ['a number', 0.1, 0.1],
    ['a date', new Date(0), '1970-01-01T00:00:00.000Z'],
    ['an object without a field', { a: undefined, b: [1] }, { b: [1] }],
  ])('takes %s', async (_, input, stored) => {
    const jobs = define()
    const { id } = await jobs.add('email', input)
    expect((await jobs.get(id))?.input).toEqual(stored)
  })

  it('shares statements among concurrent calls, and each gets its own id', async () => {
    const jobs = define()
    await jobs.add('email', 0) // the pool is warm
    const { value, roundTrips } = await countTraffic(fixture.pool, () =>
      Promise.all(
        Array.from({ length: 500 }, (_, n) =>
          jobs.add(n % 2 ? 'email' : 'report', n, { priority: n % 3, correlationId: `c ${n}` }),
        ),
      ),
    )
    expect(roundTrips).toBeLessThan(10) // some are notifications
    expect(new Set(value.map(({ id }) => id)).size).toBe(500)
    for (const n of [0, 1, 250, 499])
      expect(await jobs.get(`${value[n]?.id}`)).toMatchObject({
        ...{ input: n, name: n % 2 ? 'email' : 'report', priority: n % 3, correlationId: `c ${n}` },
      })
  })

  it('fails alone if the server refuses its job', async () => {
    await fixture.query(`alter table {schema}.job add constraint no_bad check (input #>> '{}' <> 'bad')`)
    const jobs = define()
    const all = await Promise.allSettled(
      ['a', 'bad', 'b', 'bad', 'c'].map((input) => jobs.add('email', input)),
    )
    expect(all.map(({ status }) => status)).toEqual([
      'fulfilled',
      'rejected',
      'fulfilled',
      'rejected',
      'fulfilled',
    ])
    expect((all[1] as PromiseRejectedResult).reason).toBeInstanceOf(ConstraintViolationError)
    expect(await count()).toBe(3)
    await expect(jobs.addMany(['d', 'bad', 'e'].map((input) => ({ name: 'email', input })))).rejects.toThrow(
      /no_bad/,
    )
    expect(await count()).toBe(3)
    await fixture.query('alter table {schema}.job drop constraint no_bad')
  })

  it('is due by the clock of the database', async () => {
    await fixture.schema.clock.advance(-HOUR_MS)
    const jobs = define()
    const { id } = await jobs.add('email', null, { delayMs: 60_000 })
    const record = await jobs.get(id)
    expect((record?.runAt?.getTime() as number) - (record?.createdAt.getTime() as number)).toBe(60_000)
    expect(Math.abs((record?.createdAt.getTime() as number) - (Date.now() - HOUR_MS))).toBeLessThan(60_000)
    expect((await jobs.get((await jobs.add('email', null, { delayMs: 0 })).id))?.state).toBe('ready')
    expect((await jobs.get((await jobs.add('email', null, { runAt: new Date(0) })).id))?.state).toBe('ready')
  })

  it('can be done in SQL', async () => {
    const [row] = await fixture.query(
      `select {schema}.add_job('email', '{"to": "ann"}', priority => 3, correlation_id => 'sql') as id`,
    )
    const jobs = define()
    await using _ = await jobs.work(
      { email: (input, ctx) => ({ input, by: ctx.correlationId }) },
      { pollMs: 100 },
    )
    expect(await jobs.result(`${row?.id}`, { waitMs: 10_000 })).toEqual({ input: { to: 'ann' }, by: 'sql' })
    await expect(fixture.query(`select {schema}.add_job('email', max_attempts => 0)`)).rejects.toThrow(
      /max_attempts/,
    )
    const [later] = await fixture.query(
      `select {schema}.add_job('email', run_at => now() + interval '1 h') as id`,
    )
    expect((await jobs.get(`${later?.id}`))?.state).toBe('scheduled')
  })

  it.each([
    ['a literal', `'{"to": "ann"}'`, []],
    ['a parameter', '$1', ['{"to": "ann"}']],
    ['text', '$1::text', ['{"to": "ann"}']],
    ['varchar', '$1::varchar', ['{"to": "ann"}']],
    ['json', `json_build_object('to', 'ann')`, []],
    ['jsonb', `jsonb_build_object('to', 'ann')`, []],
    ['jsonb, by its name', `input => jsonb_build_object('to', 'ann'), queue => 'sql'`, []],
  ])('takes %s from SQL', async (_, input, values) => {
    const [row] = await fixture.query(`select {schema}.add_job('email', ${input}) as id`, values)
    expect(await define().get(`${row?.id}`)).toMatchObject({ input: { to: 'ann' }, maxAttempts: 10 })
  })

  it('reads a missing input from SQL as null', async () => {
    for (const call of [`add_job('email')`, `add_job('email', null)`, `add_job('email', null::jsonb)`]) {
      const [row] = await fixture.query(`select {schema}.${call} as id`)
      expect(await define().get(`${row?.id}`)).toMatchObject({ input: null, state: 'ready' })
    }
  })

  it.each<[string, string, RegExp | undefined]>([
    ['no name', `''`, /^name and queue must have 1 to 200 characters$/],
    ['null for a name', `null`, /^name and queue must have/],
    ['a name that fits', `repeat('ä', 200)`, undefined],
    ['a long name', `repeat('x', 201)`, /^name and queue must have/],
    ['no queue', `'email', queue => ''`, /^name and queue must have/],
    ['a long queue', `'email', queue => repeat('x', 201)`, /^name and queue must have/],
    ['a correlation that fits', `'email', correlation_id => repeat('ä', 1000)`, undefined],
    [
      'a long correlation',
      `'email', correlation_id => repeat('x', 1001)`,
      /^correlation_id must have at most 1000 characters, and has 1001$/,
    ],
    ['no version', `'email', version => 0`, /^max_attempts and version must be 1 or more/],
    ['no days', `'email', keep_days => null`, /keep_days 0 to 366/],
    ['no priority', `'email', priority => null`, /priority a number$/],
    ['a start that never comes', `'email', run_at => 'infinity'`, /^run_at and expires_at must be moments/],
    ['a start before all time', `'email', run_at => '-infinity'`, /^run_at and expires_at must be moments/],
    [
      'an end that never comes',
      `'email', expires_at => 'infinity'`,
      /^run_at and expires_at must be moments/,
    ],
    ['an input that fits', `'email', to_jsonb(repeat('x', 1048574))`, undefined],
    [
      'a large input',
      `'email', to_jsonb(repeat('x', 1048575))`,
      /^input must be at most 1048576 bytes as JSON, and is 1048577; store it elsewhere/,
    ],
    [
      'an input of many bytes',
      `'email', to_jsonb(repeat('ä', 600000))`,
      /^input must be at most 1048576 bytes as JSON, and is 1200002/,
    ],
  ])('has the same bounds in SQL: %s', async (_, given, said) => {
    const call = fixture.query(`select {schema}.add_job(${given})`)
    if (said === undefined) await call
    else {
      const error = await call.then(
        () => expect.unreachable('it did not fail'),
        (error) => error,
      )
      expect(error.code).toBe('22023')
      expect(error.message).toMatch(said)
    }
    expect(await count()).toBe(said === undefined ? 1 : 0)
  })
})

describe('addMany', () => {
  it.each([0, 1, 2, 2_500])('adds %i, in their order', async (length) => {
    const jobs = define()
    const added = await jobs.addMany(emails(length))
    const ids = added.map(({ id }) => Number(id))
    expect(ids).toEqual([...ids].sort((a, b) => a - b))
    expect(new Set(ids).size).toBe(length)
    const rows = await fixture.query(`select id, input #>> '{}' as n from {schema}.job order by id`)
    expect(rows.map(({ id, n }) => [Number(id), Number(n)])).toEqual(ids.map((id, n) => [id, n]))
  })

  it('adds large jobs of several kinds, each with its own options', async () => {
    const jobs = define()
    const text = 'x'.repeat(1_000_000)
    const added = await jobs.addMany(
      Array.from({ length: 9 }, (_, n) => ({
        ...{ name: n % 2 ? ('email' as const) : ('report' as const), input: `${n}${text}` },
        ...(n === 3 ? { correlationId: 'third' } : {}),
        ...(n === 4 ? { delayMs: HOUR_MS } : {}),
      })),
    )
    const [third, fourth] = [await jobs.get(`${added[3]?.id}`), await jobs.get(`${added[4]?.id}`)]
    expect(third).toMatchObject({ name: 'email', correlationId: 'third', state: 'ready', maxAttempts: 10 })
    expect(fourth).toMatchObject({
      name: 'report',
      correlationId: undefined,
      state: 'scheduled',
      maxAttempts: 2,
    })
    expect(`${fourth?.input}`.slice(0, 2)).toBe('4x')
  })

  it('adds all or none', async () => {
    const jobs = define()
    const bad = emails(2_500).map((job, n) => (n === 2_400 ? { ...job, input: Number.NaN } : job))
    const error = await jobs.addMany(bad).catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.message).toMatch(
      /^`jobs\[2400\]` is not right, and none was added: `input\S*` is NaN, which JSON cannot store/,
    )
    await fixture.query(`alter table {schema}.job add constraint no_bad check (input #>> '{}' <> '2400')`)
    await expect(jobs.addMany(emails(2_500))).rejects.toThrow(ConstraintViolationError)
    await fixture.query('alter table {schema}.job drop constraint no_bad')
    expect(await count()).toBe(0)
  })
})

describe('in a transaction', () => {
  it('of Dibs adds the job if, and only if, it commits', async () => {
    const jobs = define()
    const id = await fixture.dibs.transaction(async (tx) => {
      const added = await jobs.add('email', 1, { tx })
      await jobs.addMany(emails(1_200), { tx })
      expect(await count()).toBe(0)
      return added.id
    })
    expect(await count()).toBe(1_201)
    expect((await jobs.get(id))?.state).toBe('ready')
    await fixture.dibs
      .transaction(async (tx) => {
        await jobs.add('email', 1, { tx })
        throw new Error('no')
      })
      .catch(() => {})
    expect(await count()).toBe(1_201)
  })

  it.each(['read committed', 'repeatable read', 'serializable'])('of a pg client, %s', async (level) => {
    const jobs = fixture.dibs.jobs({ [`made ${level}`]: {} })
    const client = await fixture.pool.connect()
    try {
      for (const end of ['rollback', 'commit']) {
        await client.query(`begin isolation level ${level}`)
        await jobs.add(`made ${level}`, 1, { tx: client })
        await client.query(end)
        expect(await count()).toBe(end === 'commit' ? 1 : 0)
      }
      await expect(jobs.add(`made ${level}`, 1, { tx: client })).rejects.toThrow(NotInTransactionError)
      await expect(jobs.add(`made ${level}`, 1, { tx: fixture.pool as never })).rejects.toThrow(
        NotInTransactionError,
      )
    } finally {
      client.release()
    }
  })

  it.runIf(!viaPgBouncer)('wakes waiting workers when it commits', realTime, async () => {
    const dibs = await fixture.elsewhere()
    const jobs = define()
    const ran = new Map<unknown, () => void>()
    const other = dibs.jobs({ email: {} })
    await using worker = await other.work({ email: (input) => ran.get(input)?.() }, { pollMs: 60_000 })
    await worker.ready
    // After this job, the worker listens and has polled once.
    await other.result((await other.add('email', 'warm')).id, { waitMs: 10_000 })
    const wakes = async (input: string, add: () => Promise<unknown>) => {
      const done = deferred()
      ran.set(input, done.resolve)
      await add()
      const since = performance.now()
      await done.promise
      expect(performance.now() - since).toBeLessThan(2_000)
    }
    await wakes('alone', () => jobs.add('email', 'alone'))
    await wakes('many', () => jobs.addMany([{ name: 'email', input: 'many' }]))
    await wakes('ours', () => fixture.dibs.transaction((tx) => jobs.add('email', 'ours', { tx })))
    await wakes('soon', () => jobs.add('email', 'soon', { delayMs: 300 }))
    await wakes('urgent', () => jobs.add('email', 'urgent', { priority: 9 }))
    await wakes('theirs', () =>
      withPool(async (pool) => {
        const client = await pool.connect()
        await client.query('begin')
        await jobs.add('email', 'theirs', { tx: client, wake: 'in-transaction' })
        await client.query('commit')
        client.release()
      }),
    )
  })

  it('wakes all workers if there are more queues than a notification can name', async () => {
    const queues = Array.from({ length: 20 }, (_, n) => `${n}`.padEnd(200, '漢'))
    const jobs = fixture.dibs.jobs(Object.fromEntries(queues.map((queue, n) => [`job${n}`, { queue }])))
    const client = await fixture.pool.connect()
    await client.query('begin')
    await jobs.addMany(
      queues.map((_, n) => ({ name: `job${n}`, input: n })),
      { tx: client, wake: 'in-transaction' },
    )
    await client.query('commit')
    client.release()
    expect(await count()).toBe(20)
  })

  it('sends no notification from inside the transaction unless `wake` says so', async () => {
    const jobs = define()
    const notify = vi.spyOn(Wakeups.prototype, 'notify')
    const client = await fixture.pool.connect()
    await client.query('begin')
    await jobs.add('email', 1, { tx: client })
    await client.query('commit')
    client.release()
    expect(notify).not.toHaveBeenCalled()
    notify.mockRestore()
  })

  it('wakes workers of the same process even without LISTEN', async () => {
    const dibs = await fixture.elsewhere({ listen: false })
    const jobs = dibs.jobs({ email: {} })
    await using worker = await jobs.work({ email: () => {} }, { pollMs: 60_000 })
    await worker.ready
    await new Promise((resolve) => setTimeout(resolve, 200)) // it has looked, and rests
    const { id } = await jobs.add('email', 1)
    await jobs.result(id, { waitMs: 10_000 })
    const [{ id: other } = { id: '' }] = await jobs.addMany([{ name: 'email', input: 2 }])
    await jobs.result(other, { waitMs: 10_000 })
  })

  it('is found by polling without LISTEN', async () => {
    const dibs = await fixture.elsewhere({ listen: false })
    const jobs = dibs.jobs({ email: {} })
    await using worker = await jobs.work({ email: (input) => input }, { pollMs: 100 })
    await worker.ready
    const { id } = await define().add('email', 7)
    expect(await jobs.result(id, { waitMs: 10_000 })).toBe(7)
  })
})

it('runs the highest priority first, and the oldest among equals', async () => {
  const jobs = define()
  const priorities = [0, -5, 3, 0, 2 ** 31 - 1, 3, -(2 ** 31) + 1]
  await jobs.addMany(
    priorities.map((priority, n) => ({ name: 'email', input: `${priority} ${n}`, priority })),
  )
  const seen: unknown[] = []
  await using worker = await jobs.work(
    { email: (input) => void seen.push(input) },
    { concurrency: 1, prefetch: 0 },
  )
  await until(() => worker.stats.succeeded === priorities.length, 'all to be done')
  expect(seen).toEqual(['2147483647 4', '3 2', '3 5', '0 0', '0 3', '-5 1', '-2147483647 6'])
})

describe('what is refused', () => {
  const schema: StandardSchema<{ to: string }, { to: string }> = {
    '~standard': {
      version: 1,
      vendor: 'test',
      validate: (value) =>
        typeof Object(value).to === 'string'
          ? { value: value as { to: string } }
          : { issues: [{ message: 'must be a text', path: ['to'] }] },
    },
  }
  const add = (input: unknown, options?: unknown) => define().add('email', input, options as never)

  it.each<[string, () => Promise<unknown>, RegExp]>([
    [
      'does not fit',
      () => fixture.dibs.jobs({ a: { input: schema } }).add('a', {} as never),
      /^`input` does not fit its schema: to: must be a text\.$/,
    ],
    [
      'is too large',
      () => add('x'.repeat(1_048_576)),
      /^`input` must be at most 1048576 bytes as JSON, and is 1048578; store it elsewhere/,
    ],
    ['holds a NUL', () => add({ text: 'a\0' }), /^`input\.text` must not hold a NUL character\.$/],
    [
      'is not a number',
      () => add({ a: [Number.NaN] }),
      /^`input\.a\[0\]` is NaN, which JSON cannot store\. Use null or a string\.$/,
    ],
    ['is a bigint', () => add(1n), /bigint/],
    [
      'has no such name',
      () => define().add('emial' as never, 1 as never),
      /^`name` must be the name of a job that is defined here \(email, report\), not "emial"\.$/,
    ],
    [
      'has a misspelled option',
      () => add(1, { delayMS: 1 }),
      /^Unknown option "delayMS". Did you mean delayMs\? Expected one of: runAt, delayMs/,
    ],
    [
      'says twice when',
      () => add(1, { runAt: new Date(), delayMs: 1 }),
      /^`delayMs` and `runAt` are two ways to say when the job is due; give one\.$/,
    ],
    ['is due at a text', () => add(1, { runAt: 'tomorrow' }), /^`runAt` must be a Date, not a string\.$/],
    [
      'is due at no date',
      () => add(1, { runAt: new Date('tomorrow') }),
      /^`runAt` must be a valid Date, not an Invalid Date\.$/,
    ],
    [
      'is due in a past that is no time',
      () => add(1, { runAt: new Date(-8.64e15) }),
      /^`runAt` must be a Date from the year 1 on/,
    ],
    ['expires at a number', () => add(1, { expiresAt: 7 }), /^`expiresAt` must be a Date, not a number\.$/],
    [
      'is late by half',
      () => add(1, { delayMs: 0.5 }),
      /^`delayMs` must be a whole number of milliseconds from 0 to/,
    ],
    [
      'has half a priority',
      () => add(1, { priority: 1.5 }),
      /^`priority` must be a whole number from -2147483647 to 2147483647, not 1.5\.$/,
    ],
    [
      'has a large priority',
      () => add(1, { priority: 2 ** 31 }),
      /^`priority` must be a whole number from .*, not 2147483648\.$/,
    ],
    [
      'belongs to a number',
      () => add(1, { correlationId: 7 }),
      /^`correlationId` must be a string of 0 to 1000 characters, not a number\.$/,
    ],
    [
      'belongs to a long text',
      () => add(1, { correlationId: 'x'.repeat(1_001) }),
      /^`correlationId` must be a string of 0 to 1000 characters, not one of 1001\.$/,
    ],
    [
      'belongs to a NUL',
      () => add(1, { correlationId: 'x\0' }),
      /^`correlationId` must not hold a NUL character\.$/,
    ],
    [
      'belongs to half of a character',
      () => add(1, { correlationId: 'x\ud83d' }),
      /^`correlationId` must not hold half of a surrogate pair/,
    ],
    ['wakes somehow', () => add(1, { wake: 'now' }), /^`wake` must be 'in-transaction', not "now"\.$/],
    ['is late by a text', () => add(1, { delayMs: '5' }), /^`delayMs` must be .*, not "5"\.$/],
    [
      'is no list',
      () => define().addMany({} as never),
      /^`jobs` must be an array of \{ name, input, … \}, not a plain object\.$/,
    ],
    [
      'is no job',
      () => define().addMany([{ name: 'email', input: 1 }, null] as never),
      /^`jobs\[1\]` must be an object \{ name, input, … \}, not null; none was added\.$/,
    ],
    [
      'has an option',
      () => define().addMany([{ name: 'email', input: 1, tx: 1 } as never]),
      /^`jobs\[0\]` is not right, .*Unknown option "tx"/,
    ],
  ])('an input that %s', async (_, fn, said) => {
    const error: Error = await fn().then(
      () => expect.unreachable('it did not fail'),
      (error) => error,
    )
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.message).toMatch(said)
    expect(await count()).toBe(0)
  })

  it.each<[string, unknown, RegExp]>([
    ['nothing', undefined, /^`definitions` must be an object of jobs by name, not undefined\.$/],
    ['a list', [{}], /^`definitions` must be an object of jobs by name, not an array\.$/],
    ['no definition', { email: undefined }, /^`email` must be an object of options, not undefined\.$/],
    [
      'an option',
      { email: { leaseMS: 1 } },
      /^Unknown option "email.leaseMS". Did you mean leaseMs\? Expected one of: input, result, queue, .*, transactional\.$/,
    ],
    ['no name', { '': {} }, /^`name` must be a string of 1 to 200 characters, not one of 0\.$/],
    [
      'a long queue',
      { email: { queue: 'x'.repeat(201) } },
      /^`email.queue` must be a string of 1 to 200 characters, not one of 201\.$/,
    ],
    ['a NUL', { email: { queue: 'x\0' } }, /^`email.queue` must not hold a NUL character\.$/],
    ['no attempts', { email: { maxAttempts: 0 } }, /^`email.maxAttempts` must be a whole number from 1/],
    [
      'too many attempts',
      { email: { maxAttempts: 2 ** 31 } },
      /^`email.maxAttempts` must be a whole number from 1 to 2147483647, not 2147483648\.$/,
    ],
    [
      'a large version',
      { email: { version: 2 ** 31 } },
      /^`email.version` must be a whole number from 1 to 2147483647, not 2147483648\.$/,
    ],
    [
      'a short lease',
      { email: { leaseMs: 499 } },
      /^`email.leaseMs` must be a whole number of milliseconds from 500/,
    ],
    ['a long memory', { email: { keepMs: 1e12 } }, /^`email.keepMs`/],
    ['no schema', { email: { input: {} } }, /^`email.input` must be a Standard Schema/],
    [
      'a retry',
      { email: { retry: { backoff: 'cubic' } } },
      /^`email.retry.backoff` must be 'exponential', 'linear' or 'fixed', not "cubic"\.$/,
    ],
    [
      'a text for a retry',
      { email: { retry: 'fixed' } },
      /^`email.retry` must be an object of options, or a function, not a string\.$/,
    ],
    [
      'a text for a jitter',
      { email: { retry: { jitter: '5' } } },
      /^`email.retry.jitter` must be a number from 0 to 1, not "5"\.$/,
    ],
    [
      'a retry option',
      { email: { retry: { base: 1 } } },
      /^Unknown option "email.retry.base". Did you mean baseMs\? Expected one of: backoff/,
    ],
    [
      'a jitter',
      { email: { retry: { jitter: 2 } } },
      /^`email.retry.jitter` must be a number from 0 to 1, not 2\.$/,
    ],
    [
      'a text for true',
      { email: { transactional: 'yes' } },
      /^`email.transactional` must be true or false, not "yes"\.$/,
    ],
  ])('a definition with %s', (_, definitions, said) => {
    const define = () => fixture.dibs.jobs(definitions as never)
    expect(define).toThrow(InvalidInputError)
    expect(define).toThrow(said)
  })
})
