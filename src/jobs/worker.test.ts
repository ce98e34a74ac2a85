import { describe, expect, it, vi } from 'vitest'
import { until, viaPgBouncer } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { FenceLostError, InvalidInputError } from '../errors.js'
import type { StandardSchema } from '../postgres/standard-schema.js'
import type { JobContext } from './job-context.js'
import { job } from './job-definition.js'

const fixture = openJobs()
const retry = () => 0

/** A Standard Schema that lets through what `fits` says. */
const schemaOf = <T>(fits: (value: unknown) => boolean): StandardSchema<T, T> => ({
  '~standard': {
    version: 1,
    vendor: 'test',
    validate: (value) =>
      fits(value) ? { value: value as T } : { issues: [{ message: 'is not right', path: ['amount'] }] },
  },
})

const many = <N extends string>(name: N, count: number) =>
  Array.from({ length: count }, (_, n) => ({ name, input: n }))

describe('a handler', () => {
  it('gets its job, and its result is kept', async () => {
    const jobs = fixture.dibs.jobs({ email: { queue: 'mail', maxAttempts: 2, retry } })
    const { id } = await jobs.add('email', { to: 'ann' }, { correlationId: 'order 7' })
    const seen: JobContext[] = []
    await using worker = await jobs.work({
      email: async (input, ctx) => {
        seen.push({ ...read(ctx), input } as never)
        if (ctx.attempt === 1) throw new Error('not yet')
        return { sent: [1, 'zwei', null] }
      },
    })
    expect(await jobs.result(id, { waitMs: 10_000 })).toEqual({ sent: [1, 'zwei', null] })
    const common = { id, name: 'email', queue: 'mail', maxAttempts: 2, correlationId: 'order 7' }
    expect(seen).toEqual([
      { ...common, input: { to: 'ann' }, attempt: 1, isLastAttempt: false, ...any(worker.id) },
      { ...common, input: { to: 'ann' }, attempt: 2, isLastAttempt: true, ...any(worker.id) },
    ])
    expect(seen[1]?.fence).toBeGreaterThan(seen[0]?.fence as number)
    expect(Math.abs((seen[0]?.createdAt.getTime() as number) - Date.now())).toBeLessThan(60_000)
  })

  it('reports progress, and extends its lease', async () => {
    const jobs = fixture.dibs.jobs({ report: {} })
    const { id } = await jobs.add('report', null)
    const go = deferred()
    const inside = deferred<JobContext>()
    await using _ = await jobs.work({
      report: async (_, ctx) => {
        const { progress, extendLease } = ctx
        await progress({ page: 7 })
        await extendLease(3_600_000)
        inside.resolve(ctx)
        await go.promise
      },
    })
    const ctx = await inside.promise
    const record = await jobs.get(id)
    expect(record).toMatchObject({ state: 'running', progress: { page: 7 }, fence: ctx.fence })
    expect((record?.leaseUntil?.getTime() as number) - Date.now()).toBeGreaterThan(3_500_000)
    await expect(ctx.progress(Number.NaN)).rejects.toThrow(InvalidInputError)
    await expect(ctx.extendLease(0)).rejects.toThrow(InvalidInputError)
    await fixture.query(
      `update {schema}.job set state = 'ready', indexed_in = 'ready', worker = null, lease_until = null, started_at = null`,
    )
    await expect(ctx.progress(8)).rejects.toThrow(FenceLostError)
    go.resolve()
  })

  it('cannot report anything when its attempt has ended', async () => {
    const jobs = fixture.dibs.jobs({ report: {} })
    const { id } = await jobs.add('report', null)
    let kept: JobContext | undefined
    await using _ = await jobs.work({
      report: (_, ctx) => {
        kept = ctx
      },
    })
    await jobs.result(id, { waitMs: 10_000 })
    await expect(kept?.progress(1)).rejects.toThrow(/has ended/)
  })

  it('writes to the logger of the instance', async () => {
    const lines: unknown[] = []
    const write = (level: string) => (fields: object, message: string) => {
      if (Reflect.get(fields, 'event') === 'dibs:job.logged') lines.push([level, message, fields])
    }
    const dibs = await fixture.elsewhere({
      logger: { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') },
    })
    const jobs = dibs.jobs({ report: {} })
    const { id } = await jobs.add('report', null)
    await using _ = await jobs.work({
      report: (_, { log }) => {
        log.info('begun')
        log.error('no paper', { tray: 2 })
        log.warn({ tray: 3 } as never, 'as pino has it' as never)
      },
    })
    await jobs.result(id, { waitMs: 10_000 })
    expect(lines).toEqual([
      ['info', 'begun', expect.objectContaining({ id, subject: 'report', attempt: 1 })],
      ['error', 'no paper', expect.objectContaining({ id, fields: { tray: 2 } })],
      ['warn', 'as pino has it', expect.objectContaining({ id, fields: { tray: 3 } })],
    ])
    // These are the logger's own.
    for (const [, , fields] of lines as [string, string, object][])
      for (const own of ['name', 'level', 'message']) expect(fields).not.toHaveProperty(own)
  })

  it.each([
    ['a bigint', () => 7n, /bigint/],
    ['a circle', circle, /JSON/],
    ['a function', () => ({ fn: () => {} }), /function/],
    ['a NUL', () => ({ text: 'a\0b' }), /NUL/],
    ['too much', () => 'x'.repeat(1_100_000), /bytes/],
  ])('that returns %s is not run again: its job is dead, and says why', async (_, make, said) => {
    const jobs = fixture.dibs.jobs({ report: { retry } })
    const { id } = await jobs.add('report', null)
    let runs = 0
    await using worker = await jobs.work({
      report: () => {
        runs++
        return make()
      },
    })
    await expect(jobs.result(id, { waitMs: 10_000 })).rejects.toThrow(said)
    const record = await jobs.get(id)
    expect(record).toMatchObject({ state: 'dead', error: { name: 'InvalidOutcomeError' } })
    expect(record?.error?.message).toMatch(
      new RegExp(`^The result of job ${id} \\("report"\\) (must|does|is|cannot be stored:) `),
    )
    await until(() => worker.stats.failed === 1, 'the failure to be counted')
    expect(runs).toBe(1)
  })

  it.each([
    ['something else', () => ({ amount: 'much' })],
    ['nothing', () => undefined],
  ])('that returns %s than its schema says is not run again', async (_, make) => {
    const result = schemaOf<{ amount: number }>((value) => typeof Object(value).amount === 'number')
    const jobs = fixture.dibs.jobs({ pay: { retry, result } })
    const { id } = await jobs.add('pay', null)
    await using _worker = await jobs.work({ pay: () => make() as never })
    await expect(jobs.result(id, { waitMs: 10_000 })).rejects.toThrow(/amount: is not right/)
    expect(await jobs.get(id)).toMatchObject({ state: 'dead', error: { name: 'InvalidOutcomeError' } })
  })

  it('does not run with a stored input that does not fit its schema', async () => {
    const before = fixture.dibs.jobs({ pay: {} })
    const { id } = await before.add('pay', { amount: 'much' })
    const input = schemaOf<{ amount: number }>((value) => typeof Object(value).amount === 'number')
    const jobs = fixture.dibs.jobs({ pay: { input } })
    let runs = 0
    await using _ = await jobs.work({ pay: () => void runs++ })
    await expect(jobs.result(id, { waitMs: 10_000 })).rejects.toThrow(
      /the input of job .*amount: is not right/,
    )
    expect(runs).toBe(0)
    expect(await jobs.get(id)).toMatchObject({ state: 'dead', input: { amount: 'much' } })
  })
})

describe('a worker', () => {
  it('runs at most `concurrency` jobs at a time', async () => {
    const jobs = fixture.dibs.jobs({ short: {} })
    await jobs.addMany(many('short', 300))
    let running = 0
    let most = 0
    await using worker = await jobs.work(
      {
        short: async () => {
          most = Math.max(most, ++running)
          await new Promise((resolve) => setTimeout(resolve, Math.random() * 4))
          running--
        },
      },
      { concurrency: 7 },
    )
    await until(() => worker.stats.succeeded === 300, 'all to be done')
    expect([most, worker.stats.running, worker.stats.waiting]).toEqual([7, 0, 0])
  })

  it('claims no more than it runs with `prefetch: 0`', async () => {
    const jobs = fixture.dibs.jobs({ long: {} })
    await jobs.addMany(many('long', 5))
    const go = deferred()
    await using worker = await jobs.work({ long: () => go.promise }, { concurrency: 2, prefetch: 0 })
    await until(() => worker.stats.running === 2, 'its slots to be full')
    const other = (await fixture.elsewhere()).jobs({ long: {} })
    await using second = await other.work({ long: () => go.promise }, { concurrency: 10 })
    await until(() => second.stats.running === 3, 'the other to have the rest')
    expect(worker.stats).toMatchObject({ running: 2, waiting: 0 })
    go.resolve()
  })

  it('takes only jobs of its queues, and of its version', async () => {
    const jobs = fixture.dibs.jobs({ a: { queue: 'one' }, b: { queue: 'two' } })
    const newer = fixture.dibs.jobs({ a: { queue: 'one', version: 2 } })
    const a = await jobs.add('a', null)
    const b = await jobs.add('b', null)
    const next = await newer.add('a', null)
    await using _ = await jobs.work({ a: () => 'a', b: () => 'b' }, { queues: ['one'] })
    expect(await jobs.result(a.id, { waitMs: 10_000 })).toBe('a')
    expect((await jobs.get(b.id))?.state).toBe('ready')
    expect((await newer.get(next.id))?.state).toBe('ready')
  })

  it('runs jobs of several definitions, and shares what it needs with other workers of the instance', async () => {
    const dibs = await fixture.elsewhere({}, { max: 3, application_name: `${process.env.PGAPPNAME}` })
    const one = dibs.jobs({ one: {} })
    const two = dibs.jobs({ two: {} })
    const workers = await Promise.all(
      Array.from({ length: 6 }, (_, n) =>
        n % 2 === 0
          ? dibs.work([one.handle({ one: () => 1 }), two.handle({ two: () => 2 })])
          : one.work({ one: () => 1 }),
      ),
    )
    await Promise.all(workers.map(({ ready }) => ready))
    expect(await two.result((await two.add('two', null)).id, { waitMs: 10_000 })).toBe(2)
    expect(await one.result((await one.add('one', null)).id, { waitMs: 10_000 })).toBe(1)
    if (!viaPgBouncer) {
      const lines = await fixture.query(
        `select pid from pg_stat_activity where application_name = $1 and query ~ '^select "?{schema}"?.(job_(claim|claim_full_scan|complete|settle|heartbeat|promote|recover|history_maintain|lane_id)|worker_register)[(]'`,
        [process.env.PGAPPNAME],
      )
      expect(lines.length).toBeGreaterThanOrEqual(2)
      expect(lines.length).toBeLessThanOrEqual(3)
    }
    await Promise.all(workers.map((worker) => worker.stop()))
  })

  it('goes on while handlers hold all clients of the pool', async () => {
    const dibs = await fixture.elsewhere({}, { max: 2 })
    const jobs = dibs.jobs({ hold: { leaseMs: 4_000 }, short: {} })
    const holds = await jobs.addMany(many('hold', 2))
    const go = deferred()
    const held = deferred()
    let holding = 0
    await using worker = await jobs.work({
      hold: async () => {
        const client = await dibs.pool.connect()
        if (++holding === 2) held.resolve()
        await go.promise
        client.release()
      },
      short: () => 'done',
    })
    await held.promise
    const mine = fixture.dibs.jobs({ hold: {}, short: {} })
    const shorts = await mine.addMany(many('short', 50))
    for (const { id } of shorts) expect(await mine.result(id, { waitMs: 10_000 })).toBe('done')
    const before = (await mine.get(`${holds[0]?.id}`))?.leaseUntil?.getTime() as number
    await until(
      async () => ((await mine.get(`${holds[0]?.id}`))?.leaseUntil?.getTime() as number) > before,
      'a heartbeat',
    )
    go.resolve()
    for (const { id } of holds) await mine.result(id, { waitMs: 10_000 })
    expect(worker.stats).toMatchObject({ succeeded: 52, lost: 0 })
  })

  it('records many single outcomes fast', async () => {
    const jobs = fixture.dibs.jobs({ note: job<number, number>() })
    await using _ = await jobs.work({ note: (n) => n * 2 })
    for (let n = 1; n <= 20; n++) {
      const { id } = await jobs.add('note', n)
      expect(await jobs.result(id, { waitMs: 10_000 })).toBe(2 * n)
    }
  })
})

describe('what is refused', () => {
  const jobs = () => fixture.dibs.jobs({ email: {}, report: { queue: 'slow' } })
  const work = (parts: unknown, options?: object) => fixture.dibs.work(parts as never, options)

  it.each([
    ['no handler', () => jobs().handle({}), /`handlers` must have a function for one job/],
    [
      'nothing',
      () => jobs().handle(undefined as never),
      /`handlers` must be an object of functions, not undefined/,
    ],
    [
      'no function',
      () => jobs().handle({ email: 7 } as never),
      /`handlers.email` must be a function, not a number/,
    ],
    [
      'a missing one',
      () => jobs().handle({ email: undefined }),
      /`handlers.email` must be a function, not undefined/,
    ],
    [
      'a name',
      () => jobs().handle({ emial: () => 1 } as never),
      /"emial", and there is no such job\. Did you mean email\? Expected one of: email, report/,
    ],
  ])('%s in handle', (_, fn, said) => {
    expect(fn).toThrow(InvalidInputError)
    expect(fn).toThrow(said)
  })

  it.each([
    ['no parts', () => work([]), /`parts`/],
    [
      'one part by itself',
      () => work(jobs().handle({ email: () => 1 })),
      /`parts` must be an array of what `jobs.handle` gives/,
    ],
    ['handlers', () => work([{ email: () => 1 }]), /`parts\[0\]` must be what `jobs.handle` gives/],
    [
      'those of another schema',
      () => work([{ ...jobs().handle({ email: () => 1 }), schema: 'other' }]),
      /`parts\[0\]` has handlers for jobs of the schema "other", and this instance works on "/,
    ],
    [
      'two for one',
      () => work([1, 2].map(() => jobs().handle({ email: () => 1 }))),
      /two handlers for "email"/,
    ],
    [
      'another queue',
      () => work([jobs().handle({ email: () => 1 })], { queues: ['slow'] }),
      /`queues` must name a queue/,
    ],
    ['no number', () => work([jobs().handle({ email: () => 1 })], { concurrency: 0 }), /`concurrency`/],
    [
      'too many',
      () => work([jobs().handle({ email: () => 1 })], { concurrency: 1e6 }),
      /`concurrency` must be a whole number from 1 to 100000/,
    ],
    ['no time', () => work([jobs().handle({ email: () => 1 })], { pollMs: 1 }), /`pollMs`/],
    [
      'an option',
      () => work([jobs().handle({ email: () => 1 })], { concurency: 2 }),
      /Unknown option "concurency"/,
    ],
  ])('%s in work', async (_, fn, said) => {
    const error = await fn().then(
      async (worker) => {
        await worker.stop()
        return undefined
      },
      (error) => error,
    )
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.message).toMatch(said)
  })

  it('a thread for heartbeats that cannot connect', async () => {
    const dibs = await fixture.elsewhere({}, { password: () => 'secret' })
    const own = dibs.jobs({ email: {} })
    const options = { heartbeatThread: true }
    await expect(own.work({ email: () => 1 }, options)).rejects.toThrow(
      /`heartbeatThread` needs a pool whose password is a string/,
    )
  })
})

