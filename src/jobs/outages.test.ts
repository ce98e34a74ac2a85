import { expect, it } from 'vitest'
import { until, url } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { realTime } from '../../test/real-time.js'
import type { Dibs } from '../dibs.js'
import { type Fault, PgProxy } from '../testing/index.js'

const fixture = openJobs()
const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

async function through(proxy: PgProxy): Promise<Dibs> {
  return await fixture.elsewhere({}, { connectionString: proxy.url, connectionTimeoutMillis: 2_000 })
}

it('waits for a database that is unavailable at the start', async () => {
  await using proxy = await PgProxy.start({ url })
  const dibs = await through(proxy)
  const away = proxy.inject({ kind: 'refuse' })
  proxy.inject({ kind: 'reset' })
  const failures = fixture.listen('dibs:worker.failed')
  const jobs = dibs.jobs({ note: {} })
  await using worker = await jobs.work({ note: () => 'done' })
  let isReady = false
  void worker.ready.then(() => {
    isReady = true
  })
  await until(() => failures.filter(({ what }) => what === 'start').length >= 2, 'it to try again')
  expect(isReady).toBe(false)
  away.end()
  await worker.ready
  expect(await jobs.result((await jobs.add('note', null)).id, { waitMs: 10_000 })).toBe('done')
})

it('records other outcomes while one kind of them gets no answer', async () => {
  await using proxy = await PgProxy.start({ url })
  const jobs = (await through(proxy)).jobs({ note: { retry: () => 3_600_000 } })
  await using _ = await jobs.work({
    note: (input) => {
      if (input === 'fails') throw new Error('no')
    },
  })
  const cut = proxy.inject({ kind: 'cut', when: 'before', statement: 'job_complete', times: 'always' })
  const { id } = await jobs.add('note', 'succeeds')
  await cut.happened
  const failing = await fixture.dibs.jobs({ note: {} }).add('note', 'fails')
  const mine = fixture.dibs.jobs({ note: {} })
  await until(async () => (await mine.get(failing.id))?.state === 'scheduled', 'the failure to be recorded')
  cut.end()
  await mine.result(id, { waitMs: 20_000 })
})

it.each<[string, Fault[]]>([
  ['kills all connections', [{ kind: 'reset' }]],
  ['kills all connections, and takes no new ones for a while', [{ kind: 'refuse' }, { kind: 'reset' }]],
])('goes on after a server that %s', async (_, faults) => {
  await using proxy = await PgProxy.start({ url })
  const dibs = await through(proxy)
  const jobs = dibs.jobs({ note: { leaseMs: 8_000 } })
  const mine = fixture.dibs.jobs({ note: {} })
  const lost = fixture.listen('dibs:job.lost')
  const go = deferred()
  await using worker = await jobs.work(
    { note: (input) => (input === 'wait' ? go.promise : 'done') },
    { concurrency: 3 },
  )
  const waiting = await mine.add('note', 'wait')
  await until(() => worker.stats.running === 1, 'it to run')
  for (let n = 0; n < 3; n++) {
    const injected = faults.map((fault) => proxy.inject(fault))
    const added = await mine.addMany(Array.from({ length: 20 }, () => ({ name: 'note' as const, input: n })))
    for (const one of injected) one.end()
    for (const { id } of added) expect(await mine.result(id, { waitMs: 20_000 })).toBe('done')
  }
  go.resolve()
  await mine.result(waiting.id, { waitMs: 10_000 })
  expect(lost).toEqual([])
})

it(
  'tries an unavailable database less and less often, and works as soon as it is back',
  realTime,
  async () => {
    await using proxy = await PgProxy.start({ url })
    const dibs = await through(proxy)
    const events = fixture.listen('dibs:worker.breaker-opened', 'dibs:worker.breaker-closed')
    const jobs = dibs.jobs({ note: {} })
    const mine = fixture.dibs.jobs({ note: {} })
    await using worker = await jobs.work({ note: () => 'done' }, { pollMs: 100 })
    await worker.ready
    const away = proxy.inject({ kind: 'refuse' })
    proxy.inject({ kind: 'reset' })
    await until(() => worker.stats.breaker === 'open', 'the breaker to open')
    const { id } = await mine.add('note', null)
    away.end()
    expect(await mine.result(id, { waitMs: 8_000 })).toBe('done')
    expect(worker.stats.breaker).toBe('closed')
    expect(events.map(({ event }) => event)).toEqual([
      'dibs:worker.breaker-opened',
      'dibs:worker.breaker-closed',
    ])
  },
)

