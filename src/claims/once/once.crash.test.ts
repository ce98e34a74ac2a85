import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import pg from 'pg'
import { describe, expect, it } from 'vitest'
// @ts-expect-error: plain JavaScript, since a process of its own runs it too
import { pay, payments } from '../../../test/children/pay-code.mjs'
import { crashedDatabase } from '../../../test/crashed-database.js'
import { startPostgres } from '../../../test/postgres-server.js'
import { Dibs } from '../../dibs.js'
import { AmbiguousOutcomeError, type DibsError, InProgressError } from '../../errors.js'
import { Maintenance } from '../../ops/maintenance.js'
import { Database } from '../../postgres/database.js'
import { crashLoop } from '../../testing/crash/crash-loop.js'
import { recordEffects } from '../../testing/crash/effects.js'
import type { CrashLoopOptions } from '../../testing/crash/options.js'
import { createTestSchema } from '../../testing/test-schema.js'
import { onceOn } from './once.js'
import type { LeasedSpec } from './once-spec.js'
import { Operation } from './operation.js'

const crashed = crashedDatabase(
  'create table done (key text not null); create table paid (key text primary key)',
)
const { pool } = crashed

const LEASE_MS = 60_000
const at = { scope: 's', key: 'k' }

/** The state of a process, which a crash loses. */
async function asProcess<T>(db: pg.Pool, fn: (own: Database) => Promise<T>): Promise<T> {
  const own = new Database(db, { schema: crashed.schema.name, prepared: true })
  try {
    return await fn(own)
  } finally {
    await own.close()
  }
}

const crash = (options: CrashLoopOptions) =>
  crashLoop({
    pool,
    setup: () => crashed.schema.clock.reset(),
    advance: () => crashed.schema.clock.advance(20 * LEASE_MS),
    bound: { recoveries: 6 },
    ...options,
  })

const statusOf = async (db: pg.Pool): Promise<string | undefined> => {
  const { rows } = await db.query(`select status from ${crashed.schema.name}.claim`)
  return rows[0]?.status
}

describe('joined', () => {
  it('is there once, wherever it dies', async () => {
    const report = await crash({
      run: (db) =>
        asProcess(db, (own) =>
          onceOn(own)(at, (tx) => tx.query("insert into done values ('k')").then(() => 'answer')),
        ),
      invariant: async (db) => {
        const { rows } = await db.query('select key from done')
        assert.equal(rows.length, 1)
        assert.equal(await statusOf(db), 'active')
      },
    })
    expect(report.verdict).toBe('passed')
    expect(report.points.length).toBeGreaterThan(5)
  })
})

describe('leased', () => {
  const payWith = (db: pg.Pool, effects: ReturnType<typeof recordEffects>, spec: Partial<LeasedSpec> = {}) =>
    asProcess(db, (own) =>
      onceOn(own)({ ...at, mode: 'leased', leaseMs: LEASE_MS, ...spec } as LeasedSpec, (claim) =>
        effects.perform('pay', claim.idempotencyKey),
      ),
    )

  it.each([
    ['it dies', false],
    ['it dies, and whoever comes after it', true],
  ])('pays once where a repetition is known by its key, and is never left pending: %s', async (_, twice) => {
    const effects = recordEffects({ dedupes: true })
    const report = await crash({
      effects,
      duringRecovery: twice,
      run: (db) => payWith(db, effects),
      invariant: async (db) => {
        assert.equal(effects.count('pay'), 1)
        assert.equal(await statusOf(db), 'active')
      },
    })
    expect(report.verdict).toBe('passed')
  })

  it('with hold pays once at most where no repetition is known, and says so if it may not have', async () => {
    const effects = recordEffects()
    let held = 0
    const report = await crash({
      effects,
      run: (db) => payWith(db, effects, { onAmbiguous: 'hold' }),
      recover: async (db) => {
        try {
          await payWith(db, effects, { onAmbiguous: 'hold' })
        } catch (error) {
          if (!(error instanceof AmbiguousOutcomeError)) throw error
          held++ // held on purpose: a person has to decide
        }
      },
    })
    expect(report.verdict).toBe('passed')
    expect(held).toBeGreaterThan(0)
  })

  it('with a function that finds out pays exactly once', async () => {
    const effects = recordEffects()
    const spec: Partial<LeasedSpec> = {
      onAmbiguous: () => {
        const [paid] = effects.performed
        return paid ? { outcome: paid.answer } : 'retry'
      },
    }
    const report = await crash({
      effects,
      // A process that wakes up late may send the payment again. Only the bank can recognize the repetition.
      modes: ['crash', 'error', 'half-open'],
      run: (db) => payWith(db, effects, spec),
      invariant: async (db) => {
        assert.equal(effects.count('pay'), 1)
        assert.equal(await statusOf(db), 'active')
      },
    })
    expect(report.verdict).toBe('passed')
  })
})

