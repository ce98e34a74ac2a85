/**
 * How the explorer works. An exploration runs the actors many times, each time in another order of their statements. The
 * folders, in the order in which data flows through them:
 *
 * 1. `../gate`: each actor is a function of the user with connections of its own. A gate stops every request on its way to
 *    the server, so that the explorer decides when it runs. A connection that takes part in a schedule is called a unit.
 * 2. `session/`: opens the connections once and keeps them for all schedules. Before each schedule it puts back the tables
 *    (`reset/`), the connections and the random numbers, and runs `setup`.
 * 3. `statements/`: parses each request and plans its steps. A step runs without interruption and is mostly one statement.
 *    The catalog knows what the functions, triggers and tables of a statement may do.
 * 4. `schedule/`: runs one schedule. Before each step, the run waits until every unit is at the gate or waits for a lock.
 *    Then the search chooses a unit, the run releases its step, and the effect is recorded in a trace.
 * 5. `footprint/`: reads from the parse tree an upper bound of what a step reads, locks and writes.
 * 6. `reduce/`: compares footprints. Two steps are independent if their order cannot matter. Of schedules that differ
 *    only in the order of independent steps, the search needs one. `reduce/reduction.ts` explains the algorithm.
 * 7. `search/`: chooses the schedules. First systematically, those with the fewest preemptions first; then, if these are
 *    too many, at random. The search judges each trace by the invariant and stops at the first failure.
 * 8. `report/`: explains the failed trace: the name of the anomaly, which unit waited for which, a printout, a page.
 */
import { RaceFoundError } from '../../errors.js'
import { identityOf } from '../identity-of.js'
import { runReplayable } from '../run-replayable.js'
import { type ExploreOptions, readExploreOptions } from './options.js'
import type { ExploreReport } from './report/report.js'
import { withPage } from './report/write-page.js'
import { Exploration, type TestHooks } from './search/exploration.js'
import { runOneAtATime } from './session/run-one-at-a-time.js'
import { TestSession } from './session/test-session.js'

/**
 * Runs the actors at the same time in every order of their statements that is within the bound, on a real PostgreSQL, and
 * checks what they leave. Throws `RaceFoundError` with the order that goes wrong; otherwise resolves to a report that
 * says how far it looked.
 *
 * @example
 * await explore({
 *   pool,
 *   setup: (db) => db.query(`insert into stock values ('lamp', 1)`),
 *   actors: { alice: (db) => buy(db, 'lamp'), bob: (db) => buy(db, 'lamp') },
 *   invariant: async (db) => {
 *     const { rows } = await db.query('select amount from stock')
 *     assert(rows[0].amount >= 0)
 *   },
 * })
 */
export function explore(options: ExploreOptions): Promise<ExploreReport> {
  return exploreWith(options, {})
}

/** `explore` with hooks for the tests of Dibs itself. */
export async function exploreWith(options: ExploreOptions, hooks: TestHooks): Promise<ExploreReport> {
  readExploreOptions(options)
  const run = (runOptions: ExploreOptions) => runOneAtATime(() => exploreNow(runOptions, hooks))
  const report = await withPage(await runReplayable('exploration', options, run), options)
  const { race } = report
  if (!race || options.throws === false) return report
  throw new RaceFoundError(race.printout, race.schedule, race.replay, report)
}

async function exploreNow(options: ExploreOptions, hooks: TestHooks): Promise<ExploreReport> {
  const settings = readExploreOptions(options)
  const testSession = await TestSession.open(settings)
  let report: ExploreReport
  try {
    report = await new Exploration(testSession, { ...settings, identity: identityOf(options) }, hooks).run()
  } catch (error) {
    await testSession.close().catch(() => {}) // report the first error
    throw error
  }
  await testSession.close()
  return report
}
