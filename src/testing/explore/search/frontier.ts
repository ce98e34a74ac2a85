import type { Transition } from '../reduce/execution.js'
import { isPreemption, type Trace } from '../schedule/trace.js'
import { NO_SLEEPING_UNITS, type SleepSet } from './sleep-sets.js'

/** A schedule to run: the choices of `parent` before step `at`, then `choice`, then the default choices. */
export interface Branch {
  readonly parent: Trace | undefined
  readonly at: number
  readonly choice: string | undefined
  /** The number of preemptions, up to and including `choice`. */
  readonly preemptions: number
  /** The units that sleep at step `at`, since other branches take their steps there. */
  readonly sleepSet: SleepSet
}

const ROOT: Branch = {
  parent: undefined,
  at: 0,
  choice: undefined,
  preemptions: 0,
  sleepSet: NO_SLEEPING_UNITS,
}

/** The units that need no branch, for each step of a trace. */
export interface SleepInfo {
  readonly sleepSets: readonly SleepSet[]
  readonly unitsThatWait: readonly ReadonlySet<string>[]
  readonly redundantFrom: number | undefined
  /** The step that a unit took, or could have taken, at `at`. */
  transitionOf(unit: string, at: number): Transition
}

/**
 * Queues the branches that are not run yet. Branches with the fewest preemptions come first, so that the search finds a race
 * in its simplest schedule. Each schedule is queued once, by the branch at its last choice that is not the default.
 */
export class Frontier {
  readonly #byPreemptions: Branch[][] = [[ROOT]]
  readonly #maxPreemptions: number
  /** True if branches beyond the bound of preemptions were left out. */
  hasSkippedBranches = false

  constructor(maxPreemptions: number) {
    this.#maxPreemptions = maxPreemptions
  }

  /** The fewest preemptions of a branch that is not run yet; -1 if there is none. */
  get lowestPreemptions(): number {
    return this.#byPreemptions.findIndex((branches) => branches.length > 0)
  }

  next(): Branch | undefined {
    return this.#byPreemptions[this.lowestPreemptions]?.shift()
  }

  /**
   * Adds a branch for each other choice from step `from` on, except for units that sleep there. Of several branches at one
   * step, each puts the units of the earlier ones to sleep.
   *
   * @param sleeping undefined if the search is not reduced
   */
  expand(trace: Trace, from: number, sleeping?: SleepInfo): void {
    let preemptions = 0
    const to = sleeping?.redundantFrom ?? trace.steps.length
    for (const [at, { unit, options }] of trace.steps.slice(0, to).entries()) {
      const last = trace.steps[at - 1]?.unit
      // A switch away from a unit that would have to wait is no preemption.
      const withoutWait = options.filter((option) => !sleeping?.unitsThatWait[at]?.has(option))
      let sleepSet = sleeping?.sleepSets[at] ?? NO_SLEEPING_UNITS
      let earlierChoice = unit
      // guard: explorer.all-choices
      for (const choice of at < from ? [] : withoutWaitFirst(options, sleeping?.unitsThatWait[at])) {
        if (choice === unit || sleepSet.has(choice)) continue
        if (sleeping)
          sleepSet = new Map([...sleepSet, [earlierChoice, sleeping.transitionOf(earlierChoice, at)]])
        earlierChoice = choice
        const added = Number(isPreemption(withoutWait, last, choice))
        this.#add({ parent: trace, at, choice, preemptions: preemptions + added, sleepSet })
      }
      preemptions += Number(isPreemption(withoutWait, last, unit))
    }
  }

  #add(branch: Branch): void {
    if (branch.preemptions > this.#maxPreemptions) {
      this.hasSkippedBranches = true
      return
    }
    for (let i = this.#byPreemptions.length; i <= branch.preemptions; i++) this.#byPreemptions.push([])
    this.#byPreemptions[branch.preemptions]?.push(branch)
  }
}

/** Sorts units that would wait to the end, since their schedules are mostly equivalent to those of the other units. */
const withoutWaitFirst = (
  options: readonly string[],
  unitsThatWait: ReadonlySet<string> = new Set(),
): readonly string[] => [
  ...options.filter((unit) => !unitsThatWait.has(unit)),
  ...options.filter((unit) => unitsThatWait.has(unit)),
]
