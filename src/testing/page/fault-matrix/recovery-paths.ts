import { count } from '../../count.js'
import { byPlace } from '../../crash/report/printout.js'
import type { CrashPoint, CrashReport, RecoveryPath } from '../../crash/report/report.js'
import { type Html, html } from '../html.js'
import { showSql } from '../show-sql.js'
import { PATH_SIGNS } from './labels.js'

/** The maximum number of statements of recovery paths. Frequent paths come first. */
const MAX_LINES = 600

export interface RecoveryPaths {
  readonly shown: readonly RecoveryPath[]
  /** The number of paths that the page leaves out. */
  readonly left: number
}

/** The paths that recovery takes only after a fault. */
export function recoveryPathsOf({ paths, points }: CrashReport): RecoveryPaths {
  const ownNames = new Set(points.filter(({ entersRecovery }) => entersRecovery).map(({ path }) => path))
  const own = paths.filter(({ name }) => ownNames.has(name)).toSorted((a, b) => b.points - a.points)
  let lines = 0
  const shown = own.filter(({ statements }) => {
    lines += statements.length
    return lines <= MAX_LINES
  })
  return { shown, left: own.length - shown.length }
}

/** The recovery paths, and the points after which recovery did nothing special. */
export function showRecoveryPaths({ shown, left }: RecoveryPaths, points: readonly CrashPoint[]): Html {
  const all = shown.length + left
  return html`<section class="ways" id="ways">
<h2>Ways that recovery took</h2>
${showIdle(points)}
${all > 0 && html`<p class="explanation">${all === 1 ? 'One way' : `${all.toLocaleString('en')} ways`} of its own, which it takes neither on fresh data nor after a run that went well.</p>`}
<div class="cards">${shown.map((path) => showRecoveryPath(path, points))}</div>
${left > 0 && html`<p class="left-out">${left === 1 ? 'One more is' : `${left.toLocaleString('en')} more are`} not on this page. <code>report.paths</code> has all.</p>`}
</section>`
}

function showRecoveryPath({ name, statements, points }: RecoveryPath, all: readonly CrashPoint[]): Html {
  const first = all.find(({ path, fault }) => path === name && fault)
  return html`<article class="way" id="way=${name}"><h3><span class="letter">${name}</span> after ${count(points, 'point')}${first && html`, first <a href="#${first.replay}">${first.replay}</a>`}</h3>
<ol>${statements.map(showStatementLine)}</ol></article>
`
}

function showStatementLine(line: string): Html {
  const at = line.lastIndexOf(' -> ')
  if (at < 0) return html`<li>${line}</li>` // the end of the recovery
  return html`<li><code>${showSql(line.slice(0, at))}</code> <span class="effect">→ ${line.slice(at + 4)}</span></li>`
}

/** The points that do not test recovery. */
function showIdle(points: readonly CrashPoint[]): Html | false {
  const faulty = points.flatMap((point) => (point.fault ? [{ ...point, fault: point.fault }] : []))
  const idle = faulty.filter(({ entersRecovery }) => !entersRecovery).toSorted(byPlace)
  if (idle.length === 0) return false
  const byPath = new Map<string, Set<string>>()
  for (const { path, fault } of idle)
    byPath.set(path, (byPath.get(path) ?? new Set()).add(`${fault.side} ${fault.statement}`))
  return html`<div class="idle"><p>After <b>${idle.length === faulty.length ? 'all' : `${idle.length.toLocaleString('en')} of`} ${count(faulty.length, 'point')}</b> recovery did nothing of its own:</p>
<ul>${[...byPath].map(
    ([path, places]) =>
      html`<li>${PATH_SIGNS[path]} ${path}: ${[...places].map((place, i) => html`${i > 0 && ', '}<a href="#${place.replace(' ', '-')}">${place}</a>`)}</li>`,
  )}</ul></div>`
}
