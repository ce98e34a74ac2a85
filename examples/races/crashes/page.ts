import type { CrashReport } from 'dibs/testing'
import { contentsOf, helpers, printSection, type Read } from '../page-parts.js'
import type { TriedCrash } from './accept-crashes.js'

/** The page of all crashes: docs/crashes.md. */
export function crashesPage(crashes: readonly TriedCrash[], read: Read): string {
  return [
    '<!-- Made from examples/races/crashes by `npm run docs`. Do not edit. -->',
    intro,
    contentsOf(crashes.map(({ crash }) => crash)),
    helpers(read),
    ...crashes.map((one) => section(one, read)),
  ].join('\n\n')
}

const intro = `# Crashes in print

What becomes of a record whose owner is gone? Here code that documents recommend runs on a real PostgreSQL, and ends at each of
its statements in turn: before the statement is sent, and after the server has executed it and before the answer is
seen. Then it is started again. This page shows the first point at which that leaves something wrong, as [\`crashLoop\`](crashing.md)
prints it ([how to read that](crashing.md#reading-the-printout)), and then code that survives at every point.

The documents are those of [Races in print](races.md), a page of the same kind about code that runs at the same time: *the claim
reference* is a quick reference for claims in a key-value store, *the bus analysis* an analysis of a command bus. The code
is ours, as small as it can be and still go wrong in the same way. What each starts with, and what must hold in the end, stands in its file. The tests run all of it, and this page is made of what they
print. "No harm at any of 39 points" speaks of this program and these rows,
[and of nothing else](crashing.md#what-it-claims).`

function section({ id, crash, reports }: TriedCrash, read: Read): string {
  return printSection(crash, { file: `crashes/${id}.ts`, level: '##', said: reports.map(shown), read })
}

/** What the crash loop said first, without how long it took, which is different each time. */
export const shown = ({ printout, verdict, notes }: CrashReport): string => {
  const [summary = '', next = ''] = printout.split('\n\n')
  return [
    summary.replace(/, \d+\.\d s\)/, ')'),
    next,
    ...(verdict === 'passed' ? notes.map((note) => `Note: ${note}`) : []),
  ].join('\n\n')
}
