import { pageName, writePage } from '../../page/write-page.js'
import type { ExploreOptions } from '../options.js'
import { signStep } from '../schedule/trace.js'
import { explorePage } from './page/explore-page.js'
import type { ExploreReport, FoundRace } from './report.js'

/** Writes the page if there is to be one; the report, and the printout of a race, say where it is. */
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

const signsOf = ({ steps, failure }: FoundRace): string[] => [...steps.map(signStep), failure.name]
