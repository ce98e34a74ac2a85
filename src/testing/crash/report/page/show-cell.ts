import { type Html, html } from '../../../page/html.js'
import { showSql } from '../../../page/show-sql.js'
import type { CrashPoint } from '../report.js'
import { type Cell, isFailed } from './cells.js'
import type { Context } from './context.js'
import { showAmongOthers, showPoint } from './show-point.js'
import { COLUMN_WORDS, cellName } from './words.js'

interface Sheet {
  readonly id: string
  readonly title: string
  readonly explanation: string
  readonly statement?: string
  /** The row of the table that leads here. */
  readonly row?: string
  readonly points: readonly CrashPoint[]
}

/** What the panel shows of a cell. */
export function showCellSheet(cell: Cell, statement: string, context: Context): Html {
  const { id, column, place, points } = cell
  const sheet = {
    id,
    title: cellName(cell),
    explanation: COLUMN_WORDS[column],
    statement,
    row: `${place.side}-${place.statement}`,
    points,
  }
  return showSheet(sheet, context)
}

/** What the panel shows of the run that nothing was done to. */
export function showBaseSheet(base: CrashPoint, context: Context): Html {
  const sheet = {
    id: 'none',
    title: 'With nothing done to it',
    explanation: isFailed(base) ? '' : 'the run that the others are held against',
    points: [base],
  }
  return showSheet(sheet, context)
}

function showSheet(sheet: Sheet, context: Context): Html {
  const { id, title, explanation, statement, row, points } = sheet
  const isBad = points.some(isFailed)
  // The anchor is an element of its own: where the panel stands beside the table, nothing needs to move.
  return html`<section class="sheet${id === context.shown && ' shown'}" aria-labelledby="title-${id}">
<span class="anchor" id="${id}"></span>
<h2 id="title-${id}"><span class="sign ${isBad ? 'failed' : 'passed'}">${isBad ? '✕' : '✓'}</span> ${title}</h2>
${explanation && html`<p class="explanation">${explanation}</p>`}
${statement && html`<p class="statement"><code>${showSql(statement)}</code></p>`}
${row && html`<a class="back" href="#${row}">Back to the table</a>`}
${showPoints(points, context)}
</section>
`
}

/** Those that fail first, and the first of all open. */
function showPoints(points: readonly CrashPoint[], context: Context): Html | readonly Html[] {
  const [first, ...others] = [...points.filter(isFailed), ...points.filter((point) => !isFailed(point))]
  if (!first) return []
  if (others.length === 0) return showPoint(first, context)
  return [first, ...others].map((point) => showAmongOthers(point, context, point === first))
}
