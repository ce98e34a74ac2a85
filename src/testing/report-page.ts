import { explorePage } from './explore/report/page/explore-page.js'
import type { ExploreReport } from './explore/report/report.js'

/**
 * A report as a page that needs nothing beside itself: the schedule as lanes, to be stepped through with the arrow keys.
 *
 * @example
 * import { writeFile } from 'node:fs/promises'
 *
 * const report = await explore({ pool, actors: { alice: (db) => buy(db, 'lamp') }, throws: false })
 * await writeFile('race.html', reportPage(report))
 */
export const reportPage = (report: ExploreReport): string => explorePage(report)
