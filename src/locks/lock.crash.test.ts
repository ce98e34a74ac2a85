import assert from 'node:assert/strict'
import type pg from 'pg'
import { describe, expect, it } from 'vitest'
import { crashedDatabase } from '../../test/crashed-database.js'
import { isDeep } from '../../test/depth.js'
import { Database } from '../postgres/database.js'
import { Wakeups } from '../postgres/wakeups.js'
import { crashLoop } from '../testing/crash/crash-loop.js'
import type { CrashLoopOptions } from '../testing/crash/options.js'
import { Election } from './election.js'
import type { Lock } from './lock.js'
import { LockManager } from './lock-manager.js'
import { Locks } from './locks.js'
import type { Term } from './term.js'

const crashed = crashedDatabase(
  'create table counter (n integer not null); create table step (fence bigint not null, name text not null, place serial)',
)
const { pool } = crashed

const TTL_MS = 60_000
const allModes = ['crash', 'error', 'half-open', 'zombie'] as const

/** Everything of a process: memory does not survive it. */
async function asProcess<T>(
  db: pg.Pool,
  fn: (manager: LockManager, own: Database) => Promise<T>,
): Promise<T> {
  const own = new Database(db, { schema: crashed.schema.name, prepared: true })
  const wakeups = new Wakeups(own, { listen: false })
  const manager = new LockManager(own, wakeups)
  try {
    return await fn(manager, own)
  } finally {
    manager.close()
    await wakeups.close()
    await own.close()
  }
}

const crash = async (options: CrashLoopOptions) => {
  const report = await crashLoop({
    pool,
    setup: async (db) => {
      await crashed.schema.clock.reset()
      await db.query('insert into counter values (0)')
    },
    advance: () => crashed.schema.clock.advance(20 * TTL_MS),
    bound: { recoveries: 6 },
    ...options,
  })
  if (process.env.SHOW_SCHEDULES) console.log(`${report.points.length} points`)
  expect(report.verdict).toBe('passed')
  expect(report.modes).toEqual(options.modes ?? allModes)
  return report
}

/** Reads, and writes what it has read and one more, in a transaction that nothing but the lock protects; once for each run. */
const countOnce = (lock: Lock, own: Database) =>
  own.transaction(async (tx) => {
    await lock.guard(tx)
    const { rows } = await tx.query<{ n: number }>('select n from counter')
    if (rows[0]?.n === 0) await tx.query('update counter set n = $1', [rows[0].n + 1])
  })

const isFree = async (db: pg.Pool): Promise<void> => {
  const { rows } = await db.query(
    `select from ${crashed.schema.name}.lock where expires_at > ${crashed.schema.name}.clock()`,
  )
  assert.deepEqual(rows, [])
}
const fencesGrow = async (db: pg.Pool): Promise<void> => {
  const { rows } = await db.query('select fence::float8 from step order by place')
  const fences = rows.map(({ fence }) => fence)
  assert.deepEqual(
    fences,
    fences.toSorted((a, b) => a - b),
  )
}

