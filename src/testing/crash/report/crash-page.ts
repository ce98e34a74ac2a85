import { count } from '../../count.js'
import { isFailed } from '../../page/fault-matrix/cells.js'
import { chooseTimelines, failureOf, firstOfEach } from '../../page/fault-matrix/choose-timelines.js'
import { faultMatrixView } from '../../page/fault-matrix/fault-matrix.js'
import { html } from '../../page/html.js'
import { type PageFailure, type PageFigure, renderPage } from '../../page/render-page.js'
import type { CrashPoint, CrashReport } from './report.js'

/** The report of a crash loop as a page. */
export function crashPage(report: CrashReport): string {
  const { verdict, summary, points, notes, printout } = report
  const timelines = chooseTimelines(points)
  const left = points.length - timelines.size
  return renderPage({
    isBad: verdict === 'failed',
    heading: headingOf(report),
    summary,
    explanation: verdict === 'passed' ? claimOf(points) : undefined,
    failures: failuresOf(points),
    figures: figuresOf(report),
    notes,
    leftOut:
      left > 0
        ? html`To keep it small, this page tells the stories of ${timelines.size.toLocaleString('en')} of ${count(points.length, 'run')}: first of each failure and of each cell of the table one, then of what fails. <code>report.points</code> has all, and a replay tells any of them.`
        : undefined,
    printout,
    view: faultMatrixView(report, timelines),
  })
}

function headingOf({ verdict, points }: CrashReport): string {
  if (verdict === 'passed') return 'No harm'
  return points[0] && isFailed(points[0]) ? 'Fails with nothing done to it' : 'Harm found'
}

/** Explains what a report without a failure proves, and what it does not prove. */
function claimOf(points: readonly CrashPoint[]): string {
  if (points.length < 2) return 'Nothing was done to it, and what was left was right.'
  if (points.length === 2) return 'This one point was run and was right. It says nothing about any other.'
  return 'Each of these points was run, and what was left was right. Other data, other paths through the code and several instances at once are other questions.'
}

function figuresOf({ statements, runs, points, tookMs, modes, seed }: CrashReport): readonly PageFigure[] {
  const faulty = points.filter(({ fault }) => fault)
  const failed = faulty.filter(isFailed).length
  const n = (value: number): string => value.toLocaleString('en')
  return [
    [statements === 1 ? 'statement' : 'statements', n(statements)],
    [faulty.length === 1 ? 'point' : 'points', n(faulty.length)],
    ...(failed > 0 ? [['of them fail', n(failed)] as const] : []),
    [runs === 1 ? 'run' : 'runs', n(runs)],
    ['seconds', (tookMs / 1_000).toFixed(1)],
    [modes.length === 1 ? 'mode' : 'modes', modes.join(', ')],
    ['seed', String(seed)],
  ]
}

/** Returns each different failure once, with the number of its points. */
function failuresOf(points: readonly CrashPoint[]): readonly PageFailure[] {
  const failed = points.filter(isFailed)
  const counts = new Map<string, number>()
  for (const point of failed) counts.set(failureOf(point), (counts.get(failureOf(point)) ?? 0) + 1)
  return firstOfEach(failed, failureOf).flatMap((point) => {
    const { failure, fault, replay } = point
    const total = counts.get(failureOf(point)) ?? 1
    const where =
      fault !== null
        ? html`${total > 1 && `at ${count(total, 'point')}, first `}<a href="#${replay}">${replay}</a>`
        : undefined
    return failure ? [{ name: failure.kind, message: failure.message, where }] : []
  })
}
