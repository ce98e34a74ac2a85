import { type Html, html } from '../../../page/html.js'
import { showFigures, showNotes, showVerdict } from '../../../page/report-head.js'
import { count } from '../../count.js'
import type { CrashPoint, CrashReport } from '../report.js'
import { isFailed } from './cells.js'
import { failureOf, firstOfEach } from './stories.js'

/** So many failures are at the top; the others are a click away. */
const MOST_FAILURES = 3
const MOST_MORE = 50

export function titleOf({ verdict, points }: CrashReport): string {
  if (verdict === 'passed') return 'No harm'
  return points[0] && isFailed(points[0]) ? 'Fails with nothing done to it' : 'Harm found'
}

/** The verdict, and what it rests on. `told`: how many points have their story on the page. */
export function showHead(report: CrashReport, told: number): Html {
  const { verdict, summary, notes, points } = report
  const left = points.length - told
  return html`${showVerdict({ isBad: verdict === 'failed', title: titleOf(report) })}
<p class="summary">${summary}</p>
${verdict === 'passed' && html`<p class="explanation">${claimOf(report)}</p>`}
${showFailures(points.filter(isFailed))}
${showFigures(figuresOf(report))}
${showNotes(notes)}
${left > 0 && html`<p class="left-out">To keep it small, this page tells the stories of ${told.toLocaleString('en')} of ${count(points.length, 'run')}: first of each failure and of each cell of the table one, then of what fails. <code>report.points</code> has all, and a replay tells any of them.</p>`}`
}

/** What a report that found nothing stands for, and what not. */
function claimOf({ points }: CrashReport): string {
  if (points.length < 2) return 'Nothing was done to it, and what was left was right.'
  if (points.length === 2) return 'This one point was run and was right. It says nothing about any other.'
  return 'Each of these points was run, and what was left was right. Other data, other paths through the code and several instances at once are other questions.'
}

function figuresOf({ statements, runs, points, tookMs, modes, seed }: CrashReport) {
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
  ] as const
}

/** Each failure once, with how many points it is found at. */
function showFailures(failed: readonly CrashPoint[]): Html | false {
  if (failed.length === 0) return false
  const firsts = firstOfEach(failed, failureOf)
  const counts = new Map<string, number>()
  for (const point of failed) counts.set(failureOf(point), (counts.get(failureOf(point)) ?? 0) + 1)
  const show = (point: CrashPoint): Html => showFailure(point, counts.get(failureOf(point)) ?? 1)
  const more = firsts.slice(MOST_FAILURES, MOST_FAILURES + MOST_MORE)
  const left = firsts.length - MOST_FAILURES - more.length
  return html`<ul class="failures">${firsts.slice(0, MOST_FAILURES).map(show)}</ul>
${more.length > 0 && html`<details class="more-failures"><summary>and ${count(firsts.length - MOST_FAILURES, 'other failure')}</summary><ul class="failures">${more.map(show)}</ul>${left > 0 && html`<p>and ${left.toLocaleString('en')} more, which are in <code>report.points</code></p>`}</details>`}`
}

function showFailure({ failure, fault, replay }: CrashPoint, points: number): Html {
  return html`<li class="failure"><b>${failure?.kind}</b> <span>${failure?.message}</span>${fault !== null && html` <span class="where">${points > 1 && `at ${count(points, 'point')}, first `}<a href="#${replay}">${replay}</a></span>`}</li>
`
}
