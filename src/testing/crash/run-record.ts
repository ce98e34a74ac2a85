import type { Fault } from './fault.js'
import type { LateWrite } from './late-writes.js'
import type { StatementLine, StoryLine } from './story.js'

/** The failure of a run. */
export interface CrashFailure {
  /**
   * - `stuck`: an instance hangs;
   * - `late write`: a zombie overwrote a row of another instance;
   * - `repeated effect`: an effect took place more than once;
   * - `invariant`: the final state is wrong;
   * - `progress`: work is left undone;
   * - `waited`: the recovery waited for a killed or paused process;
   * - `failed`: `run` failed without a fault.
   */
  readonly kind: 'stuck' | 'late write' | 'repeated effect' | 'invariant' | 'progress' | 'waited' | 'failed'
  readonly message: string
}

/** One run with one fault, or with none. */
export interface RunRecord {
  readonly fault: Fault | undefined
  /** True if `run` reached the point of the fault. */
  readonly isReached: boolean
  /** True if the recovery reached the point of the second crash. */
  readonly isReachedAgain: boolean
  /** The statement at the point of the fault. */
  readonly line: StatementLine | undefined
  readonly story: readonly StoryLine[]
  readonly run: 'fulfilled' | 'rejected' | 'died' | 'hangs'
  /** How many times `recover` was started. */
  readonly recoveries: number
  /** Describes the wait of a recovery for `run`. */
  readonly waited: string | undefined
  readonly lateWrites: readonly LateWrite[]
  /** The effects that took place more than once. */
  readonly repeated: readonly string[]
  readonly failure: CrashFailure | undefined
}
