import { type Html, html } from '../../../page/html.js'
import { pageDocument } from '../../../page/page-document.js'
import { showPrintout } from '../../../page/report-head.js'
import type { CrashPoint, CrashReport } from '../report.js'
import { cellId, isFailed, type Matrix, matrixOf } from './cells.js'
import { showHead, titleOf } from './crash-head.js'
import { showLegend, showMatrix } from './matrix.js'
import { showBaseSheet, showCellSheet } from './show-cell.js'
import { type Stories, tellStories } from './stories.js'
import { showWays, waysOf } from './ways.js'

const FILES = [
  'page/report-head.css',
  'page/statements.css',
  'crash/report/page/crash-page.css',
  'crash/report/page/matrix.css',
  'crash/report/page/tale.css',
  'crash/report/page/matrix.browser.js',
] as const

/** As many characters of the printout; it has a line for each point that fails, and for each statement of each way. */
const MOST_PRINTOUT = 60_000

/** A table of all points, and beside it what happened at the one that was chosen; at first the first that fails. */
export function crashPage(report: CrashReport): string {
  const failed = report.points.find(isFailed)
  const stories = tellStories(report.points)
  return pageDocument({
    title: failed?.failure ? `${titleOf(report)}: ${failed.failure.message.split('\n')[0]}` : report.summary,
    isBad: report.verdict === 'failed',
    files: FILES,
    body: html`<main>${showHead(report, stories.size)}${showPoints(report, stories)}</main>`,
  })
}

function showPoints(report: CrashReport, stories: Stories): Html {
  const [base, ...faulty] = report.points
  if (!base) return html``
  const matrix = matrixOf(report)
  const shown = firstShown(report.points)
  const ways = waysOf(report)
  const context = {
    stories,
    identity: report.identity,
    shown,
    ways: new Set(ways.shown.map(({ name }) => name)),
  }
  return html`<div class="points${faulty.length === 0 && ' alone'}">
${
  faulty.length > 0 &&
  html`<div class="overview">
${showFilter(matrix)}${showMatrix(matrix, base, shown)}
${showLegend(matrix, faulty)}
</div>`
}
<div class="panel" role="region" aria-label="The point that was chosen" tabindex="0">${showBaseSheet(base, context)}${matrix.statements.flatMap(
    ({ rows, statement }) =>
      rows.flatMap(({ cells }) => cells.map((cell) => cell && showCellSheet(cell, statement, context))),
  )}</div>
</div>
${faulty.length > 0 && showWays(ways, report.points)}
<div class="replay">${showPrintout(shorten(report.printout))}</div>`
}

const shorten = (printout: string): string =>
  printout.length <= MOST_PRINTOUT
    ? printout
    : `${printout.slice(0, MOST_PRINTOUT)}…\n\nThe rest of it is in report.printout.`

/** That of the first point that fails, which the printout tells too; else of the first at all. */
function firstShown(points: readonly CrashPoint[]): string {
  const { fault } = points.find(isFailed) ?? points[1] ?? { fault: null }
  return fault ? cellId(fault) : 'none'
}

/** Where rows that are fine would hide those that are not. */
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
