import type { TraceStep } from '../schedule/trace.js'
import type { StepLink } from './links.js'

/** What was found, as plain JSON. */
export interface ExploreReport {
  readonly verdict: 'passed' | 'race'
  /** A search, or one schedule that was asked for. */
  readonly mode: 'search' | 'replay' | 'schedule'
  /** One sentence: what was looked at, and how far. */
  readonly summary: string
  /** How many schedules were run that can be told apart. */
  readonly schedules: number
  /** How far schedules were left out because others stand for them. */
  readonly reduction: ReductionPart
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
  readonly tookMs: number
  /** What a reader must know to trust the verdict: functions taken for one step, orders of the server's never seen. */
  readonly notes: readonly string[]
  readonly race?: FoundRace | undefined
  /** The file that its page was written to. */
  readonly page?: string | undefined
}

/** Of schedules that differ only in the order of steps that commute, one is enough. */
export interface ReductionPart {
  /** Why every order was run nevertheless; null: it was not. */
  readonly off: string | null
  /** Schedules beside those counted, which turned out to be like one of them. */
  readonly repeats: number
  /** What was taken to touch more than it says, so that more orders were run than needed, and why. */
  readonly widened: readonly string[]
}

export interface RandomPart {
  readonly schedules: number
  readonly seed: number
  /** A race that needs this many steps in a certain order … */
  readonly depth: number
  /** … would have shown with at least this probability. */
  readonly probability: number
}

/** Where the schedule leaves one that was right, and has to do with whoever was left. */
export interface Turn {
  /** Index into `steps`. */
  readonly step: number
  readonly text: string
}

export interface FoundRace {
  /** Who ran, step by step. */
  readonly schedule: readonly string[]
  /** For the option `replay`. */
  readonly replay: string
  readonly steps: readonly TraceStep[]
  /** How the steps hang together: who waits for whom, who reads what of whom. */
  readonly links: readonly StepLink[]
  /** What this kind of race is called, where the schedule shows it for certain, and who did what in which step. */
  readonly anomaly?: { readonly name: string; readonly explanation: string } | undefined
  /** The schedule as text, with what went wrong and how to run it again. */
  readonly printout: string
  /** What went wrong. */
  readonly failure: { readonly name: string; readonly message: string }
  /** Where it left a schedule that was right, if a search has found it. */
  readonly turn?: Turn | undefined
  /** It went wrong though nobody came between: this is a mistake, not a race. */
  readonly isSerial: boolean
}
