// A worker whose handler computes for so long without a pause that nothing else of its thread runs.
import { Dibs, job } from '../../dist/index.js'

const { url, schema, leaseMs, computeMs, heartbeatThread } = JSON.parse(process.argv[2])
process.on('disconnect', () => process.exit())

const dibs = await Dibs.open({ url, schema, logger: false, migrate: 'off', prepared: false })
const jobs = dibs.jobs({ compute: job({ leaseMs, timeoutMs: 2 * computeMs }) })
const worker = await jobs.work(
  {
    compute: (_, { attempt, signal }) => {
      process.send({ at: 'begun', attempt })
      const until = performance.now() + computeMs
      while (performance.now() < until);
      return { attempt, wasAborted: signal.aborted }
    },
  },
  { concurrency: 1, prefetch: 0, heartbeatThread },
)
await worker.ready
process.send({ at: 'ready' })
process.on('message', async () => {
  await worker.stop()
  const { stats } = worker
  await dibs.close()
  process.send({ at: 'stopped', stats }, () => process.exit())
})
