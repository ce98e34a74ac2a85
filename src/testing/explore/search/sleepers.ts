import { Course, type Move } from '../reduce/course.js'
import { mayWait } from '../reduce/dependence.js'
import type { Reduction } from '../reduce/reduction.js'
import type { Crossing } from '../schedule/schedule-run.js'
import { isContested, type Moment, type TraceStep } from '../schedule/trace.js'

/** Steps that need not be taken here, by unit: what follows from them is run elsewhere. */
export type Sleep = ReadonlyMap<string, Move>

export const AWAKE: Sleep = new Map()

/**
 * Follows one schedule and knows at each crossing whose next step would lead to nothing new: it was, or will be, taken
 * at an earlier crossing, and all that happened since commutes with it. (Godefroid's sleep sets.)
 */
export class Sleepers {
  /** At each crossing so far. */
  readonly at: Sleep[] = []
  /** Those who would wait if they were chosen, at each crossing so far. */
  readonly reluctant: ReadonlySet<string>[] = []
  /** The crossing from which on everything is a repetition. */
  repeatsFrom: number | undefined
  readonly #reduction: Reduction
  #start: { readonly at: number; readonly sleep: Sleep }
  readonly #course = new Course()

  constructor(reduction: Reduction, start: { readonly at: number; readonly sleep: Sleep }) {
    this.#reduction = reduction
    this.#start = start
  }

  /**
   * Whom to choose from: those of `options` that are awake, and of them those who will not have to wait, since waiting for a
   * lock and asking for it later are mostly the same. Anybody, once the schedule only repeats another.
   */
  choices(
    options: readonly string[],
    steps: readonly TraceStep[],
    { moments, pending }: Crossing,
  ): readonly string[] {
    const i = steps.length
    if (this.repeatsFrom !== undefined) return options
    const sleep = this.#sleepAt(i, steps[i - 1], moments[i - 1])
    this.at[i] = sleep
    const wouldWait = (unit: string): boolean =>
      mayWait(moveOf(unit, { pending }, this.#reduction), this.#course)
    const reluctant = new Set(options.filter(wouldWait))
    this.reluctant[i] = reluctant
    const awake = options.filter((unit) => !sleep.has(unit))
    if (awake.length === 0) this.repeatsFrom = i
    const willing = awake.filter((unit) => !reluctant.has(unit))
    return [willing, awake, options].find((some) => some.length > 0) ?? options
  }

  /** The world is another one than where the branch began. */
  forgetStart(): void {
    this.#start = { at: -1, sleep: AWAKE }
  }

  #sleepAt(i: number, step: TraceStep | undefined, moment: Moment | undefined): Sleep {
    const before = this.at[i - 1] ?? AWAKE
    const after = step && moment ? this.#pass(before, step, moment) : AWAKE
    return i === this.#start.at ? this.#start.sleep : i < this.#start.at ? AWAKE : after
  }

  /** Whom a step wakes: all who do not commute with it. */
  #pass(sleep: Sleep, step: TraceStep, moment: Moment): Sleep {
    const move = moveOf(step.unit, moment, this.#reduction)
    const still = isClear(step)
      ? [...sleep].filter(([, sleeper]) => !this.#reduction.areDependent(sleeper, move, this.#course))
      : []
    this.#course.take(step, move.footprint, moment.open)
    return new Map(still)
  }
}

/** What a unit does, or would have done, at a crossing. */
export function moveOf(unit: string, { pending }: Pick<Moment, 'pending'>, reduction: Reduction): Move {
  const step = pending.get(unit)
  if (!step) throw new Error(`${unit} could not have been chosen here`)
  return { unit, footprint: reduction.footprintOf(step) }
}

/** A deadlock, and waits that time has ended. */
const UNFORESEEN: ReadonlySet<string | undefined> = new Set(['40P01', '55P03', '57014'])

/** Nothing has happened that its text does not tell: no deadlock, no lost connection, no order of the server's own. */
function isClear(step: TraceStep): boolean {
  const effects = [step.effect, ...step.resumed.map(({ effect }) => effect)]
  return (
    !isContested(step) &&
    !step.loops &&
    effects.every((effect) => {
      if (effect.kind === 'lost' || effect.kind === 'point') return false
      return effect.kind !== 'done' || !UNFORESEEN.has(effect.result.error?.code)
    })
  )
}
