import type { CrashPoint } from '../../crash/report/report.js'
import { clip } from '../../explore/report/printout.js'
import { type Html, html } from '../html.js'
import { showReplay } from '../render-page.js'
import { showSql } from '../show-sql.js'
import { type Cell, isFailed } from './cells.js'
import type { Timelines } from './choose-timelines.js'
import { COLUMN_WORDS, cellName, PATH_SIGNS, pointName, RUN_WORDS } from './labels.js'

export interface SheetContext {
  readonly timelines: Timelines
  /** The identity of the crash loop. */
  readonly identity: string
  /** The sheet that is open at first. */
  readonly shown: string
  /** The names of the recovery paths that the page describes. */
  readonly paths: ReadonlySet<string>
}

interface Sheet {
  readonly id: string
  readonly title: string
  readonly explanation: string
  readonly statement?: string
  /** The row of the table that leads here. */
  readonly row?: string
  readonly points: readonly CrashPoint[]
}

/** The maximum length of a failure in one line. */
const MAX_LINE = 120

/** The panel of a cell. */
export function showCellSheet(cell: Cell, statement: string, context: SheetContext): Html {
  const { id, column, place, points } = cell
  const row = `${place.side}-${place.statement}`
  return showSheet(
    { id, title: cellName(cell), explanation: COLUMN_WORDS[column], statement, row, points },
    context,
  )
}

/** The panel of the run without a fault. */
export function showBaseSheet(base: CrashPoint, context: SheetContext): Html {
  const explanation = isFailed(base) ? '' : 'the run that the others are held against'
  return showSheet({ id: 'none', title: 'With nothing done to it', explanation, points: [base] }, context)
}

function showSheet(sheet: Sheet, context: SheetContext): Html {
  const { id, title, explanation, statement, row, points } = sheet
  const isBad = points.some(isFailed)
  // The anchor is an element of its own. Where the panel stands beside the table, the page must not scroll.
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

/** Failed points come first. The first of several is open. */
function showPoints(points: readonly CrashPoint[], context: SheetContext): Html | readonly Html[] {
  const sorted = [...points.filter(isFailed), ...points.filter((point) => !isFailed(point))]
  return sorted.map((point, i) =>
    sorted.length === 1 ? showPoint(point, context) : showInList(point, context, i === 0),
  )
}

/** Everything about a point. */
function showPoint(point: CrashPoint, context: SheetContext): Html {
  const { replay, fault, failure } = point
  return html`<div class="point"${fault !== null && html` id="${replay}"`}>${failure && html`<p class="failure"><b>${failure.kind}</b> <span>${failure.message}</span></p>`}
<div class="known"><dl class="facts">${factsOf(point, context).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
${fault !== null && html`<p class="replay">${showReplay(`${replay}@${context.identity}`, `replay=${replay}`)}</p>`}</div>
${context.timelines.get(point) ?? html`<p class="left-out">Its story is not on this page, to keep it small. A replay tells it, and <code>report.points</code> has it.</p>`}</div>`
}

type Fact = readonly [name: string, value: Html | string]

function factsOf(point: CrashPoint, context: SheetContext): readonly Fact[] {
  const { run, recoveries, waited, lateWrites, repeatedEffects, agrees } = point
  return [
    ['run', RUN_WORDS[run]],
    ['recoveries', String(recoveries)],
    ...(recoveries > 0 ? [['way of recovery', showPath(point, context)] as const] : []),
    ...(waited === undefined ? [] : [['waited', waited] as const]),
    ...lateWrites.map(
      ({ table, row }): Fact => ['late write', html`${table} <code>${JSON.stringify(row)}</code>`],
    ),
    ...(repeatedEffects.length > 0 ? [['repeated effects', repeatedEffects.join(', ')] as const] : []),
    ...(agrees === undefined
      ? []
      : [
          ['a real process', agrees ? 'did the same as one within this process' : '✕ did otherwise'] as const,
        ]),
  ]
}

const showPath = ({ path, entersRecovery }: CrashPoint, { paths }: SheetContext): Html =>
  entersRecovery && paths.has(path)
    ? html`<a href="#way=${path}">${path}</a>`
    : html`${path} ${PATH_SIGNS[path]}`

/** One of several points of a cell: a line, and the rest behind a click. */
function showInList(point: CrashPoint, context: SheetContext, isOpen: boolean): Html {
  const { replay, path, verdict, failure } = point
  const sign = html`<span class="sign ${verdict}">${failure ? '✕' : '✓'}</span>`
  const what =
    failure && html` <span class="what">${clip(failure.message.split('\n')[0] ?? '', MAX_LINE)}</span>`
  const way = html` <span class="path">${PATH_SIGNS[path] ?? path}</span>`
  return context.timelines.has(point)
    ? html`<details${isOpen && html` open`}><summary>${sign} <b>${pointName(point)}</b>${what}${way}</summary>${showPoint(point, context)}</details>\n`
    : html`<p class="untold" id="${replay}">${sign} <code>${replay}</code>${what}${way}</p>\n`
}
