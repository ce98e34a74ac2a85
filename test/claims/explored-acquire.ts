import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { expect } from 'vitest'
import { type Acquire, acquireOn } from '../../src/claims/acquire/acquire.js'
import { Quota } from '../../src/claims/quota/quota.js'
import { type Singleton, singletonOn } from '../../src/claims/singleton/singleton.js'
import { type VoidSlot, voidSlotOn } from '../../src/claims/singleton/void-slot.js'
import { AcquireRefusedError } from '../../src/errors.js'
import { Database } from '../../src/postgres/database.js'
import { onEvent } from '../../src/postgres/events.js'
import type { Transaction } from '../../src/postgres/transaction-types.js'
import type { ExploreBound, ExploreOptions } from '../../src/testing/explore/options.js'
import type { ExploreReport } from '../../src/testing/explore/report/report.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { exploreDibs } from '../explore-dibs.js'
import { type ExploredClaims, exploredClaims, putClaim } from './explored-claims.js'

/** The bound of an exploration: preemptions, for the number that CI explores, and schedules. */
export type Depth = (preemptions: number) => ExploreBound

/** One process: what it has in memory is its own. */
export interface Process {
  readonly db: Pool
  readonly acquire: Acquire
  readonly singleton: Singleton
  readonly voidSlot: VoidSlot
  /** Ten for each subject. */
  readonly points: Quota
  readonly database: Database
  transaction<T>(fn: (tx: Transaction) => Promise<T>): Promise<T>
}

const expected = [
  // The server chooses which of several waiters gets a lock first.
  /seen in one order only/,
  // All that these do is done by others, which have points, or is to look at rows whose lock is held.
  /\.(?:acquire|acquire_one|acquire_check|acquire_end|singleton_mark_given_up|period_at|quota_insert|quota_take_no_wait|quota_take_joined|quota_take_many|quota_resolve_joined|quota_free_at|rate_decide|rate_take_joined|rate_peek|acquire_is_repeat)\(.* has no yield point/,
]

/** The functions that explorations of singletons and of compound claims share. */
export function exploredAcquire(bound: Depth) {
  const fixture: ExploredClaims = exploredClaims()

  const asProcess =
    <T>(fn: (process: Process) => Promise<T>) =>
    async (db: Pool): Promise<T> => {
      const database = new Database(db, { schema: fixture.schema.name, prepared: false })
      try {
        return await fn({
          ...{ db, database, points: new Quota(database, 'points', { limit: 10, ledger: true }) },
          ...{
            acquire: acquireOn(database),
            singleton: singletonOn(database),
            voidSlot: voidSlotOn(database),
          },
          transaction: (own) => database.transaction(own, { maxAttempts: 1 }),
        })
      } finally {
        await database.close()
      }
    }

  /** All schedules up to the bound, and it says so. */
  async function exploreAll(
    options: Omit<ExploreOptions, 'pool' | 'setup'> & {
      readonly claim?: Parameters<typeof putClaim>[1]
      readonly before?: (db: Pool, schema: string) => Promise<unknown>
    },
  ): Promise<ExploreReport> {
    const { claim, before, ...rest } = options
    const put = putClaim(fixture, claim)
    // A deadlock would be repeated, and be gone.
    let repeated = 0
    const stop = onEvent('dibs:transaction.retried', () => void repeated++)
    const report = await exploreDibs({
      pool: fixture.pool,
      setup: async (db) => {
        await put(db)
        await before?.(db, fixture.schema.name)
      },
      bound: bound(1),
      ...rest,
    }).finally(stop)
    expect(repeated).toBe(0)
    expect(report.isComplete, report.summary).toBe(true)
    expect(report.notes.filter((note) => !expected.some((one) => one.test(note)))).toEqual([])
    if (process.env.SHOW_SCHEDULES) console.log(report.summary)
    return report
  }

  const rowsOf = async (db: Pool, sql: string): Promise<Record<string, unknown>[]> =>
    (await db.query(sql.replaceAll('{schema}', fixture.schema.name))).rows

  const doneBy = async (db: Pool): Promise<string[]> =>
    (await rowsOf(db, 'select by from done order by by')).map(({ by }) => `${by}`)

  /** Checks that the actors' results fit the rows, and counters their entries. Nothing may be held, pending or over a limit. */
  async function allOrNone(
    db: Pool,
    outcomes: Readonly<Record<string, Outcome>>,
    amounts: Readonly<Record<string, number>>,
  ): Promise<string[]> {
    const done = await doneBy(db)
    const told = Object.keys(outcomes).filter((name) => outcomes[name]?.status === 'fulfilled')
    assert.deepEqual(done, told.toSorted())
    const used = done.reduce((sum, name) => sum + (amounts[name] ?? 0), 0)
    const quotas = await rowsOf(
      db,
      'select used::int, held::int, (used + overdrawn - unlisted)::int as listed from {schema}.quota',
    )
    assert.deepEqual(quotas, quotas.length === 0 && used === 0 ? [] : [{ used, held: 0, listed: used }])
    assert(used <= 10, `${used} used`)
    const entries = await rowsOf(
      db,
      "select coalesce(sum(amount), 0)::int as sum, count(*) filter (where state = 'held')::int as held from {schema}.quota_entry",
    )
    assert.deepEqual(entries, [{ sum: used, held: 0 }])
    assert.deepEqual(
      await rowsOf(
        db,
        "select scope from {schema}.claim where status = 'pending' and lease_until > '-infinity'",
      ),
      [],
    )
    assert.deepEqual(await rowsOf(db, "select name from {schema}.lock where expires_at > '-infinity'"), [])
    return done
  }

  const value = (outcome: Outcome | undefined): unknown => {
    assert.equal(outcome?.status, 'fulfilled', String((outcome as { reason?: unknown })?.reason))
    return outcome.value
  }
  const reason = (outcome: Outcome | undefined): unknown =>
    outcome?.status === 'rejected' ? outcome.reason : undefined

  const isRefused = (error: unknown): boolean => error instanceof AcquireRefusedError

  return { fixture, asProcess, exploreAll, rowsOf, doneBy, allOrNone, value, reason, isRefused, bound }
}
