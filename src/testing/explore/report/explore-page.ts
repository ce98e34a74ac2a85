import { type PageFigure, renderPage } from '../../page/render-page.js'
import { scheduleView } from '../../page/schedule/schedule.js'
import type { ExploreReport } from './report.js'
import { showReach } from './summarize.js'

/** The report of an exploration as a page. */
export function explorePage(report: ExploreReport): string {
  const { verdict, summary, race, notes, actors } = report
  const hasSteps = race !== undefined && race.steps.length > 0
  return renderPage({
    isBad: verdict === 'race',
    heading: headingOf(report),
    tag: race?.anomaly?.name,
    summary,
    explanation: race ? race.anomaly?.explanation : claimOf(report),
    failures: race ? [race.failure] : [],
    figures: figuresOf(report),
    details: detailsOf(report),
    notes,
    replay: hasSteps ? race.replay : undefined,
    printout: race?.printout,
    view: hasSteps ? scheduleView(race, actors) : undefined,
  })
}

function headingOf({ verdict, race, mode }: ExploreReport): string {
  if (verdict === 'race') return race?.isSerial ? 'Wrong, with nobody in between' : 'Race found'
  return mode === 'search' ? 'No violation' : 'No violation in this schedule'
}

function figuresOf(report: ExploreReport): readonly PageFigure[] {
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

/** Why the explorer ran more schedules than needed. */
function detailsOf({ mode, reduction: { off, widened } }: ExploreReport) {
  const lines = [...(off === null || mode !== 'search' ? [] : [`Every order was run: ${off}.`]), ...widened]
  return lines.length > 0 ? { summary: 'Why more orders were run than differ', lines } : undefined
}

/** How far the search went. The word "every" stands only where it is true. */
function reachOf(report: ExploreReport): string {
  const { mode, verdict, isExhaustive, reduction } = report
  if (mode === 'replay') return 'a replay of one schedule'
  if (mode === 'schedule') return 'one schedule, by name'
  if (verdict === 'race') return 'up to the first that went wrong'
  if (isExhaustive) return reduction.off === null ? 'every distinguishable schedule' : 'every schedule'
  return showReach(report)
}

/** The meaning of a report without a race, and the limits of that meaning. */
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
