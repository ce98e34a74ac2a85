import { ScheduleDivergedError } from '../../../errors.js'
import type { Choose } from '../schedule/schedule-run.js'
import {
  easyChoice,
  isContested,
  isPreemption,
  signStep,
  type Trace,
  type TraceStep,
} from '../schedule/trace.js'

/** A schedule to be run: as `parent` up to `at`, then `choice`, then whatever comes easiest. */
export interface Branch {
  readonly parent: Trace | undefined
  readonly at: number
  readonly choice: string | undefined
  /** Preemptions up to and with `choice`. */
  readonly preemptions: number
}

export const ROOT: Branch = { parent: undefined, at: 0, choice: undefined, preemptions: 0 }

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

  /** What could have been chosen instead, from step `from` on. */
  expand(trace: Trace, from: number): void {
    let preemptions = 0
    for (const [at, { unit, options }] of trace.steps.entries()) {
      const last = trace.steps[at - 1]?.unit
      if (at >= from)
        for (const choice of options)
          if (choice !== unit)
            this.#add({
              parent: trace,
              at,
              choice,
              preemptions: preemptions + Number(isPreemption(options, last, choice)),
            })
      preemptions += Number(isPreemption(options, last, unit))
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

/** Follows a branch, and notices if the world is another one than when its parent ran. */
export class BranchFollower {
  /** The step at which several were woken and the server let them go in another order than then. */
  divergedAt: number | undefined
  readonly #branch: Branch

  constructor(branch: Branch) {
    this.#branch = branch
  }

  readonly choose: Choose = (options, steps) => {
    const { parent, at, choice } = this.#branch
    const i = steps.length
    if (this.divergedAt !== undefined || i > at || !parent) return undefined
    if (i > 0) this.#compare(i - 1, steps[i - 1] as TraceStep)
    if (this.divergedAt !== undefined) return undefined
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
  }
}

/** The step at which a schedule last left the easy path: up to there it is one that was run before. */
export function lastUneasyStep(steps: readonly TraceStep[]): number | undefined {
  const at = steps.findLastIndex(({ options, unit }, i) => unit !== easyChoice(options, steps[i - 1]?.unit))
  return at < 0 ? undefined : at
}
