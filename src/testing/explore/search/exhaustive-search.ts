import { ScheduleDivergedError } from '../../../errors.js'
import type { Reduction } from '../reduce/reduction.js'
import { isServerOrdered, type StepContext, type Trace, type TraceStep } from '../schedule/trace.js'
import { BranchFollower } from './branch-follower.js'
import { type Branch, Frontier, type SleepInfo } from './frontier.js'
import { repeatChoices, type ScheduleChecker } from './schedule-checker.js'
import { SleepSets, transitionOf } from './sleep-sets.js'
import { MAX_WAKE_TRIES, WakeOrders } from './wake-orders.js'

/** How often the search may start anew before it runs every order. */
const MAX_RESTARTS = 50

interface SearchBound {
  readonly preemptions: number
  readonly schedules: number
  /** True: no reduction. Schedules that differ only in the order of independent steps are run too. */
  readonly everyOrder: boolean
}

export interface SearchResult {
  /** True if the search ended by itself, and not by the bound on the number of schedules. */
  readonly isComplete: boolean
  /** True if every schedule was run, or an equivalent one. */
  readonly isExhaustive: boolean
  /** All schedules with at most this many preemptions were run; null: all schedules were run, or the number is unknown. */
  readonly preemptions: number | null
}

/**
 * Runs every schedule within the bound, those with the fewest preemptions first. Reduction leaves out schedules that differ
 * from another only in the order of independent steps. With a bound on preemptions, reduction is off, since the equivalent
 * schedule might be beyond the bound.
 */
export class ExhaustiveSearch {
  readonly #checker: ScheduleChecker
  readonly #bound: SearchBound
  readonly #notes: Set<string>
  readonly #reduction: Reduction
  readonly #wakeOrders: WakeOrders
  #frontier: Frontier
  #restarts = 0

  constructor(checker: ScheduleChecker, reduction: Reduction, bound: SearchBound, notes: Set<string>) {
    this.#checker = checker
    this.#reduction = reduction
    this.#bound = bound
    this.#notes = notes
    this.#wakeOrders = new WakeOrders(notes)
    this.#frontier = new Frontier(bound.preemptions)
  }

  /** True if schedules are left out that are equivalent to others. */
  get isReduced(): boolean {
    const { preemptions, everyOrder } = this.#bound
    return !everyOrder && preemptions === Number.POSITIVE_INFINITY && !this.#reduction.disabledReason
  }

  async run(): Promise<SearchResult> {
    const checker = this.#checker
    let { version } = this.#reduction
    while (checker.schedules + checker.repeats < this.#bound.schedules && !checker.firstFailure) {
      const branch = this.#frontier.next()
      if (!branch) break
      const wasReduced = this.isReduced
      if (!(await this.#runBranch(branch))) continue
      // Facts that the first schedule shows need no restart, since nothing was left out before it.
      const hasLearned = version !== this.#reduction.version && branch.parent !== undefined
      const vacuumsNow = this.#reduction.readsRowOrder && checker.vacuumBetweenRuns()
      if (((hasLearned && wasReduced) || vacuumsNow) && !checker.firstFailure) this.#restart()
      version = this.#reduction.version
    }
    if (!checker.firstFailure && checker.firstRedundantFailure) this.#reportRedundantFailure()
    return this.#result()
  }

  #reportRedundantFailure(): void {
    this.#checker.firstFailure = this.#checker.firstRedundantFailure
    if (this.#frontier.lowestPreemptions >= 0) return
    this.#notes.add(
      'This schedule was taken to be like another, which did not go wrong. That is a fault of the explorer: run with everyOrder, and please report it.',
    )
  }

  #result(): SearchResult {
    const { lowestPreemptions, hasSkippedBranches } = this.#frontier
    if (lowestPreemptions >= 0) {
      // With reduction, the schedule that was run may have more preemptions than an equivalent one that was left out.
      const last = lowestPreemptions > 0 && !this.isReduced ? lowestPreemptions - 1 : null
      return { isComplete: false, isExhaustive: false, preemptions: last }
    }
    const { hasFullPool, hasIdleLoop, hasTimedOut } = this.#checker.gaps
    const isExhaustive =
      !hasSkippedBranches && !this.#wakeOrders.hasUnseenOrder && !hasFullPool && !hasIdleLoop && !hasTimedOut
    return {
      isComplete: true,
      isExhaustive,
      preemptions: hasSkippedBranches ? this.#bound.preemptions : null,
    }
  }

