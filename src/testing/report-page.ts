import { crashPage } from './crash/report/crash-page.js'
import type { CrashReport } from './crash/report/report.js'
import { explorePage } from './explore/report/explore-page.js'
import type { ExploreReport } from './explore/report/report.js'

/**
 * A report as a page that needs nothing beside itself. Of `explore`: the schedule as lanes, to be stepped through with the
 * arrow keys. Of `crashLoop`: a table of all points, and what happened at each.
 *
 * @example
 * import { writeFile } from 'node:fs/promises'
 *
 * const report = await explore({ pool, actors: { alice: (db) => buy(db, 'lamp') }, throws: false })
 * await writeFile('race.html', reportPage(report))
 */
export const reportPage = (report: ExploreReport | CrashReport): string =>
  'points' in report ? crashPage(report) : explorePage(report)