describe('a holder that dies, sleeps or loses contact anywhere', () => {
  // Each pair of points is many: with the soak.
  const cases: [string, boolean][] = [['it dies', false]]
  if (process.env.SOAK_SECONDS) cases.push(['it dies, and whoever comes after it', true])
  it.each(cases)('has counted once, and leaves the lock to the next: %s', async (_, twice) => {
    const report = await crash({
      duringRecovery: twice,
      run: (db) =>
        asProcess(db, (manager, own) =>
          manager.withLock('x', { leaseMs: TTL_MS, waitMs: 0 }, (lock) => countOnce(lock, own)),
        ),
      invariant: async (db) => {
        assert.deepEqual((await db.query('select n from counter')).rows, [{ n: 1 }])
        await isFree(db)
      },
    })
    expect(report.points.length).toBeGreaterThan(20)
  })

  it('writes nothing after another has taken over, in none of its transactions', async () => {
    const step = (lock: Lock, own: Database, name: string) =>
      own.transaction(async (tx) => {
        await lock.guard(tx)
        await tx.query('insert into step values ($1, $2)', [lock.fence, name])
      })
    await crash({
      run: (db) =>
        asProcess(db, (manager, own) =>
          manager.withLock('x', { leaseMs: TTL_MS, waitMs: 0 }, async (lock) => {
            await step(lock, own, 'first')
            await step(lock, own, 'second')
          }),
        ),
      invariant: async (db) => {
        await fencesGrow(db)
        await isFree(db)
      },
    })
  })

  it('of several permits gives each back, or it runs out', async () => {
    await crash({
      run: (db) =>
        asProcess(db, (manager) =>
          manager.withLock('x', { leaseMs: TTL_MS, waitMs: 0, permits: 2 }, () =>
            manager.withLock('x', { leaseMs: TTL_MS, waitMs: 0, permits: 2 }, async () => {}),
          ),
        ),
      // A zombie that wakes up before it requests its second permit may get a released permit.
      mayWriteLate: ({ row }) => row?.expires_at === '-infinity',
      invariant: isFree,
    })
  })
})

it('a lock that is taken away is taken away once, wherever the operator dies', async () => {
  await crash({
    setup: async (db) => {
      await crashed.schema.clock.reset()
      await db.query('insert into counter values (0)')
      await db.query(
        `insert into ${crashed.schema.name}.lock values ('x', 0, 'stuck', 100, 'infinity', '2020-01-01') on conflict do nothing`,
      )
    },
    run: (db) =>
      asProcess(db, async (_, own) => {
        await new Locks(own, new Wakeups(own, { listen: false })).forceRelease('x', { ifFence: 100 })
      }),
    invariant: async (db) => {
      const { rows } = await db.query(
        `select fence > 100 as grew, expires_at = '-infinity' as free from ${crashed.schema.name}.lock`,
      )
      assert.deepEqual(rows, [{ grew: true, free: true }])
    },
  })
})

describe('a leader that dies, sleeps or loses contact anywhere', () => {
  /** With the soak more of them: each has many points. */
  const STEPS = process.env.SOAK_SECONDS ? 2 : 1

  /** Leads for some steps, each in a transaction that nothing but the term protects, and hands over. Whatever goes wrong ends it. */
  const lead = (db: pg.Pool) =>
    asProcess(db, async (manager, own) => {
      const controller = new AbortController()
      const errors: unknown[] = []
      const fail = (error: unknown): never => {
        errors.push(error)
        controller.abort()
        throw error
      }
      const take = async (): Promise<Lock> =>
        (await manager.tryLock('leader:x', { leaseMs: TTL_MS })) ?? fail(new Error('another leads'))
      const step = (term: Term) =>
        own.transaction(async (tx) => {
          await term.guard(tx)
          const { rows } = await tx.query<{ n: number }>('select count(*)::int as n from step')
          if (rows[0] && rows[0].n < STEPS)
            await tx.query('insert into step values ($1, $2)', [term.epoch, `${rows[0].n}`])
        })
      const election = new Election(own, () => take().catch(fail), 'x', {
        signal: controller.signal,
        onElected: async (term) => {
          for (let n = 0; n < STEPS; n++) await step(term).catch(fail)
          controller.abort()
        },
      })
      await election.ended
      if (errors.length > 0) throw errors[0]
    })

  it('has led alone, and leaves it to the next', async () => {
    const report = await crash({
      run: lead,
      // The other two are those of any lock.
      modes: isDeep ? allModes : ['crash', 'zombie'],
      invariant: async (db) => {
        const { rows } = await db.query('select name from step order by place')
        assert.deepEqual(
          rows.map(({ name }) => name),
          ['0', '1'].slice(0, STEPS),
        )
        await fencesGrow(db)
        await isFree(db)
      },
    })
    expect(report.points.length).toBeGreaterThan(20)
  })
})
