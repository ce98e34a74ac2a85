// Ours. Skipped while the library has no jobs.
import pg from 'pg'
import { Dibs } from '../../dist/index.js'

export async function openDibs({ url, schema, keepMs }) {
  if (!('jobs' in Dibs.prototype)) return undefined
  const pool = new pg.Pool({ connectionString: url, max: 2 })
  pool.on('error', () => {})
  const dibs = await Dibs.open({ url, schema })
  const jobs = dibs.jobs({ noop: { keepMs }, other: { keepMs } })
  const jobOf = (input) => ({ name: 'noop', input })
  return {
    connections: 'as many as it likes',
    addMany: (payloads) => jobs.addMany(payloads.map(jobOf)),
    addOne: (payload) => jobs.add('noop', payload),
    async work({ concurrency, instances = 1, onStart }) {
      const workers = []
      for (let n = 0; n < instances; n++)
        workers.push(
          await dibs.work([jobs.handle({ noop: async (input) => onStart(input) })], { concurrency }),
        )
      await Promise.all(workers.map((worker) => worker.ready))
      return {
        knobs: { keepMs },
        stop: () => Promise.all(workers.map((worker) => worker.stop({ drainMs: 30_000 }))),
      }
    },
    async outcomes() {
      const ended = keepMs > 0 ? `(select count(*)::int from ${schema}.job_history)` : 'null::int'
      const { rows } = await pool.query(
        `select (select count(*)::int from ${schema}.job) as left, ${ended} as ended`,
      )
      return { left: rows[0].left, ended: rows[0].ended ?? undefined }
    },
    clear: () => pool.query(`truncate ${schema}.job, ${schema}.job_history`),
    /** Through the door, so that whatever it keeps beside its rows is kept too. */
    async fill({ kind, count, payloadsFrom }) {
      const name = kind === 'other' ? 'other' : 'noop'
      const more = kind === 'later' ? { delayMs: 86_400_000 } : {}
      for (let first = 0; first < count; first += 1_000)
        await jobs.addMany(
          payloadsFrom(first, Math.min(1_000, count - first)).map((input) => ({ name, input, ...more })),
        )
    },
    async close() {
      await dibs.close()
      await pool.end()
    },
  }
}
