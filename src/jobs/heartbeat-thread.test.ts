import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { url } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { until } from '../../test/until.js'
import { Dibs } from '../dibs.js'
import { onEvent } from '../postgres/events.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import { job } from './job-definition.js'

const fixture = openClaims()
// Long enough for a heartbeat on a machine that is busy with other tests.
const LEASE_MS = 5_000
const COMPUTE_MS = 12_000

const children: ChildProcess[] = []
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL')
})

/** A worker in a process of its own. */
function start(heartbeatThread: boolean) {
  const given = {
    url,
    schema: fixture.schema.name,
    leaseMs: LEASE_MS,
    computeMs: COMPUTE_MS,
    heartbeatThread,
  }
  const child = fork(join(import.meta.dirname, '../../test/children/compute-jobs.mjs'), [
    JSON.stringify(given),
  ])
  children.push(child)
  const exited = once(child, 'exit')
  const told: { at: string; stats?: object }[] = []
  child.on('message', (message) => told.push(message as { at: string }))
  const heard = (at: string) => until(() => told.find((one) => one.at === at), `a worker to say ${at}`)
  return { child, heard, exited }
}

/** A job that computes for longer than its lease lasts, while another worker looks for what is left behind. */
async function compute(heartbeatThread: boolean) {
  await using dibs = await Dibs.open({ url, schema: fixture.schema.name, migrate: 'off', prepared: false })
  const jobs = dibs.jobs({ compute: job<null, { attempt: number; wasAborted: boolean }>(), other: job() })
  // The other worker handles no `compute` jobs, but recovers jobs whose lease has expired.
  await using other = await jobs.work({ other: async () => {} })
  const worker = start(heartbeatThread)
  await Promise.all([other.ready, worker.heard('ready')])
  const { id } = await jobs.add('compute', null)
  await worker.heard('begun')
  const [first] = await until(async () => {
    const ended = (await jobs.history(id)).items
    return ended.length > 0 ? ended : undefined
  }, 'the first attempt to end')
  worker.child.send('stop')
  await worker.heard('stopped')
  await worker.exited
  return { outcome: first?.outcome, result: first?.result }
}

it('a handler that lets nothing else run keeps its lease by a thread of its own', async () => {
  expect(await compute(true)).toEqual({ outcome: 'succeeded', result: { attempt: 1, wasAborted: false } })
})

it('a lease that the thread cannot renew is renewed by the main thread', async () => {
  await using proxy = await PgProxy.start({ url })
  await using dibs = await Dibs.open({
    url: proxy.url,
    schema: fixture.schema.name,
    migrate: 'off',
    prepared: false,
    listen: false,
  })
  const jobs = dibs.jobs({ wait: { leaseMs: LEASE_MS }, other: {} })
  await using _first = await jobs.work({ other: () => {} })
  await jobs.result((await jobs.add('other', null)).id, { waitMs: 20_000 })
  // From here on, the connections of the instance last, and the thread gets none.
  const refusal = proxy.inject({ kind: 'refuse' })
  const go = deferred()
  const lost: unknown[] = []
  const stop = onEvent('dibs:job.lost', (event) => lost.push(event))
  await using second = await jobs.work({ wait: () => go.promise }, { heartbeatThread: true })
  await second.ready
  const { id } = await jobs.add('wait', null)
  await until(() => second.stats.running === 1, 'it to run')
  const seen = new Set<number>()
  const leaseUntil = async () => Number((await jobs.get(id))?.leaseUntil)
  await until(async () => lost.length > 0 || seen.add(await leaseUntil()).size > 3, 'three renewals')
  go.resolve()
  await jobs.result(id, { waitMs: 20_000 })
  expect(lost).toEqual([])
  refusal.end()
  stop()
})

it('without that thread it loses its lease', async () => {
  expect(await compute(false)).toEqual({ outcome: 'lost', result: undefined })
})
