import { EMPTY, type Footprint, join, meetAny, type Place, shares } from '../reduce/footprint.js'
import type { TraceStep } from '../schedule/trace.js'
import type { Turn } from './report.js'

/**
 * What was chosen at a step, against what comes by itself. If the one that was chosen has nothing to do with the one that
 * was left, the next who has.
 *
 * @param footprints of the steps, as far as they are known
 */
export function turnAt(
  steps: readonly TraceStep[],
  at: number,
  footprints: readonly (Footprint | undefined)[],
): Turn {
  const { unit, options } = steps[at] as TraceStep
  const last = steps[at - 1]?.unit
  const comesBetween = last !== undefined && options.includes(last)
  const left = comesBetween ? last : options.find((option) => option !== unit)
  const whole = (one: string | undefined): Footprint =>
    steps.map((step, i) => (step.unit === one ? (footprints[i] ?? EMPTY) : EMPTY)).reduce(join, EMPTY)
  const theirs = whole(left)
  const back = steps.findIndex((step, i) => i > at && step.unit === left)
  const found = steps.findIndex(
    (step, i) => i >= at && (back < 0 || i < back) && haveToDo(whole(step.unit), theirs),
  )
  const step = found < 0 ? at : found
  const what = comesBetween ? 'comes between' : `before ${left}`
  return { step, text: `here it goes wrong: ${steps[step]?.unit} ${what}` }
}

/** One changes or locks what the other looks at. */
function haveToDo(a: Footprint, b: Footprint): boolean {
  return (
    (a.everything ?? b.everything) !== undefined ||
    meetAny(taken(a), seen(b)) ||
    meetAny(seen(a), taken(b)) ||
    shares(a.draws, b.draws)
  )
}

const taken = ({ locks, adds, changes }: Footprint): readonly Place[] => [
  ...locks.map(({ place }) => place),
  ...adds,
  ...changes,
]

const seen = (footprint: Footprint): readonly Place[] => [
  ...taken(footprint),
  ...footprint.reads,
  ...footprint.tries,
]
