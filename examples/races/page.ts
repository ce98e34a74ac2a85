import type { ExploreReport } from 'dibs/testing'
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

/** The text of a file of this folder. */
export type Read = (file: string) => string

/** The page of all races: docs/races.md. */
export function racesPage(topics: readonly ExploredTopic[], read: Read): string {
  return [
    '<!-- Made from examples/races by `npm run docs`. Do not edit. -->',
    intro(topics),
    ...topics.map(contents),
    helpers(read),
    ...topics.flatMap(({ title, races }) => [`## ${title}`, ...races.map((one) => section(one, read))]),
  ].join('\n\n')
}

const intro = (topics: readonly ExploredTopic[]): string => `# Races, as recommended

${topics.flatMap(({ races }) => races).length} pieces of advice on concurrency that somebody has published and others follow. Each is shown with the order of
statements that breaks it, as [\`explore\`](exploring.md) prints it ([how to read it](exploring.md#reading-the-printout)), and with
code that holds in every order of its statements.

They come from five documents: a concurrency standard for services in many pods (*the standard*), a quick reference for claims in
a key-value store (*the reference*), a fix for a job system's races (*the fix*), a set of state-management patterns for NestJS and
Prisma (*the patterns*), and an analysis of a command bus (*the analysis*). The code is ours: theirs, made as small as it can be and
still go wrong in the same way. The tests explore all of it on every change, and this page is what they print. \`No violation in all
20 schedules\` is true of these actors on these rows, and [claims no more](exploring.md#how-far-it-looks-and-what-it-claims).`

const contents = ({ title, races }: ExploredTopic): string =>
  [
    `**${title}**`,
    '',
    ...races.map(
      ({ race, reports }) => `- [${race.title}](#${anchorOf(race.title)}): ${lineOf(race, reports)}`,
    ),
  ].join('\n')

const lineOf = (race: Race, reports: readonly ExploreReport[]): string =>
  race.line ?? reports.find((report) => report.race)?.race?.failure.message ?? ''

/** As GitHub makes them. */
const anchorOf = (title: string): string =>
  title
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(' ', '-')

const helpers = (read: Read): string => `<details>
<summary>What the code uses: <code>inTransaction</code>, and <code>kv</code>, a key-value store of one table</summary>

${code(regionOf(read('in-transaction.ts'), 'inTransaction'))}

${code(regionOf(read('kv.ts'), 'kv'))}

</details>`

function section({ id, race, reports }: ExploredRace, read: Read): string {
  const text = read(`${id}.ts`)
  const shared = regionOf(text, 'shared')
  return [
    `### ${race.title}`,
    race.claim,
    block('sql', undent(race.tables)),
    ...(shared ? [code(shared)] : []),
    ...race.variants.flatMap((variant, n) => {
      const report = reports[n]
      if (!report) throw new Error(`${id}, ${variant.name}: it was not explored. Run all of races.test.ts.`)
      const isLast = n === race.variants.length - 1
      return [
        `#### ${variant.title ?? capitalized(variant.name)}`,
        code(regionOf(text, variant.name)),
        block('', report.race?.printout ?? withoutSeconds(report.summary)),
        variant.text ?? (isLast ? race.remedy : n === 0 ? race.fault : ''),
      ].filter((part) => part !== '')
    }),
    `<sub>[examples/races/${id}.ts](../examples/races/${id}.ts)</sub>`,
  ].join('\n\n')
}

const block = (language: string, text: string): string => `\`\`\`${language}\n${text}\n\`\`\``
const code = (text: string | undefined): string => block('ts', text ?? '')

/** What stands between `// #region name` and the next `// #endregion`. */
function regionOf(text: string, name: string): string | undefined {
  const start = text.split(`// #region ${name}\n`)[1]
  return start
    ?.split('// #endregion')[0]
    ?.trimEnd()
    .replace(/^export /gm, '')
}

const undent = (sql: string): string =>
  sql
    .trim()
    .split('\n')
    .map((line) => line.trim())
    .join('\n')

const capitalized = (name: string): string => `${name.charAt(0).toUpperCase()}${name.slice(1)}`

/** How long it took is different each time. */
const withoutSeconds = (summary: string): string => summary.replace(/, \d+\.\d s\)/, ')')
