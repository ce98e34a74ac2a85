import pg from 'pg'
import { afterAll, beforeAll, beforeEach } from 'vitest'
import { NOW } from '../claims/explored-claims.js'
import { directUrl } from '../database.js'
import { movingClock } from '../moving-clock.js'
import { openDatabase, type TestDatabase } from '../open-database.js'
import { insertOf, type PutJob } from './explored-jobs.js'
import { type JobCalls, jobCalls } from './job-calls.js'

export const LEASE_MS = 60_000

/** The functions of jobs on a schema of their own, with a clock that moves. Lanes 1 and 2 are of the queue `q`, 3 of `other`. */
export function openJobs() {
  // A statement that must not wait fails if it waits.
  const pool = new pg.Pool({ connectionString: directUrl, options: '-c lock_timeout=10000', max: 25 })
  pool.on('error', () => {})
  const opened: { database?: TestDatabase; jobs?: JobCalls; clock?: { set(at: Date): Promise<void> } } = {}
  beforeAll(async () => {
    opened.database = await openDatabase({ pool })
    opened.jobs = jobCalls(opened.database, LEASE_MS)
    opened.clock = await movingClock(pool, opened.database.schema, new Date(NOW))
  })
  const rows = async (sql: string): Promise<Record<string, unknown>[]> =>
    (await pool.query(sql.replaceAll('{schema}', `${opened.database?.schema}`))).rows
  beforeEach(async () => {
    await opened.clock?.set(new Date(NOW))
    for (const table of ['job', 'job_held', 'job_history', 'lane', 'queue', 'worker'])
      await rows(`truncate {schema}.${table}`)
    await rows(`insert into {schema}.lane (id, queue, name, version) overriding system value
      values (1, 'q', 'one', 1), (2, 'q', 'two', 1), (3, 'other', 'three', 1)`)
    // Lanes that are created later get ids above 100.
    await rows("select setval(pg_get_serial_sequence('{schema}.lane', 'id'), 100)")
  })
  afterAll(async () => {
    await opened.database?.drop()
    await pool.end()
  })

  return {
    pool,
    rows,
    get jobs(): JobCalls {
      return opened.jobs as JobCalls
    },
    get schema(): string {
      return `${opened.database?.schema}`
    },
    /** Sets the clock to `ms` after the start. */
    passes: (ms: number) => opened.clock?.set(new Date(Date.parse(NOW) + ms)),
    put: async (...jobs: PutJob[]): Promise<void> => {
      for (const job of jobs) await rows(insertOf(job))
    },
    /** While another has this row, for as long as `fn` takes. */
    async whileLocked<T>(sql: string, fn: () => Promise<T>): Promise<T> {
      const client = await pool.connect()
      try {
        await client.query('begin')
        await client.query(`${sql.replaceAll('{schema}', `${opened.database?.schema}`)} for update`)
        return await fn()
      } finally {
        await client.query('rollback')
        client.release()
      }
    },
    states: async (): Promise<Record<string, unknown>> =>
      Object.fromEntries(
        (await rows('select id::text, state from {schema}.job order by id')).map((row) => [
          row.id,
          row.state,
        ]),
      ),
    history: (): Promise<Record<string, unknown>[]> =>
      rows('select id::int, fence::int, outcome from {schema}.job_history order by fence, id, outcome'),
  }
}
