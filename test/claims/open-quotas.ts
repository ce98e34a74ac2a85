import { beforeEach, expect } from 'vitest'
import type { Quota } from '../../src/claims/quota/quota.js'
import type { ClaimsFixture } from './open-claims.js'
import { openClaims } from './open-claims.js'

/** A Tuesday. The clock stands there when a test begins. */
export const NOW = new Date('2026-03-10T12:00:00Z')

export interface QuotasFixture extends ClaimsFixture {
  /** Moves the clock, which stands still otherwise. */
  advance(ms: number): Promise<void>
  /** Nothing is counted that has no entry, and the other way round. */
  expectClean(...quotas: readonly Quota[]): Promise<void>
  /** The row of a subject as it is stored. */
  rowOf(subject: string): Promise<Record<string, unknown> | undefined>
  /** The number of statements that wait for a lock. */
  waiting(count: number): Promise<void>
}

/** Like `openClaims`, without quotas and with a stopped clock. */
export function openQuotas(): QuotasFixture {
  const fixture = openClaims()
  beforeEach(async () => {
    const { name } = fixture.schema
    await fixture.pool.query(`delete from ${name}.quota; delete from ${name}.quota_entry`)
    await fixture.schema.clock.freeze(NOW)
  })
  return Object.assign(fixture, {
    advance: (ms: number) => fixture.schema.clock.advance(ms),
    async expectClean(...quotas: readonly Quota[]) {
      for (const quota of quotas) expect((await quota.verify()).items).toEqual([])
    },
    async rowOf(subject: string) {
      const { rows } = await fixture.pool.query(
        `select name, used::int, held::int, overdrawn::int as over, unlisted::int, granted_limit::int as most, ends_at
         from ${fixture.schema.name}.quota where subject = $1`,
        [subject],
      )
      return rows[0]
    },
    async waiting(count: number) {
      const waits = `select from pg_catalog.pg_stat_activity
        where wait_event_type = 'Lock' and state = 'active' and query like '%${fixture.schema.name}%'`
      await expect.poll(async () => (await fixture.pool.query(waits)).rowCount).toBe(count)
    },
  })
}
