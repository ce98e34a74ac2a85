import type { CrashPoint, CrashReport } from '../../crash/report/report.js'
import { type Html, html } from '../html.js'
import type { PageView } from '../render-page.js'
import { cellId, isFailed, type Matrix, matrixOf } from './cells.js'
import type { Timelines } from './choose-timelines.js'
import { showLegend, showMatrix } from './matrix.js'
import { showBaseSheet, showCellSheet } from './point-sheet.js'
import { recoveryPathsOf, showRecoveryPaths } from './recovery-paths.js'

const FILES = [
  'page/fault-matrix/points.css',
  'page/fault-matrix/matrix.css',
  'page/fault-matrix/timeline.css',
  'page/fault-matrix/matrix.browser.js',
] as const

/** A table of all points. Beside it is a panel with the point that the reader chose, at first the first that fails. */
export function faultMatrixView(report: CrashReport, timelines: Timelines): PageView {
  const [base, ...faulty] = report.points as [CrashPoint, ...CrashPoint[]]
  const matrix = matrixOf(report)
  const shown = firstShown(report.points)
  const paths = recoveryPathsOf(report)
  const names = new Set(paths.shown.map(({ name }) => name))
  const context = { timelines, identity: report.identity, shown, paths: names }
  const cells = matrix.statements.flatMap(({ rows, statement }) =>
    rows.flatMap(({ cells }) => cells.map((cell) => cell && showCellSheet(cell, statement, context))),
  )
  const body = html`<div class="points${faulty.length === 0 && ' alone'}">
${
  faulty.length > 0 &&
  html`<div class="overview">
${showFilter(matrix)}${showMatrix(matrix, base, shown)}
${showLegend(matrix, faulty)}
</div>`
}
<div class="panel" role="region" aria-label="The point that was chosen" tabindex="0">${showBaseSheet(base, context)}${cells}</div>
</div>
${faulty.length > 0 && showRecoveryPaths(paths, report.points)}
`
  return { html: body, files: FILES }
}

/** The cell of the first point that fails, which the printout shows too. If none fails, that of the first point. */
function firstShown(points: readonly CrashPoint[]): string {
  const { fault } = points.find(isFailed) ?? points[1] ?? { fault: null }
  return fault ? cellId(fault) : 'none'
}

/** The filter exists only if some statements fail and others do not. */
function showFilter({ statements }: Matrix): Html | false {
  const cells = statements.map(({ rows }) =>
    rows.flatMap(({ cells }) => cells.flatMap((cell) => cell?.points ?? [])),
  )
  const bad = cells.filter((points) => points.some(isFailed)).length
  return (
    bad > 0 &&
    bad < cells.length &&
    html`<label class="filter"><input type="checkbox" id="only-failing"> Only what fails</label>\n`
  )
}
