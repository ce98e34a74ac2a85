import type { CrashMode, Fault } from '../fault.js'
import type { LateWrite } from '../late-writes.js'
import type { CrashFailure } from '../run-record.js'
import type { StoryLine } from '../story.js'

/** The report of a crash loop, as plain JSON. */
export interface CrashReport {
  readonly verdict: 'passed' | 'failed'
  /** The result in one sentence. */
  readonly summary: string
  /** The whole report as text. */
  readonly printout: string
  /** The statements of a run without a fault. */
  readonly statements: number
  /** How often the program was run. */
  readonly runs: number
  readonly modes: readonly CrashMode[]
  readonly tookMs: number
  readonly seed: number
  /** Identifies this loop. `DIBS_REPLAY` is the `replay` of a point, `@`, and the identity. */
  readonly identity: string
  /** All points, in order. The first is the run without a fault. */
  readonly points: readonly CrashPoint[]
  /** The different paths of the recoveries. */
  readonly paths: readonly RecoveryPath[]
  /** Limits of the verdict. */
  readonly notes: readonly string[]
  /** The file of the page. */
  readonly page?: string | undefined
}

/** One point, its fault and the result. */
export interface CrashPoint {
  /** The value of the option `replay` that runs this point. */
  readonly replay: string
  /** Null for the run without a fault. */
  readonly fault: Fault | null
  /** The statement at the point, with its parameters. */
  readonly statement: string
  readonly verdict: 'passed' | 'failed'
  readonly failure?: CrashFailure | undefined
  /** How `run` ended. */
  readonly run: 'fulfilled' | 'rejected' | 'died' | 'hangs'
  /** How many times `recover` was started. */
  readonly recoveries: number
  /** The name of the recovery's path. */
  readonly path: string
  /** True if the recovery did something that it does neither on fresh data nor after a run without a fault. */
  readonly entersRecovery: boolean
  /** Describes the wait of a recovery for `run`. */
  readonly waited?: string | undefined
  readonly lateWrites: readonly LateWrite[]
  /** The effects that took place more than once. */
  readonly repeatedEffects: readonly string[]
  /** For a point of mode `process`: true if the same fault within this process had the same result. */
  readonly agrees?: boolean | undefined
  readonly story: readonly StoryLine[]
}

/** The statements of a recovery, for all points that had the same statements. */
export interface RecoveryPath {
  /** `from the start`, `nothing to do`, or a letter. */
  readonly name: string
  /** One line a statement, with its effect. A recovery that failed has one more line, which says how. */
  readonly statements: readonly string[]
  /** How many points had this path. */
  readonly points: number
}
