import { mayBlock } from '../reduce/dependence.js'
import { Execution, type Transition } from '../reduce/execution.js'
import type { Reduction } from '../reduce/reduction.js'
import type { ChoicePoint } from '../schedule/schedule-run.js'
import { isServerOrdered, type StepContext, type TraceStep } from '../schedule/trace.js'

/** The units that sleep at a choice point, with their next steps, which other branches take. */
export type SleepSet = ReadonlyMap<string, Transition>

export const NO_SLEEPING_UNITS: SleepSet = new Map()

/**
 * Computes the sleep sets of one schedule (Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems",
 * 1996). A unit sleeps if another branch takes its next step at an earlier choice point, and all steps since are independent
 * of that step. To choose the unit would only repeat the other branch.
 */
export class SleepSets {
  /** The sleep set at each choice point so far. */
  readonly sleepSets: SleepSet[] = []
  /** The units that may have to wait if they are chosen, at each choice point so far. */
  readonly unitsThatWait: ReadonlySet<string>[] = []
  /** The choice point at which all units sleep. From there on the schedule only repeats others. */
  redundantFrom: number | undefined
  readonly #reduction: Reduction
  #start: { readonly at: number; readonly sleepSet: SleepSet }
  readonly #execution = new Execution()

  constructor(reduction: Reduction, start: { readonly at: number; readonly sleepSet: SleepSet }) {
    this.#reduction = reduction
    this.#start = start
  }

  /**
   * The units of `options` to choose from: those that do not sleep, and of these the ones that will not have to wait. To wait
   * for a lock is mostly equivalent to a request for the lock after its release. Once the schedule is redundant, all units.
   */
  choices(
    options: readonly string[],
    steps: readonly TraceStep[],
    { contexts, pending }: ChoicePoint,
  ): readonly string[] {
    const i = steps.length
    if (this.redundantFrom !== undefined) return options
    const sleepSet = this.#sleepSetAt(i, steps[i - 1], contexts[i - 1])
    this.sleepSets[i] = sleepSet
    const wouldWait = (unit: string): boolean =>
      mayBlock(transitionOf(unit, { pending }, this.#reduction), this.#execution)
    const unitsThatWait = new Set(options.filter(wouldWait))
    this.unitsThatWait[i] = unitsThatWait
    const awake = options.filter((unit) => !sleepSet.has(unit))
    if (awake.length === 0) this.redundantFrom = i
    const withoutWait = awake.filter((unit) => !unitsThatWait.has(unit))
    return [withoutWait, awake, options].find((units) => units.length > 0) ?? options
  }

  /** Drops the sleep set of the branch's start, since the server used another wake order before it. */
  dropStart(): void {
    this.#start = { at: -1, sleepSet: NO_SLEEPING_UNITS }
  }

  #sleepSetAt(i: number, step: TraceStep | undefined, context: StepContext | undefined): SleepSet {
    const before = this.sleepSets[i - 1] ?? NO_SLEEPING_UNITS
    const after = step && context ? this.#afterStep(before, step, context) : NO_SLEEPING_UNITS
    return i === this.#start.at ? this.#start.sleepSet : i < this.#start.at ? NO_SLEEPING_UNITS : after
  }

  /** The sleep set after a step, which wakes every unit whose next step depends on it. */
  #afterStep(sleepSet: SleepSet, step: TraceStep, context: StepContext): SleepSet {
    const transition = transitionOf(step.unit, context, this.#reduction)
    const asleep = isPredictable(step)
      ? [...sleepSet].filter(
          ([, sleeping]) => !this.#reduction.areDependent(sleeping, transition, this.#execution), // guard: explorer.reduce-wake
        )
      : []
    this.#execution.apply(step, transition.footprint, context.openUnits)
    return new Map(asleep)
  }
}

/** The step that a unit takes, or could have taken, at a choice point. */
export function transitionOf(
  unit: string,
  { pending }: Pick<StepContext, 'pending'>,
  reduction: Reduction,
): Transition {
  const step = pending.get(unit)
  if (!step) throw new Error(`${unit} could not have been chosen here`)
  return { unit, footprint: reduction.footprintOf(step) }
}

/** SQLSTATEs of a deadlock, of `lock_timeout` and NOWAIT, and of `statement_timeout`. */
const UNPREDICTABLE_ERRORS: ReadonlySet<string | undefined> = new Set(['40P01', '55P03', '57014'])

/** False after an event that no footprint predicts: a deadlock, a timeout, a lost connection, a wake order of the server. */
function isPredictable(step: TraceStep): boolean {
  const effects = [step.effect, ...step.resumed.map(({ effect }) => effect)]
  return (
    !isServerOrdered(step) &&
    !step.loops &&
    effects.every((effect) => {
      if (effect.kind === 'lost' || effect.kind === 'point') return false
      return effect.kind !== 'done' || !UNPREDICTABLE_ERRORS.has(effect.result.error?.code)
    })
  )
}
