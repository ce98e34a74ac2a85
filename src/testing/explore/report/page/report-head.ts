import { type Html, html } from '../../../page/html.js'
import { showFigures, showNotes, showPrintout, showReplay, showVerdict } from '../../../page/report-head.js'
import type { ExploreReport, FoundRace } from '../report.js'
import { showReach } from '../summarize.js'

export const titleOf = ({ verdict, race, mode }: ExploreReport): string => {
  if (verdict === 'race') return race?.isSerial ? 'Wrong, with nobody in between' : 'Race found'
  return mode === 'search' ? 'No violation' : 'No violation in this schedule'
}

/** The verdict, and what it rests on. */
export function showHead(report: ExploreReport): Html {
  const { verdict, summary, race, notes } = report
  return html`${showVerdict({ isBad: verdict === 'race', title: titleOf(report), tag: race?.anomaly?.name })}
<p class="summary">${summary}</p>
${race?.anomaly && html`<p class="explanation">${race.anomaly.explanation}</p>`}
${!race && html`<p class="explanation">${claimOf(report)}</p>`}
${race && html`<p class="failure"><b>${race.failure.name}</b> <span>${race.failure.message}</span></p>`}
${showFigures(figuresOf(report))}
${showReduction(report)}
${showNotes(notes)}
${race && showAgain(race)}`
}

function figuresOf(report: ExploreReport): (readonly [string, string])[] {
  const { schedules, isolation, tookMs, actors, steps, random, reduction } = report
  return [
    [schedules === 1 ? 'schedule run' : 'schedules run', schedules.toLocaleString('en')],
    ['isolation', isolation.toUpperCase()],
    [actors.length === 1 ? 'actor' : 'actors', actors.join(', ')],
    ['longest schedule', `${steps.toLocaleString('en')} ${steps === 1 ? 'step' : 'steps'}`],
    ['seconds', (tookMs / 1_000).toFixed(1)],
    ['how far', reachOf(report)],
    ...(reduction.repeats > 0
      ? [['repeats, not counted', reduction.repeats.toLocaleString('en')] as const]
      : []),
    ...(random
      ? [
          [
            'in random order',
            `${random.schedules.toLocaleString('en')}, seed ${random.seed}: depth ${random.depth} with at least ${(random.probability * 100).toFixed(1)} %`,
          ] as const,
        ]
      : []),
  ]
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

function showAgain({ replay, printout, steps }: FoundRace): Html {
  return html`<div class="replay">${steps.length > 0 && html`<span>Run it again</span> ${showReplay(replay, 'replay')}`}
${showPrintout(printout)}</div>`
}
