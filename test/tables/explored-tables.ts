import assert from 'node:assert/strict'
import pg from 'pg'
import { afterAll, beforeAll, expect } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import type { ExploreOptions } from '../../src/testing/explore/options.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { createTestSchema, type TestSchema } from '../../src/testing/index.js'
import { exploreDibs } from '../explore-dibs.js'
import { exploredSchema } from '../explored-schema.js'

const expected = [
  // The server chooses which of several waiters gets a lock first.
  /is the server's choice|seen in one order only/,
  // These ask nothing but the catalog, or have one statement.
  /\.(?:table_fingerprint|table_changed|row_limit_lock_wait|row_wait_deadline|row_lockers|row_lock_members|row_blockers|aggregate_next_marks|aggregate_mark_range)\(.* (?:has no yield point|runs as one step)/,
]

export interface ExploredTables {
  readonly dibs: Dibs
  readonly pool: pg.Pool
  readonly schema: TestSchema
  exploreAll(options: Omit<ExploreOptions, 'pool'>): Promise<void>
  value(outcome: Outcome | undefined): Record<string, unknown>
  reason(outcome: Outcome | undefined): unknown
}

/** A Dibs on a database of its own, with tables on its search path that it has read before. */
export function exploredTables(tables: string, names: readonly string[]): ExploredTables {
  const { url } = exploredSchema(tables)
  const pool = new pg.Pool({ connectionString: url })
  pool.on('error', () => {})
  const fixture: { dibs?: Dibs; schema?: TestSchema } = {}
  beforeAll(async () => {
    const schema = await createTestSchema(pool, 'explored_dibs')
    const dibs = await Dibs.open({
      pool,
      schema: schema.name,
      listen: false,
      maintain: false,
      prepared: false,
    })
    // Steps must not depend on how long they take.
    await schema.waits.never()
    await schema.clock.freeze(new Date('2030-01-01T00:00:00Z'))
    // The caches of the process are no part of the exploration.
    for (const name of names) await dibs.transaction((tx) => dibs.rows.claim(name, { tx }))
    Object.assign(fixture, { schema, dibs })
  })
  afterAll(async () => {
    await fixture.dibs?.close()
    await pool.end()
  })
  return Object.assign(fixture as { dibs: Dibs; schema: TestSchema }, {
    pool,
    /** All schedules up to the bound, and it says so. */
    async exploreAll(options: Omit<ExploreOptions, 'pool'>): Promise<void> {
      const report = await exploreDibs({
        pool,
        ...options,
        bound: { random: 0, schedules: 5_000, ...options.bound },
      })
      if (process.env.SHOW_SCHEDULES) console.log(report.summary)
      expect(report.isComplete, report.summary).toBe(true)
      expect(report.notes.filter((note) => !expected.some((one) => one.test(note)))).toEqual([])
    },
    value(outcome: Outcome | undefined): Record<string, unknown> {
      assert.equal(outcome?.status, 'fulfilled', String((outcome as { reason?: unknown })?.reason))
      return outcome.value as Record<string, unknown>
    },
    reason: (outcome: Outcome | undefined): unknown =>
      outcome?.status === 'rejected' ? outcome.reason : undefined,
  })
}
