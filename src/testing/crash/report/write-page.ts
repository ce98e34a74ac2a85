import { isFailed, lineAt } from '../../page/fault-matrix/cells.js'
import { pageName, writePage } from '../../page/write-page.js'
import type { CrashLoopOptions } from '../options.js'
import { crashPage } from './crash-page.js'
import type { CrashPoint, CrashReport } from './report.js'

/** Writes the page where the options or `DIBS_REPORT` ask for one, and adds its path to the report and the printout. */
export async function withPage(report: CrashReport, { page }: CrashLoopOptions): Promise<CrashReport> {
  const { verdict, points, printout, notes } = report
  const written = await writePage({
    page,
    name: verdict === 'failed' && pageName('crash', points.filter(isFailed).map(signPoint)),
    render: () => crashPage(report),
  })
  if (!written) return report
  return {
    ...report,
    printout: `${printout}\n\n${written.line}`,
    ...('page' in written ? { page: written.page } : { notes: [...notes, written.note] }),
  }
}

/** Identifies a failed point without its parameters, which may differ from run to run. */
const signPoint = (point: CrashPoint): string =>
  `${point.replay} ${point.failure?.kind} ${lineAt(point)?.text}`
