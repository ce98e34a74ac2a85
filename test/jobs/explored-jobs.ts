import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { beforeAll, expect } from 'vitest'
import { Database } from '../../src/postgres/database.js'
import type { Transaction } from '../../src/postgres/transaction-types.js'
import type { ExploreBound, ExploreOptions } from '../../src/testing/explore/options.js'
import type { ExploreReport } from '../../src/testing/explore/report/report.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { exploredClaims, NOW } from '../claims/explored-claims.js'
import { exploreDibs } from '../explore-dibs.js'
import { withoutLine } from '../locks/without-line.js'
import { type JobCalls, jobCalls } from './job-calls.js'

/** Returns the bound of an exploration, from the number of preemptions that CI explores. */
export type Depth = (preemptions: number) => ExploreBound

/** One process, and what it sends. */
export interface Process extends JobCalls {
  readonly db: Pool
  transaction<T>(fn: (tx: Transaction) => Promise<T>): Promise<T>
}

/** A job that an exploration starts with. */
export interface PutJob {
  readonly id: number
  readonly state?: 'ready' | 'scheduled' | 'running' | 'dead'
  /** The fence of the job's last claim. Default: 100 if the job runs or has died. Otherwise 0: never claimed. */
  readonly fence?: string | number
  readonly lane?: number
  readonly priority?: number
  readonly attempt?: number
  readonly maxAttempts?: number
  readonly keepDays?: number
  readonly expiresAt?: string
  readonly runAt?: string
  readonly worker?: string
}

