// Runs one kind of work again and again, and sends how much heap is in use, in bytes, after each part of it.
// Needs --expose-gc.
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Dibs } from '../../dist/index.js'

const { url, schema, work, count, parts } = JSON.parse(process.argv[2])
process.on('disconnect', () => process.exit())

const pool = new pg.Pool({ connectionString: url, max: 6 })
const dibs = await Dibs.open({ pool, schema, migrate: 'off', logger: false })
const INPUT = 'x'.repeat(10_000)
let keys = 0
const nextKey = () => `key ${++keys}`

/** Calls `fn` so often, a few at a time. */
async function repeat(times, fn) {
  let left = times
  const run = async () => {
    while (left-- > 0) await fn()
  }
  await Promise.all(Array.from({ length: 6 }, run))
}

async function until(isTrue) {
  while (!isTrue()) await sleep(2)
}

/** The worker's jobs of 10 KB each. */
async function startJobs(options) {
  const jobs = dibs.jobs({ mail: options })
  const worker = await dibs.work([jobs.handle({ mail: async (input) => ({ length: input.text.length }) })])
  await worker.ready
  let done = 0
  return {
    async run(times) {
      for (let left = times; left > 0; left -= 50) {
        const batch = Array.from({ length: Math.min(50, left) }, () => ({
          name: 'mail',
          input: { text: INPUT + nextKey() },
        }))
        await jobs.addMany(batch)
        done += batch.length
        await until(() => worker.stats.succeeded >= done)
      }
    },
    stop: () => worker.stop(),
  }
}

/** Each wake-up makes an idle worker look for jobs and send a heartbeat, as its timers do. Counted are its statements. */
async function startIdle() {
  const jobs = dibs.jobs({ mail: { queue: 'idle' } })
  const worker = await dibs.work([jobs.handle({ mail: async () => {} })])
  await worker.ready
  const client = new pg.Client(url)
  await client.connect()
  let sent = 0
  const { query } = pg.Client.prototype
  pg.Client.prototype.query = function (...args) {
    if (this !== client) sent++
    return query.apply(this, args)
  }
  return {
    async run(times) {
      for (const end = sent + times; sent < end; )
        await client.query('select pg_notify($1, $2)', [`dibs_${schema}`, '["jobs:idle","jobs-cancel"]'])
    },
    async stop() {
      await client.end()
      await worker.stop()
    },
  }
}

/** The minute of an idle worker with its usual pauses: `count` is in seconds. */
async function startIdleMinute() {
  const worker = await dibs.work([dibs.jobs({ mail: {} }).handle({ mail: async () => {} })])
  await worker.ready
  return { run: (seconds) => sleep(seconds * 1_000), stop: () => worker.stop() }
}

/** A lock that is held all the time keeps the connection for renewals open; a signal that all calls share never fires. */
async function startCalls(...calls) {
  const held = await dibs.lock('held', { leaseMs: 2_000 })
  const { signal } = new AbortController()
  return {
    run: async (times) => {
      await Promise.all(calls.map((call) => repeat(times, () => call(signal))))
    },
    stop: () => held[Symbol.asyncDispose](),
  }
}

const outcome = async () => ({ text: INPUT })
const quota = dibs.quota('heap', { limit: 1e6, per: 'day', timeZone: 'UTC' })
const rate = dibs.rateLimit('heap', {
  algorithm: 'token-bucket',
  limit: 1e6,
  perMs: 1_000,
  ifDown: 'local',
})

const calls = {
  locks: (signal) => dibs.withLock(nextKey(), { signal }, async () => {}),
  'contended locks': (signal) => dibs.withLock('same', { signal }, async () => {}),
  semaphores: (signal) => dibs.withLock('same', { permits: 3, signal }, async () => {}),
  onces: () => dibs.once({ scope: 'heap', key: nextKey() }, outcome),
  'leased onces': () => dibs.once({ scope: 'heap', key: nextKey(), mode: 'leased' }, outcome),
  flights: (signal) => dibs.singleFlight(nextKey(), { ttlMs: 1, signal }, outcome),
  elections: async (signal) => {
    await new Promise((resolve) => {
      const election = dibs.elect(nextKey(), { signal, onElected: () => void election.stop().then(resolve) })
    })
  },
  transactions: () => dibs.transaction((tx) => tx.query('select $1::text', [INPUT])),
  quotas: () => quota.take(nextKey()),
  rates: () => rate.take(nextKey()),
}

const starts = {
  jobs: () => startJobs({}),
  'transactional jobs': () => startJobs({ transactional: true, timeoutMs: 60_000 }),
  'statements of an idle worker': startIdle,
  'an idle minute': startIdleMinute,
  calls: () => startCalls(calls.locks, calls.onces, calls['leased onces'], calls.flights, calls.elections),
  ...Object.fromEntries(Object.entries(calls).map(([name, call]) => [name, () => startCalls(call)])),
}

async function heapUsed() {
  // The objects of calls that have just ended become garbage in the next turns of the event loop.
  for (let turn = 0; turn < 3; turn++) {
    await sleep(10)
    globalThis.gc()
  }
  return process.memoryUsage().heapUsed
}

const { run, stop } = await starts[work]()
for (let part = 0; part < parts; part++) {
  await run(Math.ceil(count / parts))
  process.send(await heapUsed())
}
await stop()
await dibs.close()
await pool.end()
process.disconnect()
