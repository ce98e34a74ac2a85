import type { StepLink } from '../../explore/report/links.js'
import type { FoundRace } from '../../explore/report/report.js'
import { pageFiles } from '../generated/page-files.js'
import { type Html, html } from '../html.js'
import type { PageView } from '../render-page.js'
import { showLanes } from './lanes.js'
import { layOutSchedule } from './layout.js'
import { showDetail } from './step-detail.js'

/** The minimum width of a lane. On a narrower page all lanes share one column. */
const LANE_PX = 200

const FILES = [
  'page/schedule/schedule.css',
  'page/schedule/lanes.css',
  'page/schedule/draw-links.browser.js',
  'page/schedule/step-through.browser.js',
] as const

/** The schedule of a race as lanes. The arrow keys step through it. */
export function scheduleView(race: FoundRace, actors: readonly string[]): PageView {
  const layout = layOutSchedule(race, actors)
  // A container query cannot count the lanes, so each page has its own rule.
  const maxWidth = layout.lanes.length * LANE_PX + 40
  return {
    files: FILES,
    style: `@container schedule (max-width: ${maxWidth}px) {${pageFiles['page/schedule/one-column.css']}}`,
    html: html`<div class="story">
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
</div>`,
  }
}

const LINK_WORDS: Record<StepLink['kind'], string> = {
  blocks: 'is waited for by',
  frees: 'lets go on',
  reads: 'is seen by',
  misses: 'comes too late for',
}

/** The kinds of arrows that this schedule has. */
function showLegend({ links, steps }: FoundRace): Html {
  const kinds = (Object.keys(LINK_WORDS) as StepLink['kind'][]).filter((one) =>
    links.some(({ kind }) => kind === one),
  )
  const waits = steps.some(({ effect }) => effect.kind === 'waits')
  return html`<ul class="legend">${kinds.map(
    (kind) =>
      html`<li><svg class="sample" viewBox="0 0 34 12" aria-hidden="true" data-sample="${kind}"></svg>${LINK_WORDS[kind]}</li>`,
  )}${waits && html`<li><span class="hatch"></span>waits</li>`}</ul>`
}
