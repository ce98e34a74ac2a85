import { EMPTY, type Footprint, intersects, join, overlapAny, type Resource } from '../footprint/footprint.js'
import type { TraceStep } from '../schedule/trace.js'
import type { Turn } from './report.js'

/**
 * Finds the step at which a failed schedule departs from one that did not fail. This is the choice at step `at`. If the chosen
 * unit shares nothing with the unit that was left, it is the next step of a unit that does.
 *
 * @param footprints the footprints of the steps, as far as they are known
 */
export function findTurn(
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
    (step, i) => i >= at && (back < 0 || i < back) && interfere(whole(step.unit), theirs),
  )
  const step = found < 0 ? at : found
  const what = comesBetween ? 'comes between' : `before ${left}`
  return { step, text: `here it goes wrong: ${steps[step]?.unit} ${what}` }
}

/** True if one writes or locks what the other uses. */
function interfere(a: Footprint, b: Footprint): boolean {
  return (
    (a.unboundedBecause ?? b.unboundedBecause) !== undefined ||
    overlapAny(writtenOf(a), usedOf(b)) ||
    overlapAny(usedOf(a), writtenOf(b)) ||
    intersects(a.sequences, b.sequences)
  )
}

const writtenOf = ({ locks, inserts, changes }: Footprint): readonly Resource[] => [
  ...locks.map(({ resource }) => resource),
  ...inserts,
  ...changes,
]

const usedOf = (footprint: Footprint): readonly Resource[] => [
  ...writtenOf(footprint),
  ...footprint.reads,
  ...footprint.lockProbes,
]
