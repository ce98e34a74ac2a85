import type { TraceStep } from '../schedule/trace.js'

/** What was found, as plain JSON. */
export interface ExploreReport {
  readonly verdict: 'passed' | 'race'
  /** A search, or one schedule that was asked for. */
  readonly mode: 'search' | 'replay' | 'schedule'
  /** One sentence: what was looked at, and how far. */
  readonly summary: string
  /** How many schedules were run that can be told apart. */
  readonly schedules: number
  /** Further ones, which turned out to differ from those only in the order of steps that commute. */
  readonly repeats: number
  /** Statements that were taken to touch more than they say, so that more orders were run than needed, and why. */
  readonly widened: readonly string[]
  /** The search came to its end within its bound. */
  readonly isComplete: boolean
  /** No schedule was left out. */
  readonly isExhaustive: boolean
  /** All schedules with at most so many preemptions were run; null: all (`isExhaustive`), or none such can be named. */
  readonly preemptions: number | null
  /** Schedules in random order, after those in order were too many. */
  readonly random?: RandomPart | undefined
  readonly actors: readonly string[]
  /** Most steps in one schedule. */
  readonly steps: number
  readonly isolation: string
  readonly seconds: number
  /** What a reader must know to trust the verdict: functions taken for one step, orders of the server's never seen. */
  readonly notes: readonly string[]
  readonly race?: FoundRace | undefined
}

export interface RandomPart {
  readonly schedules: number
  readonly seed: number
  /** A race that needs this many steps in a certain order … */
  readonly depth: number
  /** … would have shown with at least this probability. */
  readonly probability: number
}

export interface FoundRace {
  /** Who ran, step by step. */
  readonly schedule: readonly string[]
  /** For the option `replay`. */
  readonly replay: string
  readonly steps: readonly TraceStep[]
  /** The schedule as text, with what went wrong and how to run it again. */
  readonly printout: string
  /** What went wrong. */
  readonly failure: { readonly name: string; readonly message: string }
  /** What the literature calls it, where the schedule shows it for certain, and who did what in which step. */
  readonly anomaly?: { readonly name: string; readonly explanation: string } | undefined
  /** It went wrong though nobody came between: this is a mistake, not a race. */
  readonly isSerial: boolean
}
