// Graphile Worker as its page on performance has it for throughput: a local queue of 500, outcomes written in batches without a delay.
import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import pg from 'pg'

const logger = new Logger(() => () => {}) // thousands of lines a second otherwise
const CONNECTIONS = 10 // its default

export async function openGraphile({ url, schema, connections, setUp }) {
  const pool = new pg.Pool({ connectionString: url, max: 2 })
  pool.on('error', () => {})
  const utils = await makeWorkerUtils({ connectionString: url, maxPoolSize: connections, schema, logger })
  if (setUp) await utils.migrate()

  async function startOne(concurrency, onStart) {
    const worker = {
      connectionString: url,
      maxPoolSize: CONNECTIONS,
      concurrentJobs: concurrency,
      // Its own benchmark has 500. With 1,000 at once, twice as many were faster than just as many.
      // No refetchDelay: it spares the server when there is little to do, and a job that comes then waits for it.
      localQueue: { size: Math.max(500, 2 * concurrency) },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      schema,
      logger,
    }
    const runner = await run({
      noHandleSignals: true,
      preset: { worker },
      taskList: { noop: async (payload) => onStart(payload) },
    })
    return {
      knobs: { localQueue: worker.localQueue, completeJobBatchDelay: 0, connections: CONNECTIONS },
      stop: () => runner.stop(),
    }
  }

  return {
    connections,
    addMany: (payloads) => utils.addJobs(payloads.map((payload) => ({ identifier: 'noop', payload }))),
    addOne: (payload) => utils.addJob('noop', payload),
    async work({ concurrency, instances = 1, onStart }) {
      const workers = []
      for (let n = 0; n < instances; n++) workers.push(await startOne(concurrency, onStart))
      return { knobs: workers[0].knobs, stop: () => Promise.all(workers.map((worker) => worker.stop())) }
    },
    async outcomes() {
      const { rows } = await pool.query(`select count(*)::int as left from ${schema}._private_jobs`)
      return { left: rows[0].left }
    },
    clear: () => pool.query(`truncate ${schema}._private_jobs`),
    async close() {
      await utils.release()
      await pool.end()
    },
  }
}
