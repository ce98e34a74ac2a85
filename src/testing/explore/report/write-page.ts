import { createHash } from 'node:crypto'
import { mkdir, writeFile } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import type { ExploreOptions } from '../options.js'
import { signStep } from '../schedule/trace.js'
import { reportPage } from './page/report-page.js'
import type { ExploreReport } from './report.js'

/**
 * Writes the page of a report where the options, or for a race the environment, say so. The report says where it is. If it
 * cannot be written, a note tells, and the report stands: a race must not be lost for want of a page.
 */
export async function withPage(report: ExploreReport, { page }: ExploreOptions): Promise<ExploreReport> {
  const folder = process.env.DIBS_REPORT
  const path = page ?? (folder && report.race ? join(folder, nameOf(report)) : undefined)
  if (path === undefined) return report
  const target = resolve(path)
  try {
    await mkdir(dirname(target), { recursive: true })
    await writeFile(target, reportPage(report))
  } catch (error) {
    const note = `The page could not be written: ${(error as Error).message}`
    return { ...withLine(report, `Note: ${note}`), notes: [...report.notes, note] }
  }
  return { ...withLine(report, `Page: ${target}`), page: target }
}

function withLine(report: ExploreReport, line: string): ExploreReport {
  const { race } = report
  return race ? { ...report, race: { ...race, printout: `${race.printout}\n  ${line}` } } : report
}

/** The same race has the same name in every run, and another race another one. */
function nameOf({ actors, race }: ExploreReport): string {
  const names = actors
    .join('-')
    .replace(/[^\p{L}\p{N}-]+/gu, '_')
    .slice(0, 60)
  const signs = [...(race?.steps ?? []).map(signStep), race?.failure.name].join('\n')
  return `${names}-${createHash('sha256').update(signs).digest('hex').slice(0, 8)}.html`
}
