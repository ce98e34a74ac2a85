import assert from 'node:assert/strict'
import type pg from 'pg'
import { beforeAll, describe, expect, it } from 'vitest'
import { crashedDatabase } from '../../test/crashed-database.js'
import { isDeep } from '../../test/depth.js'
import { insertOf, type PutJob } from '../../test/jobs/explored-jobs.js'
import { type JobCalls, jobCalls } from '../../test/jobs/job-calls.js'
import { Database } from '../postgres/database.js'
import { crashLoop } from '../testing/crash/crash-loop.js'
import type { CrashLoopOptions } from '../testing/crash/options.js'
import type { ClaimedJob } from './claimed-job.js'
import { addJobs } from './job-statements.js'

const crashed = crashedDatabase(
  'create table effect (job bigint not null); create table placed (id int primary key)',
)
const { pool } = crashed

const LEASE_MS = 60_000
const allModes = ['crash', 'error', 'half-open', 'zombie'] as const
/** Where the other two are those of any statement. */
const fewModes = isDeep ? allModes : (['crash', 'zombie'] as const)

/** Everything of a process: memory does not survive it. */
async function asProcess<T>(db: pg.Pool, fn: (own: JobCalls, database: Database) => Promise<T>): Promise<T> {
  const database = new Database(db, { schema: crashed.schema.name, prepared: true })
  try {
    return await fn(jobCalls(database, LEASE_MS), database)
  } finally {
    await database.close()
  }
}

const inSchema = (sql: string): string => sql.replaceAll('{schema}', crashed.schema.name)
const rowsOf = async (db: pg.Pool, sql: string) => (await db.query(inSchema(sql))).rows

// A run must not change the schema. Two more, for when it becomes midnight.
beforeAll(() =>
  rowsOf(
    pool,
    'select {schema}.job_history_add_partition({schema}.job_forget_date({schema}.clock(), 7 + d)) from generate_series(0, 2) d',
  ),
)

const crash = async (jobs: readonly PutJob[], options: CrashLoopOptions) => {
  const report = await crashLoop({
    pool,
    setup: async (db) => {
      await crashed.schema.clock.reset()
      await rowsOf(
        db,
        "insert into {schema}.lane (id, queue, name, version) overriding system value values (1, 'q', 'one', 1)",
      )
      for (const job of jobs) await rowsOf(db, insertOf({ maxAttempts: 50, ...job }))
    },
    advance: () => crashed.schema.clock.advance(20 * LEASE_MS),
    progress: async (db) => (await rowsOf(db, 'select from {schema}.job')).length === 0,
    bound: { recoveries: 8 },
    ...options,
  })
  if (process.env.SHOW_SCHEDULES) console.log(`${report.points.length} points`)
  expect(report.verdict).toBe('passed')
  expect(report.modes).toEqual(options.modes ?? allModes)
  return report
}

/** Each of these has ended like this, once, and no attempt has two outcomes. */
async function haveEnded(db: pg.Pool, outcome: string, ids: readonly number[]): Promise<void> {
  const rows = await rowsOf(
    db,
    'select id::int, fence::text, outcome, started_at is not null as "isAttempt" from {schema}.job_history order by id',
  )
  const last = rows.filter((row) => ['succeeded', 'canceled', 'expired'].includes(row.outcome))
  assert.deepEqual(
    last.map((row) => [row.id, row.outcome]),
    ids.map((id) => [id, outcome]),
  )
  const attempts = rows.filter(({ isAttempt }) => isAttempt).map(({ id, fence }) => `${id}:${fence}`)
  assert.equal(new Set(attempts).size, attempts.length, `two outcomes of one attempt: ${attempts}`)
  assert.deepEqual(await rowsOf(db, 'select from {schema}.job'), [])
}

/** Whatever there is, one after the other, until there is nothing. */
async function work(own: JobCalls, handle: (job: ClaimedJob) => Promise<unknown>): Promise<void> {
  await own.promote()
  await own.recover()
  for (let turn = 0; turn < 10; turn++) {
    const [job] = (await own.claim('worker')) ?? []
    if (!job) return
    await handle(job)
  }
}

