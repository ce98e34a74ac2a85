import assert from 'node:assert/strict'
import type pg from 'pg'
import { describe, expect, it } from 'vitest'
import { crashedDatabase } from '../../../test/crashed-database.js'
import { AmbiguousOutcomeError } from '../../errors.js'
import { Database } from '../../postgres/database.js'
import { crashLoop } from '../../testing/crash/crash-loop.js'
import { recordEffects } from '../../testing/crash/effects.js'
import type { CrashLoopOptions } from '../../testing/crash/options.js'
import { Quota } from '../quota/quota.js'
import { singletonOn } from '../singleton/singleton.js'
import { acquireOn } from './acquire.js'
import { claim } from './acquire-claims.js'

const crashed = crashedDatabase('create table done (key text not null)')
const { pool } = crashed

const LEASE_MS = 60_000
/** One period, wherever the clock is set. */
const perMs = 800_000 * 3_600_000
type Effects = ReturnType<typeof recordEffects>

/** The state of a process, which a crash loses. */
async function asProcess<T>(db: pg.Pool, fn: (own: Database, points: Quota) => Promise<T>): Promise<T> {
  const own = new Database(db, { schema: crashed.schema.name, prepared: true })
  try {
    return await fn(own, new Quota(own, 'points', { limit: 10, ledger: true }))
  } finally {
    await own.close()
  }
}

const crash = async (options: CrashLoopOptions) => {
  const report = await crashLoop({
    pool,
    setup: () => crashed.schema.clock.reset(),
    advance: () => crashed.schema.clock.advance(20 * LEASE_MS),
    bound: { recoveries: 6 },
    ...options,
  })
  if (process.env.SHOW_SCHEDULES) console.log(`${report.points.length} points`)
  return report
}

const four = (points: Quota) => [
  claim.lock('till-7'),
  points.claim('ann', 4),
  claim.singleton({ scope: 's', perMs }),
  claim.once({ scope: 'k', key: 'k', waitMs: 300 }),
]

/** The use is charged once, nothing is pending or reserved, and every counter fits its entries. */
async function whole(db: pg.Pool, claimed: number, used: number): Promise<void> {
  const { rows } = await db.query(`select
    (select array_agg(status::text) from ${crashed.schema.name}.claim) as claims,
    (select count(*)::int from ${crashed.schema.name}.lock where expires_at > ${crashed.schema.name}.clock()) as locks,
    (select array_agg(array[q.used, q.held, q.used + q.overdrawn - q.unlisted]::int[]) from ${crashed.schema.name}.quota q) as quotas,
    (select sum(e.amount)::int from ${crashed.schema.name}.quota_entry e where e.state in ('taken', 'held')) as entries`)
  assert.deepEqual(rows, [
    {
      claims: Array.from({ length: claimed }, () => 'active'),
      locks: 0,
      quotas: used === 0 ? null : [[used, 0, used]],
      entries: used === 0 ? null : used,
    },
  ])
}

describe('joined', () => {
  it('four claims and their work are there once, wherever it dies', async () => {
    const report = await crash({
      run: (db) =>
        asProcess(db, (own, points) =>
          acquireOn(own)(four(points), (tx) =>
            tx.query("insert into done values ('k')").then(() => 'answer'),
          ),
        ),
      invariant: async (db) => {
        assert.equal((await db.query('select from done')).rowCount, 1)
        await whole(db, 2, 4)
      },
    })
    expect(report.verdict).toBe('passed')
    expect(report.points.length).toBeGreaterThan(5)
  })
})

describe('leased', () => {
  const pays = (db: pg.Pool, effects: Effects, ifFailed: 'free' | 'keep' = 'free') =>
    asProcess(db, (own) =>
      singletonOn(own)({ scope: 's', perMs, ifFailed, mode: 'leased', leaseMs: LEASE_MS }, (lease) =>
        effects.perform('pay', lease.idempotencyKey),
      ),
    ).catch((error) => {
      // The slot has its outcome, so a later caller gets this error.
      if (error.code !== 'DIBS_SINGLETON_CONFLICT' || error.state !== 'active') throw error
    })

  it('a slot is used once where a repetition is known by its key, and is never left pending', async () => {
    const effects = recordEffects({ dedupes: true })
    const report = await crash({
      effects,
      run: (db) => pays(db, effects),
      invariant: async (db) => {
        assert.equal(effects.count('pay'), 1)
        await whole(db, 1, 0)
      },
    })
    expect(report.verdict).toBe('passed')
    expect(report.points.length).toBeGreaterThan(5)
  })

  it('a slot that is kept is used once at most, and says so if it may not have been', async () => {
    const effects = recordEffects()
    let held = 0
    const report = await crash({
      effects,
      run: (db) => pays(db, effects, 'keep'),
      recover: async (db) => {
        try {
          await pays(db, effects, 'keep')
        } catch (error) {
          if (!(error instanceof AmbiguousOutcomeError)) throw error
          held++ // held on purpose: a person has to decide
        }
      },
    })
    expect(report.verdict).toBe('passed')
    expect(held).toBeGreaterThan(0)
  })

  // Pairs of crash points are many. The soak runs them.
  const cases: [string, boolean][] = [['it dies', false]]
  if (process.env.SOAK_SECONDS) cases.push(['it dies, and whoever comes after it', true])
  it.each(cases)('four claims are charged once, and none is left: %s', async (_, twice) => {
    const effects = recordEffects({ dedupes: true })
    const report = await crash({
      effects,
      duringRecovery: twice,
      run: (db) =>
        asProcess(db, (own, points) =>
          acquireOn(own)(four(points), { mode: 'leased', leaseMs: LEASE_MS, waitMs: 500 }, (lease) =>
            effects.perform('pay', lease.idempotencyKey),
          ),
        ),
      invariant: async (db) => {
        assert.equal(effects.count('pay'), 1)
        await whole(db, 2, 4)
      },
    })
    expect(report.verdict).toBe('passed')
    expect(report.points.length).toBeGreaterThan(5)
  })
})
