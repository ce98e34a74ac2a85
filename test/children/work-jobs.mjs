// One of the processes that work on the jobs of the storm. Sends their events to its parent.
import { subscribe } from 'node:diagnostics_channel'
import pg from 'pg'
import { Dibs } from '../../dist/index.js'
import { definitions, handlers } from './storm-jobs.mjs'

const { url, schema, world, concurrency } = JSON.parse(process.argv[2])
process.on('disconnect', () => process.exit())
const send = (message) => process.send(message)

const events = ['lost', 'refused', 'recovered', 'stuck', 'not-recorded', 'quarantined']
for (const name of events)
  subscribe(`dibs:job.${name}`, ({ id, fence, reason, error }) =>
    send({ at: name, id, fence, reason, error: error && `${error}` }),
  )
subscribe('dibs:worker.breaker-opened', () => send({ at: 'breaker-opened' }))

const pool = new pg.Pool({ connectionString: url, max: 6 })
pool.on('error', () => {})
/** The server may be away just now. */
async function open() {
  for (;;) {
    try {
      return await Dibs.open({ pool, schema, logger: false, migrate: 'off' })
    } catch (error) {
      if (!error.retryable) throw error
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }
}
const dibs = await open()
const worker = await dibs.work([dibs.jobs(definitions).handle(handlers(world))], { concurrency })
process.on('message', async () => {
  await worker.stop()
  await dibs.close()
  await pool.end()
  process.send({ at: 'over', stats: worker.stats }, () => process.exit())
})
await worker.ready
send({ at: 'ready', worker: worker.id })
