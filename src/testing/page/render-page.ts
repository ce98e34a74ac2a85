import { count } from '../count.js'
import type { pageFiles } from './generated/page-files.js'
import { type Html, html } from './html.js'
import { pageDocument } from './page-document.js'

/** A report as the page shows it. `explorePage` and `crashPage` turn their reports into this model. */
export interface PageModel {
  /** True for a race, or for a crash that does harm. */
  readonly isBad: boolean
  readonly heading: string
  /** A name beside the heading, such as that of an anomaly. */
  readonly tag?: string | undefined
  readonly summary: string
  /** One or two sentences: what can be concluded from the result, and what cannot. */
  readonly explanation?: string | undefined
  readonly failures: readonly PageFailure[]
  readonly figures: readonly PageFigure[]
  /** Lines behind a click. */
  readonly details?: { readonly summary: string; readonly lines: readonly string[] } | undefined
  readonly notes: readonly string[]
  /** A sentence about parts that are not shown, to keep the page small. */
  readonly leftOut?: Html | undefined
  /** The string that runs the one failing schedule again. The page then shows it, with the printout, above the view. */
  readonly replay?: string | undefined
  readonly printout?: string | undefined
  readonly view?: PageView | undefined
}

export interface PageFailure {
  readonly name: string
  readonly message: string
  /** The point of the failure. Undefined if the page is about one point only. */
  readonly where?: Html | undefined
}

export type PageFigure = readonly [name: string, value: string]

/** The part that only one kind of report has. */
export interface PageView {
  readonly html: Html
  /** Styles and scripts of the view. */
  readonly files: readonly (keyof typeof pageFiles)[]
  /** Rules for this report alone. */
  readonly style?: string | undefined
}

/** The page shows this many failures. The others are a click away. */
const MAX_FAILURES = 3
const MAX_MORE_FAILURES = 50
/** The maximum length of the printout. It has a line for each failing point and for each statement of each recovery path. */
const MAX_PRINTOUT = 60_000

export function renderPage(model: PageModel): string {
  const { isBad, heading, summary, failures, replay, view } = model
  const [failure] = failures
  const printout = model.printout !== undefined && showPrintout(model.printout, replay)
  return pageDocument({
    title: failure ? `${heading}: ${failure.message.split('\n')[0]}` : summary,
    isBad,
    files: ['page/report-head.css', 'page/statements.css', ...(view?.files ?? [])],
    style: view?.style,
    body: html`<main>${showHead(model)}${replay !== undefined && printout}${view?.html}${replay === undefined && printout}</main>`,
  })
}

/** The verdict, and the facts behind it. */
function showHead(model: PageModel): Html {
  const { isBad, heading, tag, summary, explanation, failures, figures, details, notes, leftOut } = model
  return html`<header class="top">
<div class="verdict ${isBad ? 'bad' : 'good'}"><span class="sign" aria-hidden="true">${isBad ? '✕' : '✓'}</span>
<h1>${heading}${tag && html` <span class="tag">${tag}</span>`}</h1></div>
<button type="button" class="theme" data-theme-toggle hidden>Dark</button>
</header>
<p class="summary">${summary}</p>
${explanation && html`<p class="explanation">${explanation}</p>`}
${showFailures(failures)}
<dl class="figures">${figures.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
${
  details &&
  html`<details class="widened"><summary>${details.summary}</summary>
<ul>${details.lines.map((line) => html`<li>${line}</li>`)}</ul></details>`
}
${notes.length > 0 && html`<ul class="notes">${notes.map((note) => html`<li><b>Note</b> ${note}</li>`)}</ul>`}
${leftOut && html`<p class="left-out">${leftOut}</p>`}`
}

function showFailures(failures: readonly PageFailure[]): Html | false {
  if (failures.length === 0) return false
  const more = failures.slice(MAX_FAILURES, MAX_FAILURES + MAX_MORE_FAILURES)
  const left = failures.length - MAX_FAILURES - more.length
  return html`<ul class="failures">${failures.slice(0, MAX_FAILURES).map(showFailure)}</ul>
${more.length > 0 && html`<details class="more-failures"><summary>and ${count(failures.length - MAX_FAILURES, 'other failure')}</summary><ul class="failures">${more.map(showFailure)}</ul>${left > 0 && html`<p>and ${left.toLocaleString('en')} more, which are in <code>report.points</code></p>`}</details>`}`
}

const showFailure = ({ name, message, where }: PageFailure): Html =>
  html`<li class="failure"><b>${name}</b> <span>${message}</span>${where && html` <span class="where">${where}</span>`}</li>
`

/** The replay string, with a button that copies it. The id must be unique on the page. */
export const showReplay = (replay: string, id: string): Html =>
  html`<code id="${id}">DIBS_REPLAY=${replay}</code>
<button type="button" data-copy="${id}">Copy</button>`

function showPrintout(printout: string, replay: string | undefined): Html {
  const text =
    printout.length <= MAX_PRINTOUT
      ? printout
      : `${printout.slice(0, MAX_PRINTOUT)}…\n\nThe rest of it is in report.printout.`
  return html`<div class="replay">${replay && html`<span>Run it again</span> ${showReplay(replay, 'replay')}`}
<details class="printout"><summary>The printout</summary><pre tabindex="0">${text}</pre></details></div>`
}
