import { pageName, writePage } from '../../page/write-page.js'
import type { CrashLoopOptions } from '../options.js'
import { isFailed, lineAt } from './page/cells.js'
import { crashPage } from './page/crash-page.js'
import type { CrashPoint, CrashReport } from './report.js'

/** Writes the page if there is to be one; the report and its printout say where it is. */
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

/** Not with its values, which may be others in every run. */
const signPoint = (point: CrashPoint): string =>
  `${point.replay} ${point.failure?.kind} ${lineAt(point)?.text}`
