import { ScheduleDivergedError } from '../../../errors.js'
import type { Reduction } from '../reduce/reduction.js'
import { isContested, type Moment, signStep, type Trace, type TraceStep } from '../schedule/trace.js'
import { type Branch, BranchFollower, Frontier, type Sleeping } from './frontier.js'
import { moveOf, Sleepers } from './sleepers.js'
import { sameChoices, type Trials } from './trials.js'

/** How often the search may begin anew before nothing is left out any more. */
const MOST_STARTS = 50

/** How often a schedule is run again to see the server wake those who waited in another order … */
export const WAKE_TRIES = 5
/** … and how often in vain for the same statements, before it is taken to have one order only. */
const VAIN_TRIES = 25

export interface SearchBound {
  readonly preemptions: number
  readonly schedules: number
  /** Also those schedules that differ only in the order of steps that commute. */
  readonly everyOrder: boolean
}

export interface Reached {
  /** The search came to its end, and was not cut short by the number of schedules. */
  readonly isComplete: boolean
  /** No schedule was left out. */
  readonly isExhaustive: boolean
  /** All with at most so many preemptions were run; null: with any number, or not even those without. */
  readonly preemptions: number | null
}

/**
 * Runs every schedule within the bound, those with the fewest preemptions first; of those that differ only in the order of
 * steps that commute, one. Not so within a bound of preemptions: the one that is run might be beyond it.
 */
export class SearchAll {
  readonly #trials: Trials
  readonly #bound: SearchBound
  readonly #notes: Set<string>
  readonly #reduction: Reduction
  #frontier: Frontier
  /** By the statements of a contest: how often the other order was sought in vain. */
  readonly #vainTries = new Map<string, number>()
  /** Orders of the server's own that were met beside the one that a schedule was first seen with. */
  readonly #met = new Set<string>()
  #starts = 0
  /** An order of the server's own did not come, or did not come again. */
  #hasUnseen = false

  constructor(trials: Trials, reduction: Reduction, bound: SearchBound, notes: Set<string>) {
    this.#trials = trials
    this.#reduction = reduction
    this.#bound = bound
    this.#notes = notes
    this.#frontier = new Frontier(bound.preemptions)
  }

  /** Schedules are left out that others stand for. */
  get isReduced(): boolean {
    const { preemptions, everyOrder } = this.#bound
    return !everyOrder && preemptions === Number.POSITIVE_INFINITY && !this.#reduction.off
  }

  async run(): Promise<Reached> {
    const { preemptions, schedules } = this.#bound
    let { version } = this.#reduction
    while (this.#trials.schedules + this.#trials.repeats < schedules && !this.#trials.found) {
      const branch = this.#frontier.next()
      if (!branch) break
      const wasReduced = this.isReduced
      if (!(await this.#followIn(branch))) continue
      // Nothing hung on it yet when the first one was run.
      const hasLearned = version !== this.#reduction.version && branch.parent !== undefined
      const isTidied = this.#reduction.seesOrder && this.#trials.tidyUp()
      if (((hasLearned && wasReduced) || isTidied) && !this.#trials.found) this.#startAnew()
      version = this.#reduction.version
    }
    const { level, isCut } = this.#frontier
    if (!this.#trials.found && this.#trials.foundInRepeat) {
      this.#trials.found = this.#trials.foundInRepeat
      if (level < 0)
        this.#notes.add(
          'This schedule was taken to be like another, which did not go wrong. That is a fault of the explorer: run with everyOrder, and please report it.',
        )
    }
    if (level >= 0) {
      // Those that others stand for may be at a level that was not reached.
      const last = level > 0 && !this.isReduced ? level - 1 : null
      return { isComplete: false, isExhaustive: false, preemptions: last }
    }
    const { hasFullPool, hasIdleLoop, hasTimedOut } = this.#trials.cautions
    const isWhole = !isCut && !this.#hasUnseen && !hasFullPool && !hasIdleLoop && !hasTimedOut
    return { isComplete: true, isExhaustive: isWhole, preemptions: isCut ? preemptions : null }
  }

  /**
   * Where rows lie decides in which order a statement comes to them, and they do not lie as before when tables were emptied
   * a hundred times. If that shows, all begins again, with tables that are cleaned up each time. So it does where somebody
   * is seen to take rows as they lie.
   *
   * @returns it was run
   */
  async #followIn(branch: Branch): Promise<boolean> {
    try {
      await this.#follow(branch)
      return true
    } catch (error) {
      if (!(error instanceof ScheduleDivergedError) || !this.#trials.tidyUp()) throw error
      this.#startAnew()
      return false
    }
  }

  /** Runs a branch, and again while the server wakes those who waited in another order than the branch stands on. */
  async #follow(branch: Branch): Promise<void> {
    for (let tries = 0; ; tries++) {
      const sleepers = this.isReduced ? new Sleepers(this.#reduction, branch) : undefined
      const follower = new BranchFollower(branch, sleepers)
      const trace = await this.#trials.run(follower.choose, {
        isNew: tries === 0,
        isRepeat: () => sleepers?.repeatsFrom !== undefined,
      })
      this.#reduction.read(trace)
      if (this.#trials.found) return this.#noteTurn(branch)
      const from = follower.divergedAt
      if (from === undefined) {
        const start = branch.parent ? branch.at + 1 : 0
        this.#frontier.expand(trace, start, this.#sleeping(trace, sleepers))
        return this.#seekOtherWakes(trace, start, sleepers?.repeatsFrom)
      }
      this.#meet(trace, from)
      if (tries < WAKE_TRIES) continue
      this.#hasUnseen = true
      this.#notes.add(wakeNote(trace.steps[from] as TraceStep))
      return
    }
  }

  #noteTurn({ parent, at }: Branch): void {
    const { found } = this.#trials
    if (found && parent) this.#trials.found = { ...found, turnedAt: at }
  }

