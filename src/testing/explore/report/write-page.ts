import { pageName, writePage } from '../../page/write-page.js'
import type { ExploreOptions } from '../options.js'
import { stepSignature } from '../schedule/trace.js'
import { explorePage } from './explore-page.js'
import type { ExploreReport, FoundRace } from './report.js'

/** Writes the page if the options or the environment want one, and adds its place to the report and the printout. */
export async function withPage(report: ExploreReport, { page }: ExploreOptions): Promise<ExploreReport> {
  const { race, actors, notes } = report
  const written = await writePage({
    page,
    name: race !== undefined && pageName(actors.join('-'), signsOf(race)),
    render: () => explorePage(report),
  })
  if (!written) return report
  const { line } = written
  return {
    ...report,
    ...(race ? { race: { ...race, printout: `${race.printout}\n  ${line}` } } : {}),
    ...('page' in written ? { page: written.page } : { notes: [...notes, written.note] }),
  }
}

const signsOf = ({ steps, failure }: FoundRace): string[] => [...steps.map(stepSignature), failure.name]
