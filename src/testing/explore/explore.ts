import { RaceFoundError } from '../../errors.js'
import { runReplayable } from '../run-replayable.js'
import { checkOptions } from './check-options.js'
import type { ExploreOptions } from './options.js'
import type { ExploreReport } from './report/report.js'
import { withPage } from './report/write-page.js'
import { Exploration, type Insight } from './search/exploration.js'
import { inTurn } from './stage/in-turn.js'
import { Stage } from './stage/stage.js'

/**
 * Runs the actors at the same time in every order of their statements that is within the bound, on a real PostgreSQL, and
 * looks at what they leave. Throws `RaceFoundError` with the order that goes wrong; otherwise resolves to a report that
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

/** For tests of Dibs itself. */
export async function exploreWith(options: ExploreOptions, insight: Insight): Promise<ExploreReport> {
  checkOptions(options)
  const run = (asked: ExploreOptions) => inTurn(() => exploreNow(asked, insight))
  const report = await withPage(await runReplayable('exploration', options, run), options)
  const { race } = report
  if (!race || options.throws === false) return report
  throw new RaceFoundError(race.printout, race.schedule, race.replay, report)
}

async function exploreNow(options: ExploreOptions, insight: Insight): Promise<ExploreReport> {
  const stage = await Stage.open(options)
  let report: ExploreReport
  try {
    report = await new Exploration(stage, options, insight).run()
  } catch (error) {
    await stage.close().catch(() => {}) // the first error is the one to be told
    throw error
  }
  await stage.close()
  return report
}