  /** The server has let those who waited go in an order that may be new: what could follow from there is still to be run. */
  #meet(trace: Trace, at: number): void {
    const path = trace.steps
      .slice(0, at + 1)
      .map((step) => (isContested(step) ? signStep(step) : step.unit))
      .join('\n')
    if (this.#met.has(path)) return
    this.#met.add(path)
    this.#trials.schedules++
    this.#frontier.expand(trace, at + 1, this.#sleeping(trace))
  }

  /** It was thought that steps commute which do not: what was left out because of it must be run. */
  #startAnew(): void {
    if (++this.#starts > MOST_STARTS) this.#reduction.giveUp()
    this.#frontier = new Frontier(this.#bound.preemptions)
    this.#met.clear()
    this.#hasUnseen = false
    this.#trials.schedules = 0
    this.#trials.repeats = 0
  }

  #sleeping(trace: Trace, sleepers?: Sleepers): Sleeping | undefined {
    if (!this.isReduced) return undefined
    return {
      at: sleepers?.at ?? [],
      reluctant: sleepers?.reluctant ?? [],
      repeatsFrom: sleepers?.repeatsFrom,
      moveOf: (unit, at) => moveOf(unit, trace.moments[at] as Moment, this.#reduction),
    }
  }

  /** Several woken by one step: runs the same choices again, to meet the order that was not seen. */
  async #seekOtherWakes(trace: Trace, start: number, end = trace.steps.length): Promise<void> {
    for (const [at, step] of trace.steps.slice(0, end).entries()) {
      if (at < start || !isContested(step)) continue
      const other = await this.#otherWake(trace, at)
      if (this.#trials.found) return
      if (other) {
        this.#meet(other, at)
        await this.#seekOtherWakes(other, at + 1)
      } else {
        this.#hasUnseen = true
        this.#notes.add(wakeNote(step))
      }
    }
  }

  async #otherWake(trace: Trace, at: number): Promise<Trace | undefined> {
    const step = trace.steps[at] as TraceStep
    const contest = contestOf(trace, at)
    for (let tries = 0; tries < WAKE_TRIES; tries++) {
      const vain = this.#vainTries.get(contest) ?? 0
      if (vain >= VAIN_TRIES) return undefined
      const again = await this.#trials.run(sameChoices(trace, at), { isNew: false })
      this.#reduction.read(again)
      const now = again.steps[at]
      if (this.#trials.found || (now && signStep(now) !== signStep(step))) {
        // It does happen, so it is sought every time.
        this.#vainTries.set(contest, Number.NEGATIVE_INFINITY)
        return again
      }
      this.#vainTries.set(contest, vain + 1)
    }
    return undefined
  }
}

/** What is the same for every contest of this kind, whoever takes part in it. */
function contestOf({ steps }: Trace, at: number): string {
  const { statement, resumed, waiters } = steps[at] as TraceStep
  const statementOf = (unit: string): string =>
    steps.slice(0, at).findLast((step) => step.unit === unit)?.statement ?? ''
  return JSON.stringify([statement, waiters, resumed.map(({ unit }) => statementOf(unit)).toSorted()])
}

const wakeNote = ({ statement, waiters }: TraceStep): string =>
  `${JSON.stringify(statement)} frees a lock that ${waiters} wait for; who of them goes first is the server's choice, and it was seen in one order only.`