describe('an operation', () => {
  const define = (own: Database, effects: ReturnType<typeof recordEffects>) =>
    new Operation(
      own,
      'pay',
      { leaseMs: LEASE_MS, maxAttempts: 20 },
      async (input: { amount: number }, claim) => {
        const paid = await claim.step('pay', ({ idempotencyKey }) =>
          effects.perform('pay', idempotencyKey, input),
        )
        await claim.step('mail', ({ idempotencyKey }) => effects.perform('mail', idempotencyKey))
        return paid
      },
    )

  // Pairs of crash points are many. The soak runs them.
  const cases: [string, boolean][] = [['it dies', false]]
  if (process.env.SOAK_SECONDS) cases.push(['it dies, and who finishes it too', true])
  it.each(cases)('is finished by another process, though nobody calls again: %s', async (_, twice) => {
    const effects = recordEffects({ dedupes: true })
    const report = await crash({
      effects,
      duringRecovery: twice,
      run: (db) => asProcess(db, (own) => define(own, effects).run({ amount: 7 }, { key: 'k' })),
      recover: (db) =>
        asProcess(db, (own) =>
          new Maintenance(own, { operations: new Map([['pay', define(own, effects)]]) }).run(),
        ),
      // Without a claim, no work was begun.
      progress: async (db) => (await statusOf(db)) !== 'pending',
      invariant: async (db) => {
        const status = await statusOf(db)
        const expected = status === 'active' ? 1 : 0
        assert(status === 'active' || status === undefined, `it is ${status}`)
        assert.deepEqual([effects.count('pay'), effects.count('mail')], [expected, expected])
      },
    })
    expect(report.verdict).toBe('passed')
  })

  it('goes on when its caller calls again, and does no step twice that was recorded', async () => {
    const effects = recordEffects({ dedupes: true })
    const run = (db: pg.Pool) => asProcess(db, (own) => define(own, effects).run({ amount: 7 }, { key: 'k' }))
    const report = await crash({
      effects,
      run,
      recover: run,
      invariant: async (db, { recoveries }) => {
        assert.deepEqual([effects.count('pay'), effects.count('mail')], [1, 1])
        assert.equal(await statusOf(db), 'active')
        for (const told of recoveries)
          if (told?.status === 'rejected')
            assert((told.reason as DibsError).retryable || told.reason instanceof InProgressError)
      },
    })
    expect(report.verdict).toBe('passed')
  })
})

/** The crash points of an operation are tested above. Its processes and servers come with the soak. */
const ways = process.env.SOAK_SECONDS ? (['leased', 'operation'] as const) : (['leased'] as const)
describe.each(ways)('real crashes of a payment that is %s', (how) => {
  const run = (name: string) => (db: pg.Pool) => pay(how, db, name, { Database, onceOn, Operation })
  const invariantOf = (name: string) => async (db: pg.Pool) => {
    const { rows } = await db.query(
      `select (select count(*)::int from paid) as rows, (select status from ${name}.claim) as status`,
    )
    assert.deepEqual(rows, [{ rows: payments[how].rows, status: 'active' }])
  }

  it('of processes: killed, or stopped and woken up late', { timeout: 120_000 }, async () => {
    const program = join(import.meta.dirname, '../../../test/children/pay.mjs')
    const report = await crash({
      modes: ['crash', 'zombie', 'process'],
      run: run(crashed.schema.name),
      child: (DATABASE_URL) =>
        spawn(process.execPath, [program], {
          env: { ...process.env, DATABASE_URL, PAY_HOW: how, PAY_SCHEMA: crashed.schema.name },
          stdio: 'ignore',
        }),
      invariant: invariantOf(crashed.schema.name),
      bound: { processPoints: 12, recoveries: 6 },
    })
    expect(report.verdict).toBe('passed')
    const processes = report.points.filter(({ fault }) => fault?.mode === 'process')
    expect(processes.length).toBe(12)
    expect(processes.filter(({ agrees }) => !agrees).map(({ replay }) => replay)).toEqual([])
  })

  it('of the server, at each commit', { timeout: 120_000 }, async () => {
    const server = await startPostgres({ durable: true })
    const own = new pg.Pool({ connectionString: server.url })
    own.on('error', () => {})
    try {
      const there = await createTestSchema(own)
      await (await Dibs.open({ pool: own, schema: there.name, listen: false })).close()
      await own.query('create table paid (key text primary key)')
      const report = await crashLoop({
        pool: own,
        modes: ['server'],
        setup: () => there.clock.reset(),
        advance: () => there.clock.advance(20 * LEASE_MS),
        run: run(there.name),
        invariant: invariantOf(there.name),
      })
      expect(report.verdict).toBe('passed')
      expect(report.points.length).toBeGreaterThan(4)
    } finally {
      await own.end()
      await server.stop()
    }
  })
})
