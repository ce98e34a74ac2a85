import { countPreemptions, type Trace } from '../schedule/trace.js'
import type { FailedSchedule } from '../search/failure.js'
import { findAnomaly } from './find-anomaly.js'
import { findTurn } from './find-turn.js'
import { buildHistory, type HistoryContext } from './history.js'
import { findLinks } from './links.js'
import { showSteps, showSwitches } from './printout.js'
import { readLinks } from './read-links.js'
import { encodeReplay } from './replay.js'
import type { ExploreReport, FoundRace } from './report.js'

type Facts = Omit<ExploreReport, 'summary' | 'race'>

/** Explains a failed schedule. */
export function showRace(
  { trace, failure, turnedAt }: FailedSchedule,
  facts: Facts & { readonly identity: string },
  context: HistoryContext,
): FoundRace {
  const { steps } = trace
  const replay = encodeReplay(steps, facts.actors, facts.identity)
  const isSerial = !trace.stuck && isOneAfterTheOther(trace)
  const history = buildHistory(trace, context)
  const anomaly = isSerial ? undefined : findAnomaly(trace, history)
  const footprints = steps.map(({ unit }, i) => {
    const pending = trace.contexts[i]?.pending.get(unit)
    return pending && context.footprintOf(pending)
  })
  const turn = turnedAt === undefined || isSerial ? undefined : findTurn(steps, turnedAt, footprints)
  const title = isSerial
    ? `Wrong in schedule ${facts.schedules}, with nobody in between: a mistake in the code, not a race.`
    : `${trace.stuck ? 'Stuck' : 'Race found'} in schedule ${facts.schedules} (${showSwitches(steps)}, ${facts.isolation.toUpperCase()}).`
  const printout = [
    title,
    ...(steps.length > 0 ? [showSteps(steps, turn)] : []),
    ...(anomaly ? [`  ${anomaly.explanation}`] : []),
    `  ${failure.name}: ${failure.message.replace(/\s*\n\s*/g, '\n  ')}`.trimEnd(),
    ...facts.notes.map((note) => `  Note: ${note}`),
    ...(steps.length > 0 ? [`  Replay: DIBS_REPLAY=${replay}`] : []),
  ].join('\n')
  return {
    schedule: steps.map(({ unit }) => unit),
    replay,
    steps,
    links: [...findLinks(steps, footprints), ...(history ? readLinks(history) : [])],
    printout,
    failure: { name: failure.name, message: failure.message },
    ...(anomaly ? { anomaly } : {}),
    ...(turn ? { turn } : {}),
    isSerial,
  }
}

/** True if each unit began after the one before it had ended. */
function isOneAfterTheOther({ steps }: Trace): boolean {
  const order = steps.map(({ unit }) => unit).filter((unit, i, all) => unit !== all[i - 1])
  return countPreemptions(steps) === 0 && new Set(order).size === order.length
}
