import type { Fault } from './fault.js'
import type { LateWrite } from './late-writes.js'
import type { StatementLine, StoryLine } from './story.js'

/** What went wrong in a run. */
export interface CrashFailure {
  /**
   * `stuck`: an instance hangs; `late write`: a zombie wrote over what another has written; `repeated effect`;
   * `invariant`; `progress`: something was left undone; `waited`: for a process that is gone or asleep; `failed`: `run`
   * failed with nothing done to it.
   */
  readonly kind: 'stuck' | 'late write' | 'repeated effect' | 'invariant' | 'progress' | 'waited' | 'failed'
  readonly message: string
}

/** One run with one fault, or with none. */
export interface RunRecord {
  readonly fault: Fault | undefined
  /** The run came to the place of its fault. */
  readonly isReached: boolean
  /** And the recovery to that of the second. */
  readonly isReachedAgain: boolean
  /** The statement at which it was. */
  readonly line: StatementLine | undefined
  readonly story: readonly StoryLine[]
  readonly run: 'fulfilled' | 'rejected' | 'died' | 'hangs'
  /** How many times `recover` was started. */
  readonly recoveries: number
  /** Whom recovery had to wait for. */
  readonly waited: string | undefined
  readonly lateWrites: readonly LateWrite[]
  /** Effects that took place more than once. */
  readonly repeated: readonly string[]
  readonly failure: CrashFailure | undefined
}
