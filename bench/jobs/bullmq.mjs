// BullMQ on its two stores. What it can be told for throughput is its concurrency, and not to keep what is done.
import { createPostgresBackend, Queue, runMigrations, Worker, withBackend } from 'bullmq'
import { Redis } from 'ioredis'
import pg from 'pg'

const QUEUE = 'noop'
/** More than its pool of 10 gained nothing on two cores. */
const CONNECTIONS = Number(process.env.BENCH_BULL_CONNECTIONS ?? 10)

const jobOptions = { removeOnComplete: true }
const jobOf = (data) => ({ name: QUEUE, data, opts: jobOptions })

export async function openBullOnPostgres({ url, schema, connections, setUp }) {
  const pool = new pg.Pool({ connectionString: url, max: 2 })
  pool.on('error', () => {})
  if (setUp) {
    const client = await pool.connect()
    await runMigrations(client, schema)
    client.release()
  }
  const classes = withBackend(createPostgresBackend)
  const connectionOf = (max) => ({ connectionString: url, schema, max })
  return {
    ...openBull(classes, connectionOf(connections), connectionOf(CONNECTIONS), async () => {
      await pool.end()
    }),
    async outcomes() {
      const { rows } = await pool.query(
        `select count(*) filter (where state <> 'completed')::int as left from ${schema}.job`,
      )
      return rows[0]
    },
    clear: () => pool.query(`truncate ${schema}.job, ${schema}.event cascade`),
  }
}

/** Its Redis has nothing on disk: what it confirms is lost with the server. */
export async function openBullOnRedis({ redisUrl }) {
  if (!redisUrl) return undefined
  const { hostname: host, port } = new URL(redisUrl)
  const connection = { host, port: Number(port), maxRetriesPerRequest: null }
  const redis = new Redis(redisUrl)
  const bull = openBull({ Queue, Worker }, connection, connection, () => redis.quit())
  return {
    ...bull,
    async outcomes() {
      const { completed, ...others } = await bull.queue.getJobCounts()
      return { left: Object.values(others).reduce((sum, count) => sum + count, 0) }
    },
    clear: () => redis.flushall(),
  }
}

function openBull(classes, connection, workerConnection, closeOwn) {
  const queue = new classes.Queue(QUEUE, { connection })
  queue.on('error', () => {})
  return {
    queue,
    connections: connection.max ?? 1,
    addMany: (payloads) => queue.addBulk(payloads.map(jobOf)),
    addOne: (payload) => queue.add(QUEUE, payload, jobOptions),
    async work({ concurrency, onStart }) {
      const worker = new classes.Worker(QUEUE, async ({ data }) => onStart(data), {
        connection: workerConnection,
        concurrency,
      })
      worker.on('error', (error) => process.stderr.write(`BullMQ: ${error}\n`))
      await worker.waitUntilReady()
      return {
        knobs: { removeOnComplete: true, ...(workerConnection.max && { connections: workerConnection.max }) },
        stop: () => worker.close(),
      }
    },
    async close() {
      await queue.close()
      await closeOwn()
    },
  }
}
