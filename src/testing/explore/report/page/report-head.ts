import { type Html, html } from '../../../page/html.js'
import type { ExploreReport, FoundRace } from '../report.js'
import { showReach } from '../summarize.js'

export const titleOf = ({ verdict, race, mode }: ExploreReport): string => {
  if (verdict === 'race') return race?.isSerial ? 'Wrong, with nobody in between' : 'Race found'
  return mode === 'search' ? 'No violation' : 'No violation in this schedule'
}

/** The verdict, and what it rests on. */
export function showHead(report: ExploreReport): Html {
  const { verdict, summary, race, notes } = report
  return html`<header class="top">
<div class="verdict ${verdict}"><span class="sign" aria-hidden="true">${verdict === 'race' ? '✕' : '✓'}</span>
<h1>${titleOf(report)}${race?.anomaly && html` <span class="anomaly">${race.anomaly.name}</span>`}</h1></div>
<button type="button" class="theme" data-theme-toggle hidden>Dark</button>
</header>
<p class="summary">${summary}</p>
${race?.anomaly && html`<p class="explanation">${race.anomaly.explanation}</p>`}
${!race && html`<p class="explanation">${claimOf(report)}</p>`}
${race && html`<p class="failure"><b>${race.failure.name}</b> <span>${race.failure.message}</span></p>`}
${showFigures(report)}
${showReduction(report)}
${notes.length > 0 && html`<ul class="notes">${notes.map((note) => html`<li><b>Note</b> ${note}</li>`)}</ul>`}
${race && showReplay(race)}`
}

function showFigures(report: ExploreReport): Html {
  const { schedules, isolation, seconds, actors, steps, random, reduction } = report
  const figures = [
    [schedules === 1 ? 'schedule run' : 'schedules run', schedules.toLocaleString('en')],
    ['isolation', isolation.toUpperCase()],
    [actors.length === 1 ? 'actor' : 'actors', actors.join(', ')],
    ['longest schedule', `${steps.toLocaleString('en')} ${steps === 1 ? 'step' : 'steps'}`],
    ['seconds', seconds.toFixed(1)],
    ['how far', reachOf(report)],
    ...(reduction.repeats > 0 ? [['repeats, not counted', reduction.repeats.toLocaleString('en')]] : []),
    ...(random
      ? [
          [
            'in random order',
            `${random.schedules.toLocaleString('en')}, seed ${random.seed}: depth ${random.depth} with at least ${(random.probability * 100).toFixed(1)} %`,
          ],
        ]
      : []),
  ] as const
  return html`<dl class="figures">${figures.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`
}

/** Why more was run than need be. */
function showReduction({ mode, reduction: { off, widened } }: ExploreReport): Html | false {
  const lines = [...(off === null || mode !== 'search' ? [] : [`Every order was run: ${off}.`]), ...widened]
  if (lines.length === 0) return false
  return html`<details class="widened"><summary>Why more orders were run than differ</summary>
<ul>${lines.map((line) => html`<li>${line}</li>`)}</ul></details>`
}

/** What was looked at; "all" only where all is true. */
function reachOf(report: ExploreReport): string {
  const { mode, verdict, isExhaustive, reduction } = report
  if (mode === 'replay') return 'a replay of one schedule'
  if (mode === 'schedule') return 'one schedule, by name'
  if (verdict === 'race') return 'up to the first that went wrong'
  if (isExhaustive) return reduction.off === null ? 'every schedule that can be told apart' : 'every schedule'
  return showReach(report)
}

/** What a report that found nothing stands for, and what not. */
function claimOf({ mode, isExhaustive, isComplete, preemptions, reduction }: ExploreReport): string {
  if (mode !== 'search') return 'This one schedule was run and was right. It says nothing about any other.'
  const isRun =
    reduction.off === null ? 'was run and was right, or is like one that was' : 'was run and was right'
  if (isExhaustive)
    return `Every order of these steps, of these actors, on this data, ${isRun}. Other data, more actors and other paths through the code are other questions.`
  if (preemptions !== null)
    return 'Every order with no more preemptions than that was run and was right. One with more may go wrong.'
  return isComplete
    ? `Every order that was ours to choose ${isRun}. The notes say what was not seen.`
    : 'There are more orders than were run. One of the others may go wrong.'
}

function showReplay({ replay, printout, steps }: FoundRace): Html {
  return html`<div class="replay">${
    steps.length > 0 &&
    html`<span>Run it again</span> <code id="replay">DIBS_REPLAY=${replay}</code>
<button type="button" data-copy="replay">Copy</button>`
  }
<details class="printout"><summary>The printout</summary><pre tabindex="0">${printout}</pre></details></div>`
}