it('accepts the longest `pollMs` of a timer', async () => {
  const jobs = fixture.dibs.jobs({ email: {} })
  const warnings: string[] = []
  const onWarning = ({ name }: Error): void => void warnings.push(name)
  process.on('warning', onWarning)
  const random = vi.spyOn(Math, 'random').mockReturnValue(0.99)
  try {
    await using worker = await jobs.work({ email: () => 'sent' }, { pollMs: 2 ** 31 - 1 })
    await worker.ready
    await jobs.result((await jobs.add('email', null)).id, { waitMs: 5_000 })
    await new Promise((resolve) => setTimeout(resolve, 300))
    expect(warnings).toEqual([])
  } finally {
    random.mockRestore()
    process.off('warning', onWarning)
  }
})

function circle(): object {
  const ring: { self?: object } = {}
  ring.self = ring
  return ring
}

const any = (worker: string) => ({ worker, fence: expect.any(Number), createdAt: expect.any(Date) })

const read = ({
  id,
  name,
  queue,
  attempt,
  maxAttempts,
  isLastAttempt,
  fence,
  correlationId,
  createdAt,
  worker,
}: JobContext) => ({
  ...{ id, name, queue, attempt, maxAttempts, isLastAttempt, fence, correlationId, createdAt, worker },
})