  /**
   * Runs a branch. A statement scans rows in their physical order, and a table that was emptied many times places its rows
   * elsewhere. If a schedule may have diverged for this reason, the search starts anew with a vacuum before each schedule.
   *
   * @returns false if the search starts anew
   */
  async #runBranch(branch: Branch): Promise<boolean> {
    try {
      await this.#followBranch(branch)
      return true
    } catch (error) {
      if (!(error instanceof ScheduleDivergedError) || !this.#checker.vacuumBetweenRuns()) throw error
      this.#restart()
      return false
    }
  }

  /** Runs a branch, and again if the server wakes waiting units in another order than in the branch's parent. */
  async #followBranch(branch: Branch): Promise<void> {
    for (let tries = 0; ; tries++) {
      const sleepSets = this.isReduced ? new SleepSets(this.#reduction, branch) : undefined
      const follower = new BranchFollower(branch, sleepSets)
      const trace = await this.#checker.run(follower.choose, {
        isNew: tries === 0,
        isRedundant: () => sleepSets?.redundantFrom !== undefined,
      })
      this.#reduction.learnFrom(trace)
      if (this.#checker.firstFailure) return this.#recordTurn(branch)
      const from = follower.otherWakeOrderAt
      if (from === undefined) {
        const start = branch.parent ? branch.at + 1 : 0
        this.#frontier.expand(trace, start, this.#sleepInfo(trace, sleepSets))
        return this.#findOtherWakeOrders(trace, start, sleepSets?.redundantFrom)
      }
      this.#expandOtherWakeOrder(trace, from)
      if (tries < MAX_WAKE_TRIES) continue
      this.#wakeOrders.noteUnseen(trace.steps[from] as TraceStep)
      return
    }
  }

  #recordTurn({ parent, at }: Branch): void {
    const { firstFailure } = this.#checker
    if (firstFailure && parent) this.#checker.firstFailure = { ...firstFailure, turnedAt: at }
  }

  /** Adds the branches after a new wake order at step `at`, unless they were added before. */
  #expandOtherWakeOrder(trace: Trace, at: number): void {
    if (!this.#wakeOrders.isNew(trace, at)) return
    this.#checker.schedules++
    this.#frontier.expand(trace, at + 1, this.#sleepInfo(trace))
  }

  /** Starts anew, since a new fact makes more steps dependent: schedules may have been left out that must be run. */
  #restart(): void {
    if (++this.#restarts > MAX_RESTARTS) this.#reduction.disableAfterRestarts()
    this.#frontier = new Frontier(this.#bound.preemptions)
    this.#wakeOrders.forget()
    this.#checker.schedules = 0
    this.#checker.repeats = 0
  }

  #sleepInfo(trace: Trace, sleepSets?: SleepSets): SleepInfo | undefined {
    if (!this.isReduced) return undefined
    return {
      sleepSets: sleepSets?.sleepSets ?? [],
      unitsThatWait: sleepSets?.unitsThatWait ?? [],
      redundantFrom: sleepSets?.redundantFrom,
      transitionOf: (unit, at) => transitionOf(unit, trace.contexts[at] as StepContext, this.#reduction),
    }
  }

  /** Repeats the choices up to each step that woke several units, until the server wakes them in another order. */
  async #findOtherWakeOrders(trace: Trace, start: number, end = trace.steps.length): Promise<void> {
    for (const [at, step] of trace.steps.slice(0, end).entries()) {
      if (at < start || !isServerOrdered(step)) continue
      const other = await this.#wakeOrders.findOther(trace, at, () => this.#repeat(trace, at))
      if (this.#checker.firstFailure) return
      if (other) {
        this.#expandOtherWakeOrder(other, at)
        await this.#findOtherWakeOrders(other, at + 1)
      } else this.#wakeOrders.noteUnseen(step)
    }
  }

  async #repeat(trace: Trace, at: number): Promise<Trace | undefined> {
    const again = await this.#checker.run(repeatChoices(trace, at), { isNew: false })
    this.#reduction.learnFrom(again)
    return this.#checker.firstFailure ? undefined : again
  }
}
