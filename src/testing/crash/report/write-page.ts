import type { CrashLoopOptions } from '../options.js'
import type { CrashReport } from './report.js'

export async function withPage(report: CrashReport, _options: CrashLoopOptions): Promise<CrashReport> {
  return report
}
