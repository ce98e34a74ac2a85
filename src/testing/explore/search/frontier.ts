import { ScheduleDivergedError } from '../../../errors.js'
import type { Move } from '../reduce/course.js'
import type { Choose } from '../schedule/schedule-run.js'
import {
  easyChoice,
  isContested,
  isPreemption,
  signStep,
  type Trace,
  type TraceStep,
} from '../schedule/trace.js'
import { AWAKE, type Sleep, type Sleepers } from './sleepers.js'

/** A schedule to be run: as `parent` up to `at`, then `choice`, then whatever comes easiest. */
export interface Branch {
  readonly parent: Trace | undefined
  readonly at: number
  readonly choice: string | undefined
  /** Preemptions up to and with `choice`. */
  readonly preemptions: number
  /** Whose steps at `at` are taken in other branches. */
  readonly sleep: Sleep
}

const ROOT: Branch = { parent: undefined, at: 0, choice: undefined, preemptions: 0, sleep: AWAKE }

/** Who need not be chosen where. */
export interface Sleeping {
  readonly at: readonly Sleep[]
  readonly reluctant: readonly ReadonlySet<string>[]
  readonly repeatsFrom: number | undefined
  /** What a unit does, or would have done, at a step. */
  moveOf(unit: string, at: number): Move
}

/**
 * The schedules that are known and not yet run, those with the fewest preemptions first: whatever is found then is the
 * shortest story. Each schedule comes up once, because it belongs to the branch at its last uneasy choice.
 */
export class Frontier {
  readonly #byPreemptions: Branch[][] = [[ROOT]]
  readonly #most: number
  /** Branches beyond the bound were left out. */
  isCut = false

  constructor(mostPreemptions: number) {
    this.#most = mostPreemptions
  }

  get size(): number {
    return this.#byPreemptions.reduce((sum, branches) => sum + branches.length, 0)
  }

  /** Fewest preemptions among those still to be run. */
  get level(): number {
    return this.#byPreemptions.findIndex((branches) => branches.length > 0)
  }

  next(): Branch | undefined {
    return this.#byPreemptions[this.level]?.shift()
  }

  /**
   * What could have been chosen instead, from step `from` on: those who are awake there. Of several, each leaves to those
   * before it what commutes with its own step.
   *
   * @param sleeping by step; none given: nobody sleeps
   */
  expand(trace: Trace, from: number, sleeping?: Sleeping): void {
    let preemptions = 0
    const to = sleeping?.repeatsFrom ?? trace.steps.length
    for (const [at, { unit, options }] of trace.steps.slice(0, to).entries()) {
      const last = trace.steps[at - 1]?.unit
      // To leave one who would have had to wait is none.
      const willing = options.filter((option) => !sleeping?.reluctant[at]?.has(option))
      let sleep = sleeping?.at[at] ?? AWAKE
      let taken = unit
      for (const choice of at < from ? [] : inOrder(options, sleeping?.reluctant[at])) {
        if (choice === unit || sleep.has(choice)) continue
        if (sleeping) sleep = new Map([...sleep, [taken, sleeping.moveOf(taken, at)]])
        taken = choice
        const isUneasy = isPreemption(willing, last, choice)
        this.#add({ parent: trace, at, choice, preemptions: preemptions + Number(isUneasy), sleep })
      }
      preemptions += Number(isPreemption(willing, last, unit))
    }
  }

  #add(branch: Branch): void {
    if (branch.preemptions > this.#most) {
      this.isCut = true
      return
    }
    for (let i = this.#byPreemptions.length; i <= branch.preemptions; i++) this.#byPreemptions.push([])
    this.#byPreemptions[branch.preemptions]?.push(branch)
  }
}

/** Those who would wait come last: most often somebody else's schedule then stands for theirs. */
const inOrder = (
  options: readonly string[],
  reluctant: ReadonlySet<string> = new Set(),
): readonly string[] => [
  ...options.filter((unit) => !reluctant.has(unit)),
  ...options.filter((unit) => reluctant.has(unit)),
]

/** Follows a branch, and notices if the world is another one than when its parent ran. */
export class BranchFollower {
  /** The step at which several were woken and the server let them go in another order than then. */
  divergedAt: number | undefined
  readonly #branch: Branch
  readonly #sleepers: Sleepers | undefined

  /** @param sleepers none given: nobody sleeps */
  constructor(branch: Branch, sleepers: Sleepers | undefined) {
    this.#branch = branch
    this.#sleepers = sleepers
  }

  readonly choose: Choose = (options, steps, crossing) => {
    const { parent, at, choice } = this.#branch
    const i = steps.length
    if (parent && i > 0 && i <= at && this.divergedAt === undefined)
      this.#compare(i - 1, steps[i - 1] as TraceStep)
    const choices = this.#sleepers?.choices(options, steps, crossing) ?? options
    if (this.divergedAt !== undefined || i > at || !parent) return easyChoice(choices, steps[i - 1]?.unit)
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
    if (signStep(then) === signStep(now)) return
    if (!isContested(then) && !isContested(now))
      throw new ScheduleDivergedError(i + 1, signStep(then), signStep(now))
    this.divergedAt = i
    this.#sleepers?.forgetStart()
  }
}
