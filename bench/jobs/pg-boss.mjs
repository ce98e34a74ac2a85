// pg-boss as its documentation has it for throughput: batches are inserted, fetched and completed whole, by loops that never wait while
// there is work. Its own workers do the same with `burstWhenBatchFull`, but write each batch with a fence and give it a timeout; by ids it is
// faster. For the latency its own workers are measured, with LISTEN and NOTIFY on.
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { PgBoss } from 'pg-boss'

const LOOPS = Number(process.env.BENCH_BOSS_LOOPS ?? 4)

export async function openPgBoss({ url, schema, connections, hints, setUp }) {
  const pool = new pg.Pool({ connectionString: url, max: 2 })
  pool.on('error', () => {})
  const max = Math.max(connections, LOOPS)
  const boss = new PgBoss({
    connectionString: url,
    schema,
    max,
    useListenNotify: hints,
    // The maintenance and the schedules of pg-boss are not measured.
    supervise: false,
    schedule: false,
    migrate: setUp,
    createSchema: setUp,
  })
  boss.on('error', (error) => process.stderr.write(`pg-boss: ${error}\n`))
  await boss.start()
  // Each add on a queue that notifies pays for it, whoever listens.
  const queue = hints ? 'noop-notify' : 'noop'
  if (setUp) {
    await boss.createQueue('noop')
    await boss.createQueue('noop-notify', { notify: true })
  }

  async function startLoops(concurrency, onStart) {
    const batchSize = Math.max(500, concurrency)
    let stopped = false
    const loop = async () => {
      while (!stopped) {
        const jobs = await boss.fetch(queue, { batchSize })
        if (jobs.length === 0) {
          await sleep(10)
          continue
        }
        for (let n = 0; n < jobs.length; n += concurrency)
          await Promise.all(jobs.slice(n, n + concurrency).map(async ({ data }) => onStart(data)))
        await boss.complete(
          queue,
          jobs.map(({ id }) => id),
        )
      }
    }
    const loops = Array.from({ length: LOOPS }, loop)
    return {
      knobs: { by: 'fetch and complete', batchSize, loops: LOOPS },
      async stop() {
        stopped = true
        await Promise.all(loops)
      },
    }
  }

  async function startWorker(concurrency, onStart) {
    const options = { batchSize: concurrency, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true }
    await boss.work(queue, options, async (jobs) => {
      for (const { data } of jobs) onStart(data)
    })
    return { knobs: { by: 'work', ...options }, stop: () => boss.offWork(queue, { waitMs: 5_000 }) }
  }

  return {
    connections: max,
    addMany: (payloads) =>
      boss.insert(
        queue,
        payloads.map((data) => ({ data })),
      ),
    addOne: (payload) => boss.send(queue, payload),
    work: ({ concurrency, onStart }) => (hints ? startWorker : startLoops)(concurrency, onStart),
    /** pg-boss keeps completed jobs for a week. */
    async outcomes() {
      const { rows } = await pool.query(
        `select count(*) filter (where state < 'completed')::int as left,
           count(*) filter (where state = 'completed')::int as ended from ${schema}.job`,
      )
      return rows[0]
    },
    clear: () => pool.query(`truncate ${schema}.job cascade`),
    async close() {
      await boss.stop({ graceful: false })
      await pool.end()
    },
  }
}
