import { ScheduleDivergedError } from '../../../errors.js'
import type { ChooseUnit } from '../schedule/schedule-run.js'
import { defaultChoice, isServerOrdered, stepSignature, type TraceStep } from '../schedule/trace.js'
import type { Branch } from './frontier.js'
import type { SleepSets } from './sleep-sets.js'

/** Chooses the units of a branch. Compares each step with the same step of the branch's parent. */
export class BranchFollower {
  /** The step at which the server woke several units in another order than in the parent. */
  otherWakeOrderAt: number | undefined
  readonly #branch: Branch
  readonly #sleepSets: SleepSets | undefined

  /** @param sleepSets undefined if the search is not reduced */
  constructor(branch: Branch, sleepSets: SleepSets | undefined) {
    this.#branch = branch
    this.#sleepSets = sleepSets
  }

  readonly choose: ChooseUnit = (options, steps, choicePoint) => {
    const { parent, at, choice } = this.#branch
    const i = steps.length
    if (parent && i > 0 && i <= at && this.otherWakeOrderAt === undefined)
      this.#compare(i - 1, steps[i - 1] as TraceStep)
    const choices = this.#sleepSets?.choices(options, steps, choicePoint) ?? options
    if (this.otherWakeOrderAt !== undefined || i > at || !parent)
      return defaultChoice(choices, steps[i - 1]?.unit)
    const wanted = i === at ? (choice as string) : (parent.steps[i] as TraceStep).unit
    if (options.includes(wanted)) return wanted
    throw new ScheduleDivergedError(
      i + 1,
      `${parent.steps[i]?.options.join(', ')} could go on`,
      `${options.join(', ')} can go on`,
    )
  }

  #compare(i: number, now: TraceStep): void {
    const then = this.#branch.parent?.steps[i] as TraceStep
    if (stepSignature(then) === stepSignature(now)) return
    if (!isServerOrdered(then) && !isServerOrdered(now))
      throw new ScheduleDivergedError(i + 1, stepSignature(then), stepSignature(now))
    this.otherWakeOrderAt = i
    this.#sleepSets?.dropStart()
  }
}
