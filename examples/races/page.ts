import type { ExploreReport } from 'dibs/testing'
import { contentsOf, helpers, printSection, type Read } from './page-parts.js'
import type { Race } from './race.js'

/** A race and what the explorer said of its variants, in their order. */
export interface ExploredRace {
  readonly id: string
  readonly race: Race
  readonly reports: ExploreReport[]
}

export interface ExploredTopic {
  readonly title: string
  readonly races: readonly ExploredRace[]
}

/** The page of all races: docs/races.md. */
export function racesPage(topics: readonly ExploredTopic[], read: Read): string {
  return [
    '<!-- Made from examples/races by `npm run docs`. Do not edit. -->',
    intro,
    ...topics.map(contents),
    helpers(read),
    ...topics.flatMap(({ title, races }) => [`## ${title}`, ...races.map((one) => section(one, read))]),
  ].join('\n\n')
}

const intro = `# Races in print

Five documents advise on concurrency. Here their advice, and here and there what is common practice, runs on a real PostgreSQL, in
every order of the statements. Where it does not hold, this page shows the order that breaks it, as [\`explore\`](exploring.md) prints it
([how to read that](exploring.md#reading-the-printout)), and then code that holds in every order.

The documents: a concurrency standard for services in many pods (*the pod standard*), a quick reference for claims in a
key-value store (*the claim reference*), a fix for a job system's races (*the job fix*), a set of state-management patterns for
NestJS and Prisma (*the NestJS patterns*), and an analysis of a command bus (*the bus analysis*). The code is ours, as small
as it can be and still go wrong in the same way, at READ COMMITTED, the default of PostgreSQL. Where a printout says
"with nobody in between", no bad timing is needed: the code goes wrong also when one runs after the other.

The tests run all of it, and this page is made of what they print. "No violation in all 6 distinguishable schedules" speaks
of these actors and these rows, [and of nothing else](exploring.md#how-far-it-looks-and-what-it-claims).`

const contents = ({ title, races }: ExploredTopic): string =>
  [`**${title}**`, '', contentsOf(races.map(({ race }) => race))].join('\n')

function section({ id, race, reports }: ExploredRace, read: Read): string {
  return printSection(race, { file: `${id}.ts`, level: '###', said: reports.map(shown), read })
}

/** What the explorer said, without how long it took, which is different each time. */
export const shown = (report: ExploreReport): string =>
  report.race?.printout ??
  [report.summary.replace(/, \d+\.\d s\)/, ')'), ...report.notes.map((note) => `  Note: ${note}`)].join('\n')
