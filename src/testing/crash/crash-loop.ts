import { CrashFoundError } from '../../errors.js'
import { inTurn } from '../explore/stage/in-turn.js'
import { Stage } from '../explore/stage/stage.js'
import { runReplayable } from '../run-replayable.js'
import { checkOptions, checkReplay } from './check-options.js'
import { CrashSearch } from './crash-search.js'
import type { CrashLoopOptions } from './options.js'
import { makeReport } from './report/make-report.js'
import type { CrashReport } from './report/report.js'
import { withPage } from './report/write-page.js'
import { InstanceTimers } from './timers.js'

/**
 * Runs the program again and again on a real PostgreSQL, and each time does something to it at another point: before a
 * statement is sent, and after the server has executed it and before the answer is seen. Then lets a fresh instance recover,
 * and looks at what is left. Throws `CrashFoundError` if that is wrong at some point; otherwise resolves to a report of all.
 *
 * @example
 * await crashLoop({
 *   pool,
 *   setup: (db) => db.query(`insert into stock values ('lamp', 1)`),
 *   run: (db) => buy(db, 'lamp'),
 *   invariant: async (db) => {
 *     const { rows } = await db.query('select amount from stock')
 *     assert(rows[0].amount === 0)
 *   },
 * })
 */
export async function crashLoop(options: CrashLoopOptions): Promise<CrashReport> {
  checkOptions(options)
  const run = (asked: CrashLoopOptions) => inTurn(() => loopNow(asked))
  const report = await withPage(await runReplayable('crash loop', options, run), options)
  const failed = report.points.find(({ verdict }) => verdict === 'failed')
  if (!failed || options.throws === false) return report
  throw new CrashFoundError(report.printout, `${failed.replay}@${report.identity}`, report)
}

async function loopNow(options: CrashLoopOptions): Promise<CrashReport> {
  checkReplay(options)
  const { run, recover = run, pool } = options
  const stage = await Stage.open({
    ...options,
    actors: { run, recovery: recover } as never,
    time: 'run',
    keepsIdleTimeouts: true,
  })
  const timers = new InstanceTimers()
  // A server that is shut down ends the pool's idle connections, of which it tells.
  const ignore = (): void => {}
  pool?.on('error', ignore)
  let report: CrashReport
  try {
    report = makeReport(await new CrashSearch(stage, options, () => timers.sweep()).run(), options)
  } catch (error) {
    await stage.close().catch(() => {}) // the first error is the one to be told
    throw error
  } finally {
    timers.close()
    pool?.off('error', ignore)
  }
  await stage.close()
  return report
}
