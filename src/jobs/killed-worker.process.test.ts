import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { directUrl, dropSchema, freshName, until, wayIn } from '../../test/database.js'
import { realTime } from '../../test/real-time.js'
import { Dibs } from '../dibs.js'

const script = join(import.meta.dirname, '../../test/children/poisoned-worker.mjs')
const LEASE_MS = 1_000
/** Processes are started one after the other, which a busy machine takes its time for. */
const PATIENT_MS = 120_000
const schema = freshName()
let dibs: Dibs

beforeAll(async () => {
  dibs = await Dibs.open({ ...wayIn, schema })
})

afterAll(async () => {
  await dibs.close()
  await dropSchema(schema)
})

type Report = { readonly at: string; readonly id: string; readonly attempt: number }

/** Until it dies, or the test is over. */
function startWorker(definitions: object, onReport: (report: Report) => void): ChildProcess {
  const child = fork(script, [JSON.stringify({ url: directUrl, schema, definitions })])
  child.on('message', onReport)
  onTestFinished(async () => {
    if (child.exitCode !== null || child.signalCode !== null) return
    child.kill('SIGKILL')
    await once(child, 'exit')
  })
  return child
}

it('a job that kills each process that runs it is dead after its attempts, and others go on', async () => {
  const definitions = {
    poison: { leaseMs: LEASE_MS, maxAttempts: 3 },
    good: { leaseMs: LEASE_MS, maxAttempts: 10 },
  }
  const jobs = dibs.jobs(definitions)
  const reports: Report[] = []
  let deaths = 0
  // As a supervisor would: whatever dies is started again.
  const start = (): void => {
    startWorker(definitions, (one) => reports.push(one)).once('exit', (_, signal) => {
      if (signal !== 'SIGKILL' || deaths === 3) return
      deaths++
      start()
    })
  }
  const { id } = await jobs.add('poison', null, { priority: 1 })
  const good = await jobs.addMany(Array.from({ length: 20 }, () => ({ name: 'good', input: null }) as const))
  start()
  start()
  await until(async () => (await jobs.get(id))?.state === 'dead', 'it to be dead', PATIENT_MS)
  expect((await jobs.history(id)).items.map(({ attempt, outcome }) => [attempt, outcome])).toEqual([
    [1, 'lost'],
    [2, 'lost'],
    [3, 'lost'],
  ])
  expect(reports.filter(({ at }) => at === 'poison').map(({ attempt }) => attempt)).toEqual([1, 2, 3])
  expect((await jobs.dead({ name: 'poison' })).items.map(({ error }) => error?.name)).toEqual([
    'LeaseLostError',
  ])
  // Nobody takes it any more, and who runs now goes on.
  const later = await jobs.add('good', null)
  for (const one of [...good, later])
    await until(
      async () => (await jobs.get(one.id))?.state === 'succeeded',
      'the others to be done',
      PATIENT_MS,
    )
  expect(deaths).toBe(3)
}, 180_000)

it('another worker gets the jobs of a killed worker a second or two after their leases expire', {
  ...realTime,
  timeout: 180_000,
}, async () => {
  const definitions = { endless: { leaseMs: LEASE_MS, queue: freshName() } }
  const jobs = dibs.jobs(definitions)
  const reports: (Report & { readonly by: number })[] = []
  const hear = (by: number) => (one: Report) => void reports.push({ ...one, by })
  const first = startWorker(definitions, hear(1))
  const added = await jobs.addMany([1, 2, 3].map(() => ({ name: 'endless', input: null }) as const))
  await until(
    () => reports.filter(({ by, at }) => by === 1 && at === 'endless').length === 3,
    'the first to have them',
    PATIENT_MS,
  )
  startWorker(definitions, hear(2))
  await until(
    () => reports.some(({ by, at }) => by === 2 && at === 'ready'),
    'the second to be there',
    PATIENT_MS,
  )
  const diedAt = performance.now()
  first.kill('SIGKILL')
  const taken = () => reports.filter(({ by, at }) => by === 2 && at === 'endless')
  await until(() => taken().length === 3, 'the second to have them')
  const afterMs = performance.now() - diedAt
  expect(
    taken()
      .map(({ id, attempt }) => [id, attempt])
      .sort(),
  ).toEqual(added.map(({ id }) => [id, 2]).sort())
  console.log(`taken over after ${Math.round(afterMs)} ms, with a lease of ${LEASE_MS}`)
  // The rest of the lease, plus the recovery run once a second or a little later.
  expect(afterMs).toBeLessThan(LEASE_MS + 2_000)
})