it('treats a silent server as unavailable', async () => {
  await using proxy = await PgProxy.start({ url })
  const dibs = await through(proxy)
  const jobs = dibs.jobs({ note: { leaseMs: 4_000 } })
  const mine = fixture.dibs.jobs({ note: {} })
  const lost = fixture.listen('dibs:job.lost')
  const signals: unknown[] = []
  const inside = deferred()
  await using worker = await jobs.work(
    {
      note: async (input, { signal, attempt }) => {
        if (input !== 'wait' || attempt > 1) return attempt
        inside.resolve()
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
        signals.push(signal.reason)
        throw signal.reason
      },
    },
    { pollMs: 500 },
  )
  const waiting = await mine.add('note', 'wait')
  await inside.promise
  const silence = proxy.inject({ kind: 'black-hole' })
  await until(() => signals.length === 1, 'its handler to be told, by its own clock', 8_000)
  expect(signals[0]).toMatchObject({ reason: 'lost contact' })
  silence.end()
  expect(await mine.result(waiting.id, { waitMs: 30_000 })).toBe(2)
  const { id } = await mine.add('note', null)
  expect(await mine.result(id, { waitMs: 30_000 })).toBe(1)
  expect(lost.length).toBe(1)
  expect((await mine.history(waiting.id)).items.map(({ outcome }) => outcome)).toEqual(['lost', 'succeeded'])
  expect(worker.stats.running).toBe(0)
})

it('keeps its leases while a history partition waits for a lock', async () => {
  const dibs = await fixture.elsewhere()
  const lost = fixture.listen('dibs:job.lost')
  const failed = fixture.listen('dibs:worker.failed')
  const jobs = dibs.jobs({ long: { leaseMs: 3_000 }, kept: { keepMs: 101 * 86_400_000 } })
  const go = deferred()
  await using worker = await jobs.work({ long: () => go.promise })
  const { id } = await jobs.add('long', null)
  await until(() => worker.stats.running === 1, 'it to run')
  const client = await fixture.pool.connect()
  try {
    await client.query(`begin; lock table ${fixture.schema.name}.job_history in share update exclusive mode`)
    await using other = await jobs.work({ kept: () => {} })
    await other.ready
    await until(() => failed.some(({ what }) => what === 'history'), 'it to give up for now', 12_000)
    expect(failed.filter(({ what }) => what !== 'history')).toEqual([])
  } finally {
    await client.query('rollback')
    client.release()
  }
  go.resolve()
  await jobs.result(id, { waitMs: 10_000 })
  expect(lost).toEqual([])
  expect((await jobs.history(id)).items).toHaveLength(1)
})

it.each([
  ['by itself', 0, 0],
  ['beside others', 1, 0],
  // Longer than the recovery waits once the database is back.
  ['by itself, with outcomes that get through late', 0, 6_000],
])(
  'records what has ended meanwhile before leases that have run out are looked for: %s',
  async (_, others, lateMs) => {
    await using proxy = await PgProxy.start({ url })
    const define = async () => (await through(proxy)).jobs({ note: { leaseMs: 2_000 } })
    const jobs = await define()
    const go = deferred()
    await using worker = await jobs.work({ note: () => go.promise })
    const { id } = await jobs.add('note', null)
    await until(() => worker.stats.running === 1, 'it to run')
    const idle = await Promise.all(
      Array.from({ length: others }, async () => await (await define()).work({ note: () => 'again' })),
    )
    await Promise.all(idle.map(({ ready }) => ready))
    const cut =
      lateMs > 0
        ? proxy.inject({ kind: 'cut', when: 'before', statement: 'job_complete', times: 'always' })
        : undefined
    const away = proxy.inject({ kind: 'refuse' })
    proxy.inject({ kind: 'reset' })
    go.resolve()
    await sleep(5_000)
    away.end()
    await sleep(lateMs)
    cut?.end()
    await jobs.result(id, { waitMs: 15_000 })
    expect((await jobs.history(id)).items.map(({ outcome }) => outcome)).toEqual(['succeeded'])
    for (const other of idle) await other.stop()
  },
)
