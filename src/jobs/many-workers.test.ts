import { afterAll, beforeAll, expect, it } from 'vitest'
import { dropSchema, freshName, wayIn } from '../../test/database.js'
import { until } from '../../test/until.js'
import { Dibs } from '../dibs.js'
import { type DibsEventName, onEvent } from '../postgres/events.js'
import type { Worker } from './work-options.js'

const WORKERS = 20
const JOBS = 10
/** Through a pooler a few will do: who gets a job is for the server to say. */
const ROUNDS = process.env.DIBS_TEST_VIA ? 20 : 100

const schema = freshName()
const instances: Dibs[] = []
const wrong: string[] = []
const errors: readonly DibsEventName[] = [
  'dibs:worker.failed',
  'dibs:worker.breaker-opened',
  'dibs:job.failed',
  'dibs:job.lost',
  'dibs:job.refused',
  'dibs:job.stuck',
  'dibs:job.not-recorded',
  'dibs:job.recovered',
  'dibs:job.quarantined',
]
const stops: (() => void)[] = []

beforeAll(async () => {
  // As in processes of their own: each has connections, a heartbeat and a fetcher of its own, and five workers share it.
  for (let n = 0; n < 4; n++) instances.push(await Dibs.open({ ...wayIn, schema }))
})

afterAll(async () => {
  for (const stop of stops) stop()
  for (const dibs of instances) await dibs.close()
  await dropSchema(schema)
})

const describe = (event: object): string =>
  `${Reflect.get(event, 'what') ?? ''} ${Reflect.get(event, 'error') ?? ''}`

it(`twenty workers claim ten jobs ten times, ${ROUNDS} times in a row`, async () => {
  const definitions = { errand: {} }
  const runs: { readonly n: number; readonly worker: string; readonly fence: number }[] = []
  const workers: Worker[] = []
  // Each job lasts until all ten have begun: no bot is there for two of them.
  let begun = 0
  let allBegun: () => void = () => {}
  let gate = Promise.resolve()
  for (let n = 0; n < WORKERS; n++) {
    const dibs = instances[n % instances.length] as Dibs
    const handled = dibs.jobs(definitions).handle({
      errand: async (input, { worker, fence }) => {
        runs.push({ n: Number(input), worker, fence })
        if (++begun === JOBS) allBegun()
        await gate
      },
    })
    workers.push(await dibs.work([handled], { concurrency: 1 }))
  }
  await Promise.all(workers.map(({ ready }) => ready))
  for (const name of errors) stops.push(onEvent(name, (event) => wrong.push(`${name}: ${describe(event)}`)))
  const [first] = instances
  const jobs = (first as Dibs).jobs(definitions)
  for (let round = 0; round < ROUNDS; round++) {
    runs.length = 0
    begun = 0
    gate = new Promise((resolve) => {
      allBegun = resolve
    })
    const wanted = Array.from({ length: JOBS }, (_, n) => round * JOBS + n)
    const added = await jobs.addMany(wanted.map((input) => ({ name: 'errand', input })))
    await until(async () => {
      const { rows } = await (first as Dibs).pool.query(
        `select count(*)::int as n from ${schema}.job_history where id = any($1) and outcome = 'succeeded'`,
        [added.map(({ id }) => id)],
      )
      return rows[0].n === JOBS
    }, `the jobs of round ${round} to end, of which ${begun} have begun`)
    expect(runs.map(({ n }) => n).sort((a, b) => a - b)).toEqual(wanted)
    expect(new Set(runs.map(({ worker }) => worker)).size).toBe(JOBS)
  }
  const { rows } = await (first as Dibs).pool.query(`select
    (select count(*)::int from ${schema}.job) as left,
    (select count(*)::int from ${schema}.job_history) as attempts,
    (select count(distinct (id, fence))::int from ${schema}.job_history where attempt = 1) as claims`)
  expect(rows).toEqual([{ left: 0, attempts: ROUNDS * JOBS, claims: ROUNDS * JOBS }])
  await Promise.all(workers.map((worker) => worker.stop()))
  const stats = workers.map((worker) => worker.stats)
  expect(stats.reduce((sum, { succeeded }) => sum + succeeded, 0)).toBe(ROUNDS * JOBS)
  expect(stats.reduce((sum, { lost, retried }) => sum + lost + retried, 0)).toBe(0)
  expect(wrong).toEqual([])
}, 180_000)
