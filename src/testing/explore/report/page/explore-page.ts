import { pageFiles } from '../../../page/generated/page-files.js'
import { type Html, html } from '../../../page/html.js'
import { pageDocument } from '../../../page/page-document.js'
import type { StepLink } from '../links.js'
import type { ExploreReport, FoundRace } from '../report.js'
import { showDetail } from './detail.js'
import { showLanes } from './lanes.js'
import { type Layout, layOut } from './layout.js'
import { showHead, titleOf } from './report-head.js'

/** Narrower than this a lane cannot be read; all lanes then share one column. */
const LANE_PX = 200

const FILES = [
  'page/report-head.css',
  'page/statements.css',
  'explore/report/page/explore-page.css',
  'explore/report/page/lanes.css',
  'explore/report/page/draw-links.browser.js',
  'explore/report/page/step-through.browser.js',
] as const

/** The schedule as lanes, to be stepped through with the arrow keys. */
export function explorePage(report: ExploreReport): string {
  const { race } = report
  const layout = race && race.steps.length > 0 ? layOut(race, report) : undefined
  return pageDocument({
    title: race ? `${titleOf(report)}: ${race.failure.message.split('\n')[0]}` : report.summary,
    isBad: report.verdict === 'race',
    files: FILES,
    style: layout && inOneColumn(layout.lanes.length),
    body: html`<main>${showHead(report)}${race && layout && showSchedule(race, layout)}</main>`,
  })
}

/** It depends on how many lanes there are whether they fit side by side, and a query cannot count. */
const inOneColumn = (lanes: number): string =>
  `@container schedule (max-width: ${lanes * LANE_PX + 40}px) {${pageFiles['explore/report/page/one-column.css']}}`

function showSchedule(race: FoundRace, layout: Layout): Html {
  return html`<div class="story">
<div class="schedule">
${showLegend(race)}
${showLanes(race, layout)}
</div>
<aside class="panel" aria-label="The step">
<div class="controls">
<button type="button" data-go="first" aria-label="First step">⇤</button>
<button type="button" data-go="previous" aria-label="Previous step">←</button>
<output id="place">Step 1 of ${race.steps.length}</output>
<button type="button" data-go="next" aria-label="Next step">→</button>
<button type="button" data-go="last" aria-label="Last step">⇥</button>
</div>
<div class="details" aria-live="polite" tabindex="0">${layout.rows.map((row) => showDetail(row, race, layout))}</div>
<p class="keys"><kbd>←</kbd> <kbd>→</kbd> step, <kbd>Home</kbd> <kbd>End</kbd> first and last; in the lanes <kbd>↑</kbd> <kbd>↓</kbd> along one lane</p>
</aside>
</div>`
}

const MEANS: Record<StepLink['kind'], string> = {
  blocks: 'is waited for by',
  frees: 'lets go on',
  reads: 'is seen by',
  misses: 'comes too late for',
}

/** The kinds of arrows that are there. */
function showLegend({ links, steps }: FoundRace): Html {
  const kinds = (Object.keys(MEANS) as StepLink['kind'][]).filter((one) =>
    links.some(({ kind }) => kind === one),
  )
  const waits = steps.some(({ effect }) => effect.kind === 'waits')
  return html`<ul class="legend">${kinds.map(
    (kind) =>
      html`<li><svg class="sample" viewBox="0 0 34 12" aria-hidden="true" data-sample="${kind}"></svg>${MEANS[kind]}</li>`,
  )}${waits && html`<li><span class="hatch"></span>waits</li>`}</ul>`
}
