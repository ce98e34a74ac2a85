import type { Count } from './hits.js'
import type { Findings } from './world.js'

/** The result of a storm. */
export interface StormReport extends Findings {
  readonly seed: number
  readonly elapsedMs: number
  readonly answered: number
  readonly counts: readonly Count[]
  /** Takeovers of attempts that no fault of ours had struck. */
  readonly unexplained: number
  /** Attempts that threw and that no fault had struck; those of them whose claim was not given back but ran out. */
  readonly threw: number
  readonly notGivenBack: number
  /** Statements that commit by themselves whose answer was lost, with a backend that was ended. */
  readonly answersLost: number
  /** Operations that were left by the processes that died last, and finished by maintenance. */
  readonly maintained: number
  /** How often callers got a retryable error, by its code. */
  readonly again: Readonly<Record<string, number>>
}
