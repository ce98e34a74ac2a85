import { CrashFoundError } from '../../errors.js'
import { runOneAtATime } from '../explore/session/run-one-at-a-time.js'
import { TestSession } from '../explore/session/test-session.js'
import { runReplayable } from '../run-replayable.js'
import { checkOptions, checkReplay } from './check-options.js'
import { CrashSearch } from './crash-search.js'
import { InstanceTimers } from './instance-timers.js'
import type { CrashLoopOptions } from './options.js'
import { makeReport } from './report/make-report.js'
import type { CrashReport } from './report/report.js'
import { withPage } from './report/write-page.js'

/**
 * Runs the program again and again on a real PostgreSQL, and injects a fault at another point each time: before a statement
 * is sent, or after the server has executed it and before the response arrives. Then a fresh instance recovers, and the
 * loop checks the result. Throws `CrashFoundError` if a point fails. Otherwise resolves to a report of all points.
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
  const run = (replayed: CrashLoopOptions) => runOneAtATime(() => runLoop(replayed))
  const report = await withPage(await runReplayable('crash loop', options, run), options)
  const failed = report.points.find(({ verdict }) => verdict === 'failed')
  if (!failed || options.throws === false) return report
  throw new CrashFoundError(report.printout, `${failed.replay}@${report.identity}`, report)
}

async function runLoop(options: CrashLoopOptions): Promise<CrashReport> {
  checkReplay(options)
  const { run, recover = run, pool } = options
  const testSession = await TestSession.open({
    ...options,
    actors: { run, recovery: recover } as never,
    runName: 'run',
    keepsIdleTimeouts: true,
  })
  const timers = new InstanceTimers()
  // A server that shuts down ends the pool's idle connections, and the pool emits an error for each.
  const ignore = (): void => {}
  pool?.on('error', ignore)
  let report: CrashReport
  try {
    report = makeReport(await new CrashSearch(testSession, options, () => timers.sweep()).run(), options)
  } catch (error) {
    await testSession.close().catch(() => {}) // report the first error, not this one
    throw error
  } finally {
    timers.close()
    pool?.off('error', ignore)
  }
  await testSession.close()
  return report
}
