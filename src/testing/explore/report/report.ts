import type { TraceStep } from '../schedule/trace.js'
import type { StepLink } from './links.js'

/** The result of an exploration, as plain JSON. */
export interface ExploreReport {
  readonly verdict: 'passed' | 'race'
  /** A search, or one schedule that the options name. */
  readonly mode: 'search' | 'replay' | 'schedule'
  /** One sentence: what was explored, and how far. */
  readonly summary: string
  /** How many different schedules were run. */
  readonly schedules: number
  /** Tells how many schedules were left out, since they are equivalent to others, and why not more. */
  readonly reduction: ReductionPart
  /** True if the search ended by itself, and not by the bound on schedules. */
  readonly isComplete: boolean
  /** True if every schedule was run, or an equivalent one. */
  readonly isExhaustive: boolean
  /** All schedules with at most this many preemptions were run; null if all were run (`isExhaustive`), or no number can be named. */
  readonly preemptions: number | null
  /** The schedules in random order, which are run if the search did not finish. */
  readonly random?: RandomPart | undefined
  readonly actors: readonly string[]
  /** The most steps that a schedule had. */
  readonly steps: number
  readonly isolation: string
  readonly tookMs: number
  /** Limits of the verdict: functions that run as one step, orders of the server that were not seen. */
  readonly notes: readonly string[]
  readonly race?: FoundRace | undefined
  /** The file to which the page was written. */
  readonly page?: string | undefined
}

/** The reduction of the search: of schedules that differ only in the order of independent steps, one is run. */
export interface ReductionPart {
  /** Why the reduction was off, so that every order was run; null if it was on. */
  readonly off: string | null
  /** How many further schedules were run that turned out to be equivalent to one of those counted. */
  readonly repeats: number
  /** Statements and tables that count as touching more than their text says, so that more orders were run than needed. */
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

/** The step at which a failed schedule departs from one that did not fail. */
export interface Turn {
  /** Index into `steps`. */
  readonly step: number
  readonly text: string
}

export interface FoundRace {
  /** The unit of each step. */
  readonly schedule: readonly string[]
  /** For the option `replay`. */
  readonly replay: string
  readonly steps: readonly TraceStep[]
  /** The relations between the steps: which waits for which, which reads what another wrote. */
  readonly links: readonly StepLink[]
  /** The name of the anomaly, if the schedule certainly shows it, and which unit did what in which step. */
  readonly anomaly?: { readonly name: string; readonly explanation: string } | undefined
  /** The schedule as text, with the failure and the replay string. */
  readonly printout: string
  /** The failure: an error of an actor, or a violation of the invariant. */
  readonly failure: { readonly name: string; readonly message: string }
  /** The step at which it departs from a schedule that did not fail, if a search has found it. */
  readonly turn?: Turn | undefined
  /** True if the actors ran one after the other: a mistake in the code, not a race. */
  readonly isSerial: boolean
}
