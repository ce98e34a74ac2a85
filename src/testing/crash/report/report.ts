import type { CrashMode, Fault } from '../fault.js'
import type { LateWrite } from '../late-writes.js'
import type { CrashFailure } from '../record.js'
import type { StoryLine } from '../story.js'

/** What was found, as plain JSON. */
export interface CrashReport {
  readonly verdict: 'passed' | 'failed'
  /** One sentence: what was done, and how far. */
  readonly summary: string
  /** All of it as text. */
  readonly printout: string
  /** The statements of a run without a fault. */
  readonly statements: number
  /** How often the program was run. */
  readonly runs: number
  readonly modes: readonly CrashMode[]
  readonly tookMs: number
  readonly seed: number
  /** Tells this loop from others: `DIBS_REPLAY` is the `replay` of a point, `@`, and this. */
  readonly identity: string
  /** Every point at which something was done, in order; the first is the run without a fault. */
  readonly points: readonly CrashPoint[]
  /** The ways that recovery took. */
  readonly paths: readonly RecoveryPath[]
  /** What a reader must know to trust the verdict. */
  readonly notes: readonly string[]
  /** The file that its page was written to. */
  readonly page?: string | undefined
}

/** What was done at one point, and what came of it. */
export interface CrashPoint {
  /** For the option `replay`. */
  readonly replay: string
  /** Null: nothing was done. */
  readonly fault: Fault | null
  /** The statement at the point, with its parameters. */
  readonly statement: string
  readonly verdict: 'passed' | 'failed'
  readonly failure?: CrashFailure | undefined
  /** How `run` itself ended. */
  readonly run: 'fulfilled' | 'rejected' | 'died' | 'hangs'
  /** How many times `recover` was started. */
  readonly recoveries: number
  /** The name of a path. */
  readonly path: string
  /** Recovery did something that it does neither on fresh data nor after a run without a fault. */
  readonly entersRecovery: boolean
  /** Whom recovery had to wait for. */
  readonly waited?: string | undefined
  readonly lateWrites: readonly LateWrite[]
  /** Effects that took place more than once. */
  readonly repeatedEffects: readonly string[]
  /** Of a point in mode `process`: the same happened within this process. */
  readonly agrees?: boolean | undefined
  readonly story: readonly StoryLine[]
}

/** What recovery did, for all points at which it did the same. */
export interface RecoveryPath {
  /** `from the start`, `nothing to do`, or a letter. */
  readonly name: string
  /** One line a statement, with what the server answered; and how it ended, where that was not well. */
  readonly statements: readonly string[]
  /** How many points led here. */
  readonly points: number
}
