import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { LockManager } from '../../src/locks/lock-manager.js'
import { Database } from '../../src/postgres/database.js'
import { Wakeups } from '../../src/postgres/wakeups.js'
import {
  beginFlight,
  dropFlight,
  finishFlight,
  forgetFlights,
} from '../../src/single-flight/flight-statements.js'
import { SingleFlightManager } from '../../src/single-flight/single-flight-manager.js'
import type { ExploreOptions } from '../../src/testing/explore/options.js'
import type { ExploreReport } from '../../src/testing/explore/report/report.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { NOW } from '../claims/explored-claims.js'
import { exploreDibs } from '../explore-dibs.js'
import { type Depth, exploredLocks, TTL_MS } from '../locks/explored-locks.js'
import { withoutLine } from '../locks/without-line.js'

/** The result of `flight_begin` and `flight_publish`. */
export interface FlightResult {
  readonly state: string
  readonly fence?: number
  readonly value?: unknown
  readonly failure?: unknown
  readonly lead?: { readonly fence: number } | null
  readonly after?: number
  readonly isForgotten?: boolean
  readonly isNewer?: boolean
  readonly isWanted?: boolean
}

/** One process, which has nothing in memory before. */
export interface FlightProcess {
  readonly db: Pool
  begin(
    holder: string,
    options?: { after?: number; wantedMs?: number; early?: number },
  ): Promise<FlightResult>
  finish(
    holder: string,
    fence: number,
    outcome: { value?: unknown; failure?: unknown },
    ttlMs?: number,
  ): Promise<FlightResult>
  /** Waits for nothing that another does: the explorer decides who is next. */
  readonly fly: SingleFlightManager['singleFlight']
  drop(): Promise<unknown>
  maintain(): Promise<unknown>
}

const KEEP_MS = '60000'

/** The key `k`, which nobody has loaded, or as `before` has it; and the clock that `timePasses` moves past every lease. */
export function exploredFlights(bound: Depth) {
  const { fixture, rowsOf, timePasses } = exploredLocks(bound)

  const asProcess =
    <T>(fn: (process: FlightProcess) => Promise<T>) =>
    async (db: Pool): Promise<T> => {
      const database = withoutLine(new Database(db, { schema: fixture.schema.name, prepared: false }))
      const wakeups = new Wakeups(database, { listen: false })
      const manager = new LockManager(database, wakeups)
      const flights = new SingleFlightManager(manager.context)
      const ask = async (...[statement, values]: Parameters<Database['send']>): Promise<FlightResult> =>
        JSON.parse(`${(await database.send(statement, values))[0]?.result}`)
      try {
        return await fn({
          db,
          begin: (holder, { after, wantedMs = 1_000, early = 0 } = {}) =>
            ask(beginFlight, [
              ...['k', after === undefined ? null : String(after), holder],
              ...[TTL_MS, wantedMs, early].map(String),
            ]),
          finish: (holder, fence, { value, failure }, ttlMs = TTL_MS) =>
            ask(finishFlight, [
              ...['k', holder, String(fence)],
              ...[value, failure].map((one) => (one === undefined ? null : JSON.stringify(one))),
              ...['1', String(ttlMs), '0', KEEP_MS, '60000'],
            ]),
          fly: flights.singleFlight,
          drop: () => database.send(dropFlight, ['k', KEEP_MS, '60000']),
          maintain: async () => (await database.send(forgetFlights, ['10']))[0]?.count,
        })
      } finally {
        flights.stopWaiting()
        await database.close()
        manager.close()
        await wakeups.close()
      }
    }

  /** All schedules up to the bound, and it says so. */
  async function exploreAll(
    options: Omit<ExploreOptions, 'pool' | 'setup'> & { readonly before?: string },
  ): Promise<ExploreReport> {
    const { before = '', ...others } = options
    const report = await exploreDibs({
      pool: fixture.pool,
      setup: async (db) => {
        await db.query("select setval('public.tick', 1)")
        if (before) await rowsOf(db, before)
      },
      bound: bound(1),
      ...others,
    })
    assert(report.isComplete, report.summary)
    assert.deepEqual(
      report.notes.filter((note) => !expected.some((one) => one.test(note))),
      [],
    )
    if (process.env.SHOW_SCHEDULES) console.log(report.summary)
    return report
  }

  const flightOf = async (db: Pool) => (await rowsOf(db, 'select * from {schema}.flight'))[0]
  const isLeadFree = async (db: Pool): Promise<boolean> =>
    (await rowsOf(db, "select from {schema}.lock where expires_at > '-infinity'")).length === 0

  return { asProcess, exploreAll, rowsOf, timePasses, flightOf, isLeadFree }
}

/** SQL that puts a value there, loaded under fence 50. */
export const valueThere = (freshUntil: string, staleUntil: string): string =>
  `insert into {schema}.flight (key, fence, value, load_ms, fresh_until, stale_until, keep_until)
   values ('k', 50, '"old"', 1, '${freshUntil}', '${staleUntil}', '2031-01-01')`

/** SQL that gives the lead to `ann` under fence 100, until time passes. */
export const leadHeld = `insert into {schema}.lock values ('flight:k', 0, 'ann', 100, '${NOW}'::timestamptz + interval '1 second', '${NOW}')`

export const readResult = <T = FlightResult>(outcome: Outcome | undefined): T => {
  assert.equal(outcome?.status, 'fulfilled', String((outcome as { reason?: unknown })?.reason))
  return outcome.value as T
}

const expected = [
  // The server chooses which of several waiters gets a lock first.
  /seen in one order only/,
  // The clock, which is one read here.
  /\.clock\(\) runs as one step/,
  // This function reads a setting of the session.
  /\.require_durable_commit\(\) (?:has no yield point|runs as one step)/,
]