describe('a worker that dies, sleeps or loses contact anywhere', () => {
  it('loses nothing, and each attempt has one outcome', async () => {
    const report = await crash([{ id: 1 }, { id: 2, state: 'scheduled', runAt: '2025-01-01' }], {
      run: (db) =>
        asProcess(db, (own) =>
          work(own, async (job) => {
            await own.beat([job])
            // The second fails at first.
            if (job.id === 2 && job.attempt === 1)
              await own.settle({ ...job, to: 'retry', delayMs: 0, error: { message: 'again' } })
            else await own.complete([job], { results: [job.id] })
          }),
        ),
      invariant: (db) => haveEnded(db, 'succeeded', [1, 2]),
    })
    expect(report.points.length).toBeGreaterThan(20)
  })

  it('asks again for an end whose answer it has not got', async () => {
    await crash([{ id: 1 }, { id: 2 }], {
      // An answer that is lost is what this is about.
      modes: isDeep ? allModes : ['crash', 'half-open'],
      run: (db) =>
        asProcess(db, (own) =>
          work(own, async (job) => {
            const item = { ...job, to: 'retry', delayMs: 0, error: {} } as const
            const end =
              job.id === 2 && job.attempt === 1 ? () => own.settleOne(item) : () => own.completeOne(job)
            await end().catch(end)
          }),
        ),
      invariant: (db) => haveEnded(db, 'succeeded', [1, 2]),
    })
  })

  const cases: [string, boolean][] = [['it dies', false]]
  if (process.env.SOAK_SECONDS) cases.push(['it dies, and whoever comes after it', true])
  it.each(cases)('has its effect once, with the end of its job, in a transaction: %s', async (_, twice) => {
    await crash([{ id: 1 }], {
      duringRecovery: twice,
      run: (db) =>
        asProcess(db, (own, database) =>
          work(own, (job) =>
            database.transaction(async (tx) => {
              await tx.query('insert into effect values ($1)', [job.id])
              const state = await own.completeOne(job, tx)
              if (state !== 'done') throw new Error(state)
            }),
          ),
        ),
      invariant: async (db) => {
        await haveEnded(db, 'succeeded', [1])
        assert.deepEqual(await rowsOf(db, 'select job::int from effect'), [{ job: 1 }])
      },
    })
  })

  it('gives up what was canceled, once', async () => {
    await crash([{ id: 1 }], {
      run: (db) =>
        asProcess(db, async (own) => {
          await own.recover()
          const [job] = (await own.claim('worker')) ?? []
          await own.cancel(1)
          if (!job) return
          const { canceled } = await own.beat([job])
          if (Object.keys(canceled).length > 0) await own.settle({ ...job, to: 'canceled' })
        }),
      invariant: (db) => haveEnded(db, 'canceled', [1]),
    })
  })

  it('gives back what it does not begin, and it counts for nothing', async () => {
    await crash([{ id: 1 }], {
      modes: fewModes,
      run: (db) =>
        asProcess(db, async (own) => {
          await own.recover()
          const [job] = (await own.claim('worker')) ?? []
          if (job) await own.settle({ ...job, to: 'release' })
          const [again] = (await own.claim('worker')) ?? []
          if (again) await own.complete([again])
        }),
      invariant: async (db) => {
        await haveEnded(db, 'succeeded', [1])
        // Only those that were lost, and the last.
        const [row] = await rowsOf(
          db,
          "select max(attempt) as attempt, count(*) filter (where outcome = 'lost')::int as lost from {schema}.job_history",
        )
        assert.equal(row.attempt, row.lost + 1)
      },
    })
  })
})

it('a job that is added in a transaction is there once, with what the transaction writes', async () => {
  const kind = ['{q}', '{one}', '{1}', '{0}', '{null}', '{null}', '{null}', '{5}', '{7}']
  await crash([], {
    progress: async (db) => (await rowsOf(db, 'select from placed')).length === 1,
    run: (db) =>
      asProcess(db, (_, database) =>
        database.transaction(async (tx) => {
          const { rowCount } = await tx.query('insert into placed values (1) on conflict do nothing')
          if (rowCount === 1) await database.send(addJobs, [...kind, '[1]', '{}', '{}'], { tx })
        }),
      ),
    invariant: async (db) =>
      assert.deepEqual(await rowsOf(db, 'select state, lane from {schema}.job'), [
        { state: 'ready', lane: 1 },
      ]),
  })
})
