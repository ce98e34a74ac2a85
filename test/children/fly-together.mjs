// One of the processes that read the same keys: for each round as many readers as it is told, all at once. Tells when it loads, and what they have got. A load
// ends when the parent says so.
import pg from 'pg'
import { Dibs } from '../../dist/index.js'

const { url, schema, leaseMs } = JSON.parse(process.argv[2])
process.on('disconnect', () => process.exit())

const pool = new pg.Pool({ connectionString: url, max: 3 })
pool.on('error', () => {})
const dibs = await Dibs.open({ pool, schema, logger: false, migrate: 'off' })
const tell = (told) => process.send(told)
const landings = new Map()

const load = async ({ key, fence }) => {
  const landed = new Promise((resolve) => landings.set(key, resolve))
  tell({ at: 'loading', key })
  await landed
  return { key, fence }
}

async function read(key, readers) {
  const options = { ttlMs: 60_000, leaseMs, waitMs: 20_000 }
  const calls = Array.from({ length: readers }, () => dibs.singleFlight(key, options, load))
  const settled = await Promise.allSettled(calls)
  const problem = settled.find(({ status }) => status === 'rejected')
  if (problem) tell({ at: 'failed', error: `${problem.reason?.stack}` })
  else tell({ at: 'read', key, fences: settled.map(({ value }) => value.fence) })
}

process.on('message', ({ at, key, readers }) => {
  if (at === 'read') void read(key, readers)
  else if (at === 'land') landings.get(key)?.()
  else if (at === 'over')
    void dibs
      .close()
      .then(() => pool.end())
      .then(() => process.exit())
})
await dibs.singleFlight(`warm-up of ${process.pid}`, async () => 1)
tell({ at: 'ready' })
