import { afterEach, beforeEach } from 'vitest'
import type { SingletonClaimSpec, Slot } from '../../src/claims/acquire/acquire-claims.js'
import type { AcquireLease } from '../../src/claims/acquire/leased-acquire-call.js'
import type { Dibs } from '../../src/dibs.js'
import { deferred } from '../deferred.js'
import { until } from '../until.js'
import type { ClaimsFixture } from './open-claims.js'

export const HOUR_MS = 3_600_000

/** Work that goes on until it is told how to end. */
export interface Slow<Given> {
  /** The arguments of its function. */
  readonly began: Promise<Given>
  finish(how?: () => unknown): void
  readonly ended: Promise<unknown>
}

/** The parts that tests of singletons and compound claims share: empty tables, and slow callers that end with their test. */
export function acquirersOf(fixture: ClaimsFixture) {
  const running: Slow<unknown>[] = []
  beforeEach(async () => {
    const { name } = fixture.schema
    await fixture.pool.query(
      `delete from ${name}.lock; delete from ${name}.quota_entry; delete from ${name}.quota`,
    )
  })
  afterEach(async () => {
    for (const { finish, ended } of running.splice(0)) {
      finish(() => 'the test is over')
      await ended.catch(() => {})
    }
  })

  /** @param start calls what is tested, with a function that tells what it was given and waits */
  function slowly<Given>(
    start: (work: (...given: unknown[]) => Promise<unknown>) => Promise<unknown>,
  ): Slow<Given> {
    const began = deferred<Given>()
    const goOn = deferred<() => unknown>()
    const ended = start(async (...given) => {
      began.resolve(given as Given)
      return (await goOn.promise)()
    })
    ended.catch(() => {})
    const slow = { began: began.promise, finish: (how = () => 'done' as unknown) => goOn.resolve(how), ended }
    running.push(slow)
    return slow
  }

  /** A leased singleton that is at it. */
  const holdSlot = (spec: SingletonClaimSpec & { leaseMs?: number }, dibs: Dibs = fixture.dibs) =>
    slowly<[AcquireLease, Slot]>((work) =>
      dibs.singleton({ leaseMs: HOUR_MS, ...spec, mode: 'leased' }, work),
    )

  const query = async (sql: string, values: unknown[] = []): Promise<Record<string, unknown>[]> =>
    (await fixture.pool.query(sql.replaceAll('{schema}', fixture.schema.name), values)).rows

  /** Two renewals were seen: the second shows that the first has lost nothing. */
  async function untilRenewed({ signal }: AcquireLease, ends = 'max(lease_until) from {schema}.claim') {
    const seen = new Set<unknown>()
    await until(async () => {
      const [row] = await query(`select (select ${ends})::text as ends`)
      return signal.aborted || seen.add(row?.ends).size > 2
    }, 'two renewals')
  }

  /** All rows of our tables, to see that nothing has changed. */
  const everything = async () => ({
    claims: await query(
      'select scope, key, id, status, fence, holder, lease_until, outcome::text from {schema}.claim order by 1, 2',
    ),
    locks: await query('select * from {schema}.lock order by name'),
    quotas: await query('select * from {schema}.quota order by name, subject'),
    entries: await query('select * from {schema}.quota_entry order by name, id'),
  })

  /** Rows that another transaction has locked: none can be had at once. */
  async function lockedRows(): Promise<string[]> {
    const client = await fixture.pool.connect()
    const found: string[] = []
    try {
      for (const table of ['claim', 'lock', 'quota', 'quota_entry']) {
        const { rows } = await client.query(
          `select ctid from ${fixture.schema.name}.${table} t where not exists (
             select 1 from (select s.ctid from ${fixture.schema.name}.${table} s for update skip locked) free where free.ctid = t.ctid)`,
        )
        found.push(...rows.map(() => table))
      }
    } finally {
      client.release()
    }
    return found
  }

  return { slowly, holdSlot, query, untilRenewed, everything, lockedRows }
}
