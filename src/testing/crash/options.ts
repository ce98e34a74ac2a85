import type { ChildProcess } from 'node:child_process'
import type { Pool } from 'pg'
import type { Isolation } from '../../postgres/transaction-types.js'
import type { ExploreHandle } from '../explore/options.js'
import type { Outcome } from '../gate/actor.js'
import type { RecordedEffects } from './effects.js'
import type { CrashMode, Fault } from './fault.js'
import type { LateWrite } from './late-writes.js'

/** The `db` of `run`, `recover` and the other functions: a `pg.Pool`, and `url` for other drivers. */
export type CrashHandle = ExploreHandle

/** One start of the program under test. */
export interface CrashInstance {
  /** 1 for `run`, and 2 or more for `recover`. */
  readonly number: number
  /** Ends the process at once, as a lack of memory would. Never returns: `await die()`. */
  readonly die: () => Promise<never>
}

/** The outcomes of `run` and of each `recover`. An instance that was killed has none. */
export interface CrashOutcome {
  readonly run: Outcome | undefined
  readonly recoveries: readonly (Outcome | undefined)[]
  /** The injected fault. Undefined in the run without a fault. */
  readonly fault: Fault | undefined
}

export interface CrashBound {
  /** How many times `recover` may start until `progress` is true. Default 3: at once, and twice after `advance`. */
  readonly recoveries?: number | undefined
  /** The number of statements after which a run counts as endless. Default 500. */
  readonly statements?: number | undefined
  /** The number of points that mode `process` tests. Default 10. */
  readonly processPoints?: number | undefined
}

export interface CrashLoopOptions {
  /** A pool of the database. Code under test that uses this pool needs no change. */
  readonly pool?: Pool | undefined
  /** The URL of the database, if there is no pool. */
  readonly url?: string | undefined
  /** Inserts the rows that each run starts with. */
  readonly setup?: ((db: CrashHandle) => unknown) | undefined
  /** The program under test. */
  readonly run: (db: CrashHandle, instance: CrashInstance) => unknown
  /** The recovery by a fresh instance. Default: `run` again, as a caller without an answer does. */
  readonly recover?: ((db: CrashHandle, instance: CrashInstance) => unknown) | undefined
  /** Moves time past the leases. Called before each `recover` except the first. */
  readonly advance?: ((db: CrashHandle) => unknown) | undefined
  /** True once all work is done or canceled in an orderly way. Default: true if `recover` has not thrown. */
  readonly progress?: ((db: CrashHandle) => unknown) | undefined
  /** Throws, or returns false, if the final state is wrong. Must not change anything. */
  readonly invariant?: ((db: CrashHandle, outcome: CrashOutcome) => unknown) | undefined
  /** Records effects outside the database. None of them may take place twice. */
  readonly effects?: RecordedEffects | undefined
  /** Default: `crash`, `error`, `half-open` and `zombie`. */
  readonly modes?: readonly CrashMode[] | undefined
  /** The SQLSTATEs that mode `error` injects. Default: 40001, 40P01, 57P01, 08006, 55P03. */
  readonly errors?: readonly string[] | undefined
  /** True: after each crash the recovery crashes too, at each of its points in turn. */
  readonly duringRecovery?: boolean | undefined
  /** False: a recovery that waits for a lock of a killed or paused process fails. Default true: the report notes the wait. */
  readonly mayWait?: boolean | undefined
  /** Returns true for a row that a zombie may overwrite after another has taken over. Default: no row. */
  readonly mayWriteLate?: ((write: LateWrite) => boolean) | undefined
  /** For mode `process`: starts the program as a process of its own, which connects to `url`. */
  readonly child?: ((url: string) => ChildProcess) | undefined
  readonly bound?: CrashBound | undefined
  /** The default isolation level of transactions and statements. Default: the server's. */
  readonly isolation?: Isolation | undefined
  /** The seed of the instances' random numbers and of the points that mode `process` tests. Default 1. */
  readonly seed?: number | undefined
  /** The time that `Date` shows the instances at their start. Each read advances it by a millisecond. Default: real time. */
  readonly clockStartsAt?: Date | undefined
  /** Identifies this loop for `DIBS_REPLAY`. Default: its options. */
  readonly name?: string | undefined
  /** The replay string of one point, which runs alone. Default: the environment's `DIBS_REPLAY`, if this loop printed it. */
  readonly replay?: string | undefined
  /** False: a failure is reported and not thrown. */
  readonly throws?: boolean | undefined
  /** The file for the report as a page. Default: for a failure, a file in the folder that `DIBS_REPORT` names. */
  readonly page?: string | undefined
  /** Resets the tables between runs. Default: the loop empties the tables that were written. */
  readonly reset?: ((db: CrashHandle) => unknown) | undefined
  /** How long nothing may happen until an instance counts as hanging. Default: `DIBS_PATIENCE_MS`, or 3,000. */
  readonly patienceMs?: number | undefined
}