const expected = [
  // The server chooses which of several waiters gets a lock first.
  /is the server's choice|seen in one order only/,
  // These functions are one statement, touch no row, or only call functions that have yield points.
  /\.(?:clock|job_claim_lock_key|job_paused_lanes|job_settlements|job_lease_lost_error|job_start_for_workers|limit_lock_wait|wait_below_statement_timeout|next_fence|micros|job_forget_date)\(.* (?:has no yield point|runs as one step)/,
]

/** The time that `timePasses` adds: past the leases that `putJobs` has written, and not past those of claims in the exploration. */
const PASSED_MS = 1_000_000
export const LEASE_MS = 80_000_000

/** Jobs of the lanes 1 and 2 of the queue `q`, and 3 of the queue `other`. A job that runs at the start has a lease of a second. */
export function exploredJobs(bound: Depth) {
  const fixture = exploredClaims()
  beforeAll(async () => {
    const { pool, schema } = fixture
    await pool.query('create table effect (job bigint not null, by text not null)')
    // A clock that moves only when a test moves it, for all actors at once: a sequence is no part of a snapshot.
    await pool.query(`
      create or replace function ${schema.name}.clock() returns timestamptz language sql volatile
      as $$ select '${NOW}'::timestamptz + last_value * interval '1 millisecond' from public.tick $$`)
    // Made once, so that every schedule finds the same.
    await pool.query(`select ${schema.name}.job_history_add_partition('2026-01-09')`)
  })

  const inSchema = (sql: string): string => sql.replaceAll('{schema}', fixture.schema.name)
  const rowsOf = async (db: Pool, sql: string): Promise<Record<string, unknown>[]> =>
    (await db.query(inSchema(sql))).rows

  const asProcess =
    <T>(fn: (process: Process) => Promise<T>) =>
    async (db: Pool): Promise<T> => {
      const database = withoutLine(new Database(db, { schema: fixture.schema.name, prepared: false }))
      try {
        return await fn({
          ...jobCalls(database, LEASE_MS),
          db,
          transaction: (own) => database.transaction(own, { maxAttempts: 1 }),
        })
      } finally {
        await database.close()
      }
    }

  async function putJobs(db: Pool, jobs: readonly PutJob[]): Promise<void> {
    await db.query("select setval('public.tick', 1)")
    await db.query(
      inSchema(`insert into {schema}.lane (id, queue, name, version) overriding system value
        values (1, 'q', 'one', 1), (2, 'q', 'two', 1), (3, 'other', 'three', 1)`),
    )
    for (const job of jobs) await db.query(inSchema(insertOf(job)))
  }

  /** Checks the jobs that the exploration started with: none is lost or has ended twice, no attempt has two outcomes, and recovery will find each running job. */
  async function nothingIsWrong(db: Pool, ids: readonly number[], mayBeDiscarded: boolean): Promise<void> {
    const live = await rowsOf(db, 'select id::int, state from {schema}.job')
    const unwatched = await rowsOf(
      db,
      `select j.id from {schema}.job j where j.state = 'running' and not exists (
        select from {schema}.job_held h where j.id = any (h.ids) and h.worker = j.worker
          and h.check_at <= greatest(j.lease_until, {schema}.clock() + interval '1 second'))`,
    )
    assert.deepEqual(unwatched, [], 'nobody will find out that these are lost')
    const history = await rowsOf(
      db,
      'select id::int, fence::text, outcome, started_at is not null as "isAttempt" from {schema}.job_history',
    )
    const effects = await rowsOf(db, 'select job::int as id from effect')
    for (const id of ids) {
      const own = history.filter((row) => row.id === id)
      const attempts = own.filter(({ isAttempt }) => isAttempt).map(({ fence }) => fence)
      assert.equal(new Set(attempts).size, attempts.length, `two outcomes of one attempt: ${attempts}`)
      const last = own.filter(({ outcome }) => ['succeeded', 'canceled', 'expired'].includes(`${outcome}`))
      const isLive = live.some((row) => row.id === id)
      if (!mayBeDiscarded)
        assert.equal(last.length, isLive ? 0 : 1, `job ${id}: live ${isLive}, ended ${last.length} times`)
      const succeeded = own.filter(({ outcome }) => outcome === 'succeeded').length
      assert(succeeded <= 1, `job ${id} has succeeded ${succeeded} times`)
      const done = effects.filter((row) => row.id === id).length
      assert(done === 0 || done === succeeded, `job ${id}: ${done} effects, succeeded ${succeeded} times`)
    }
  }

  /** Explores all schedules up to the bound, and expects the report to say so. */
  async function exploreJobs(
    options: Omit<ExploreOptions, 'pool' | 'setup'> & {
      readonly jobs: readonly PutJob[]
      readonly before?: (db: Pool) => Promise<unknown>
      /** A job that is neither live nor in history may have been discarded. */
      readonly mayBeDiscarded?: boolean
    },
  ): Promise<ExploreReport> {
    const { jobs, before, invariant, mayBeDiscarded = false, ...others } = options
    const ids = jobs.map(({ id }) => id)
    const report = await exploreDibs({
      pool: fixture.pool,
      setup: async (db) => {
        await putJobs(db, jobs)
        await before?.(db)
      },
      invariant: async (db, outcomes) => {
        await nothingIsWrong(db, ids, mayBeDiscarded)
        await invariant?.(db, outcomes)
      },
      bound: bound(2),
      ...others,
    })
    if (process.env.SHOW_SCHEDULES) console.log(report.summary)
    expect(report.isComplete, report.summary).toBe(true)
    expect(report.notes.filter((note) => !expected.some((one) => one.test(note)))).toEqual([])
    return report
  }

  return {
    fixture,
    asProcess,
    exploreJobs,
    rowsOf,
    /** The leases of those who ran at the start have run out. */
    timePasses: (db: Pool) => db.query(`select setval('public.tick', ${PASSED_MS})`),
    statesOf: async (db: Pool): Promise<Record<string, unknown>> =>
      Object.fromEntries(
        (await rowsOf(db, 'select id::text, state from {schema}.job order by id')).map(({ id, state }) => [
          id,
          state,
        ]),
      ),
    /** The outcomes of a job in history, in the order of its attempts. */
    outcomesOf: async (db: Pool, id = 1): Promise<unknown[]> =>
      (
        await rowsOf(
          db,
          `select outcome from {schema}.job_history where id = ${id} order by fence, started_at nulls last`,
        )
      ).map(({ outcome }) => outcome),
  }
}

/** The index that has jobs in this state, as an SQL literal. */
export function indexOf(state: string): string {
  const names: Record<string, string> = { running: 'ready', gated: 'none' }
  return `'${names[state] ?? state}'`
}

/** Step by step, since a job cannot be born in any state. */
export function insertOf(job: PutJob): string {
  const { id, state = 'ready', lane = 1, priority = 0, maxAttempts = 5, keepDays = 7 } = job
  const { fence = state === 'running' || state === 'dead' ? 100 : 0 } = job
  const { attempt = Number(fence) > 0 ? 1 : 0, worker = 'old' } = job
  const at = `'${NOW}'::timestamptz`
  const timeOf = (time: string | undefined): string => (time === undefined ? 'null' : `'${time}'`)
  const steps = [
    `insert into {schema}.job (id, created_at, run_at, expires_at, lane, priority, max_attempts, keep_days, state, indexed_in, input) overriding system value
     values (${id}, ${at}, ${job.runAt ? timeOf(job.runAt) : at}, ${timeOf(job.expiresAt)}, ${lane}, ${priority}, ${maxAttempts}, ${keepDays},
       '${state === 'scheduled' ? state : 'ready'}', ${indexOf(state === 'scheduled' ? state : 'ready')}, '{"n": ${id}}')`,
  ]
  if (Number(fence) > 0)
    steps.push(`update {schema}.job set state = 'running', fence = ${fence}, attempt = ${attempt}, worker = '${worker}', started_at = ${at},
      lease_until = ${at} + interval '1 second' where id = ${id};
      insert into {schema}.job_held (worker, check_at, ids) values ('${worker}', ${at} + interval '1 second', '{${id}}')`)
  if (Number(fence) > 0 && state !== 'running')
    steps.push(`update {schema}.job set state = '${state}', indexed_in = ${indexOf(state)}, worker = null, started_at = null, lease_until = null,
      error = '{"name": "Error", "message": "before"}' where id = ${id}`)
  return steps.join(';')
}

/** The result of an actor, which must not have failed. */
export function resultOf<T>(outcome: Outcome | undefined): T {
  assert.equal(outcome?.status, 'fulfilled', String((outcome as { reason?: unknown })?.reason))
  return outcome.value as T
}
