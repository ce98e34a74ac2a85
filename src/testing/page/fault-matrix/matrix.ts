import { count } from '../../count.js'
import type { CrashPoint } from '../../crash/report/report.js'
import { type Html, html } from '../html.js'
import { showSql } from '../show-sql.js'
import { type Cell, isFailed, type Matrix, type SideRow, type StatementRows } from './cells.js'
import { COLUMN_WORDS, cellName, PATH_SIGNS } from './labels.js'

/** The table of points: a row for each place, a column for each mode. Each cell links to its points. */
export function showMatrix({ columns: names, statements }: Matrix, base: CrashPoint, shown: string): Html {
  const columns = names.length + 1
  return html`<table class="matrix${names.length > 4 && ' many'}">
<thead><tr><td></td>${names.map((name) => html`<th scope="col" title="${COLUMN_WORDS[name]}">${name}</th>`)}</tr></thead>
<tbody class="fine"><tr><th scope="row" colspan="${columns}" class="nothing">${showLink('none', shown, base)}</th></tr></tbody>
${statements.map((one) => showStatementRows(one, columns, shown))}
</table>`
}

const showLink = (id: string, shown: string, base: CrashPoint): Html =>
  html`<a href="#${id}"${current(id, shown)}>With nothing done to it ${isFailed(base) ? '✕ fails' : '✓'}</a>`

const current = (id: string, shown: string): Html | false => id === shown && html` aria-current="true"`

function showStatementRows({ number, statement, rows }: StatementRows, columns: number, shown: string): Html {
  return html`<tbody class="${rows.every(isFine) && 'fine'}">
<tr class="statement"><th scope="rowgroup" colspan="${columns}" title="${statement}"><span class="nth">${number}</span><code>${showSql(statement)}</code></th></tr>
${rows.map((row) => showRow(row, shown))}</tbody>
`
}

const isFine = ({ cells }: SideRow): boolean => !cells.some((cell) => cell?.points.some(isFailed))

function showRow(row: SideRow, shown: string): Html {
  return html`<tr id="${row.id}" class="${isFine(row) && 'fine'}"><th scope="row">${row.place.side}</th>${row.cells.map(
    (cell) => html`<td>${cell ? showCell(cell, shown) : html`<span class="none">–</span>`}</td>`,
  )}</tr>
`
}

function showCell(cell: Cell, shown: string): Html {
  const { id, points } = cell
  const failed = points.filter(isFailed).length
  const paths = [...new Set(points.map(({ path }) => path))]
  const words = `${cellName(cell)}: ${showOutcome(points.length, failed)}. Recovery: ${paths.length > 4 ? `${paths.length} ways` : paths.join(', ')}`
  return html`<a href="#${id}" class="${failed > 0 ? 'bad' : 'good'}" title="${words}" aria-label="${words}"${current(id, shown)}><span>${showSigns(points.length, failed)}</span><small>${showPaths(paths)}</small></a>`
}

function showOutcome(points: number, failed: number): string {
  if (points === 1) return failed > 0 ? 'fails' : 'right'
  return failed > 0 ? `${failed} of ${count(points, 'point')} fail` : `all ${points} points right`
}

function showSigns(points: number, failed: number): Html {
  if (failed === 0) return html`✓${points > 1 && ` ${points}`}`
  return html`✕ ${points > 1 ? `${failed}/${points}` : html`<span class="word">fails</span>`}`
}

/** Nothing if the cell has no space for the names. */
function showPaths(paths: readonly string[]): string {
  const shown = paths.map((name) => PATH_SIGNS[name] ?? name).join(' ')
  return shown.length > 3 ? '' : shown
}

/** The meaning of the signs in this table. */
export function showLegend({ statements }: Matrix, points: readonly CrashPoint[]): Html {
  const names = new Set(points.map(({ path }) => path))
  const hasGap = statements.some(({ rows }) => rows.some(({ cells }) => cells.includes(undefined)))
  return html`<ul class="legend">
<li><b>before</b> the statement is not sent</li>
<li><b>after</b> the server has executed it, and nobody has seen the answer</li>
${hasGap && html`<li><b>–</b> not done here in this mode</li>`}
${names.has('from the start') && html`<li><b>↺</b> recovery did what it does on fresh data</li>`}
${names.has('nothing to do') && html`<li><b>∅</b> recovery did what it does after a run that went well</li>`}
${points.some(({ entersRecovery }) => entersRecovery) && html`<li><b>A</b> a way of recovery’s own, <a href="#ways">below</a></li>`}
</ul>`
}
