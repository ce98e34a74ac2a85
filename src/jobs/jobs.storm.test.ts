import { expect, it } from 'vitest'
import { until, url } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { PgProxy } from '../testing/index.js'
import { seededRandom } from '../testing/seeded-random.js'

const fixture = openJobs()
const JOBS = 600
const STORM_MS = 8_000

it('ends each job once, and keeps each effect once, whatever happens to the network and the workers', async () => {
  const seed = Number(process.env.DIBS_SEED ?? Date.now() % 1_000_000)
  const random = seededRandom(seed)
  const definitions = {
    book: { transactional: true, maxAttempts: 1_000, leaseMs: 2_000, retry: () => 20 },
    note: { maxAttempts: 1_000, leaseMs: 2_000, retry: () => 20 },
  } as const
  const jobs = fixture.dibs.jobs(definitions)
  const proxies = await Promise.all([1, 2, 3].map(() => PgProxy.start({ url })))
  const instances = await Promise.all(
    proxies.map((proxy) => fixture.elsewhere({}, { connectionString: proxy.url, max: 4 })),
  )
  const start = (n: number) => {
    const theirs = instances[n]?.jobs(definitions) as typeof jobs
    return theirs.work(
      {
        book: async (input, { tx }) => {
          await tx.query(`insert into ${fixture.log} (name) values ($1)`, [`book ${input}`])
          if (random() < 0.1) throw new Error('bad luck')
        },
        note: async (input) => {
          await new Promise((resolve) => setTimeout(resolve, random() * 20))
          if (random() < 0.1) throw new Error('bad luck')
          return input
        },
      },
      { concurrency: 6, pollMs: 200 },
    )
  }
  const workers = await Promise.all(instances.map((_, n) => start(n)))
  let added = 0
  const until_ = performance.now() + STORM_MS
  while (performance.now() < until_) {
    if (added < JOBS) {
      await jobs.addMany(
        Array.from({ length: 20 }, (_, n) => ({
          name: n % 2 ? ('book' as const) : ('note' as const),
          input: added + n,
        })),
      )
      added += 20
    }
    const n = Math.floor(random() * 3)
    const proxy = proxies[n]
    const draw = random()
    if (draw < 0.3) proxy?.inject({ kind: 'reset' })
    else if (draw < 0.45) proxy?.inject({ kind: 'cut', when: 'after', statement: '/job_|commit/' })
    else if (draw < 0.5) proxy?.inject({ kind: 'black-hole', direction: 'toClient' })
    else if (draw < 0.7) proxy?.inject({ kind: 'heal' })
    else if (draw < 0.75) {
      await workers[n]?.stop({ drainMs: 5 })
      workers[n] = await start(n)
    }
    await new Promise((resolve) => setTimeout(resolve, 60 + random() * 80))
  }
  for (const proxy of proxies) proxy.inject({ kind: 'heal' })
  try {
    await until(
      async () => (await fixture.query('select from {schema}.job')).length === 0,
      'all to be done',
      40_000,
    )
    const ends = await fixture.query(
      `select id from {schema}.job_history where outcome = 'succeeded' group by id having count(*) > 1`,
    )
    expect(ends, `seed ${seed}`).toEqual([])
    const [count] = await fixture.query(
      `select count(distinct id)::int as n from {schema}.job_history where outcome = 'succeeded'`,
    )
    expect(count?.n, `seed ${seed}`).toBe(added)
    const names = await fixture.logged()
    expect(names.length, `seed ${seed}`).toBe(added / 2)
    expect(new Set(names).size).toBe(added / 2)
  } finally {
    await Promise.all(workers.map((worker) => worker.stop({ drainMs: 0 })))
    await Promise.all(proxies.map((proxy) => proxy.close()))
  }
})
