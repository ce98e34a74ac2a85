import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { beforeAll, expect } from 'vitest'
import { HeldLock } from '../../src/locks/held-lock.js'
import type { Lock } from '../../src/locks/lock.js'
import { LockManager } from '../../src/locks/lock-manager.js'
import { newLockRenewer } from '../../src/locks/lock-renewer.js'
import { Locks } from '../../src/locks/locks.js'
import { Database } from '../../src/postgres/database.js'
import type { Isolation, Transaction } from '../../src/postgres/transaction-types.js'
import { Wakeups } from '../../src/postgres/wakeups.js'
import type { ExploreBound, ExploreOptions } from '../../src/testing/explore/options.js'
import type { ExploreReport } from '../../src/testing/explore/report/report.js'
import { exploredClaims, NOW } from '../claims/explored-claims.js'
import { exploreDibs } from '../explore-dibs.js'
import { withoutLine } from './without-line.js'

/** The bound of an exploration: preemptions, for the number that CI explores, and schedules. */
export type Depth = (preemptions: number) => ExploreBound

/** One process: what it has in memory is its own. */
export interface Process {
  readonly db: Pool
  readonly database: Database
  readonly manager: LockManager
  readonly locks: Locks
  /** The handle of whoever holds the lock with fence 100, as `setup` has put it there. */
  held(permit?: number): Lock
  transaction<T>(fn: (tx: Transaction) => Promise<T>): Promise<T>
}

/** Longer than any scene: only `timePasses` ends a lease. */
export const TTL_MS = 80_000_000

const expected = [
  // The server chooses which of several waiters gets a lock first.
  /seen in one order only/,
  // The clock, which is one read here.
  /\.clock\(\) runs as one step/,
  // This function reads a setting of the session.
  /\.require_durable_commit\(\) (?:has no yield point|runs as one step)/,
]

/** A lock `x` that `ann` holds with fence 100 until time passes, and a counter that nothing but the lock protects. */
export function exploredLocks(bound: Depth, isolation: Isolation = 'read committed') {
  const fixture = exploredClaims()
  beforeAll(async () => {
    await fixture.pool.query('create table counter (n integer not null)')
    // A clock that goes on when it is granted to, for everybody at once: a sequence is no part of a snapshot.
    await fixture.pool.query(`
      create or replace function ${fixture.schema.name}.clock() returns timestamptz language sql volatile
      as $$ select '${NOW}'::timestamptz + last_value * interval '1 millisecond' from public.tick $$`)
  })

  const asProcess =
    <T>(fn: (process: Process) => Promise<T>) =>
    async (db: Pool): Promise<T> => {
      const database = withoutLine(new Database(db, { schema: fixture.schema.name, prepared: false }))
      const wakeups = new Wakeups(database, { listen: false })
      const manager = new LockManager(database, wakeups)
      const renewer = newLockRenewer(database)
      try {
        return await fn({
          ...{ db, database, manager, locks: new Locks(database, wakeups) },
          held: (permit = 0) => {
            const spec = { name: 'x', leaseMs: TTL_MS, maxHoldMs: Number.POSITIVE_INFINITY, permits: 1 }
            const granted = {
              permit,
              holder: 'ann',
              fence: 100 + permit,
              acquiredAt: 0,
              leftMs: TTL_MS,
              from: null,
            }
            return new HeldLock({ database, wakeups, renewer }, spec, granted, performance.now())
          },
          transaction: (own) => database.transaction(own, { maxAttempts: 1, isolation }),
        })
      } finally {
        manager.close()
        for (const lock of renewer.leases) lock.lose('closed')
        await wakeups.close()
        await database.close()
      }
    }

  /** All schedules up to the bound, and it says so. */
  async function exploreAll(
    options: Omit<ExploreOptions, 'pool' | 'setup'> & {
      /** How many permits `ann` holds. Default 1. */
      readonly held?: number
      readonly before?: (db: Pool, schema: string) => Promise<unknown>
    },
  ): Promise<ExploreReport> {
    const { held = 1, before, ...others } = options
    const report = await exploreDibs({
      pool: fixture.pool,
      setup: async (db) => {
        await db.query("select setval('public.tick', 1)")
        await db.query('insert into counter values (0)')
        for (let permit = 0; permit < held; permit++)
          await db.query(
            `insert into ${fixture.schema.name}.lock values ('x', ${permit}, 'ann', ${100 + permit}, '${NOW}'::timestamptz + interval '1 second', '${NOW}')`,
          )
        await before?.(db, fixture.schema.name)
      },
      bound: bound(1),
      ...others,
    })
    expect(report.isComplete, report.summary).toBe(true)
    expect(report.notes.filter((note) => !expected.some((one) => one.test(note)))).toEqual([])
    if (process.env.SHOW_SCHEDULES) console.log(report.summary)
    return report
  }

  const rowsOf = async (db: Pool, sql: string): Promise<Record<string, unknown>[]> =>
    (await db.query(sql.replaceAll('{schema}', fixture.schema.name))).rows

  /** Reads, and writes what it has read and one more. */
  async function countUnder(lock: Lock, own: Process, when: 'first' | 'last' = 'first'): Promise<void> {
    await own.transaction(async (tx) => {
      if (when === 'first') await lock.guard(tx)
      const { rows } = await tx.query<{ n: number }>('select n from counter')
      if (when === 'last') await lock.guard(tx)
      await tx.query('update counter set n = $1', [Number(rows[0]?.n) + 1])
    })
  }

  /** The lease of `ann` has run out. */
  const timePasses = (db: Pool) => db.query("select setval('public.tick', 1000000)")

  const countIs = async (db: Pool, n: number): Promise<void> =>
    assert.deepEqual(await rowsOf(db, 'select n from counter'), [{ n }])

  return { fixture, asProcess, exploreAll, rowsOf, countUnder, timePasses, countIs }
}
