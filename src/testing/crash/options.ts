import type { ChildProcess } from 'node:child_process'
import type { Pool } from 'pg'
import type { ExploreHandle, Isolation } from '../explore/options.js'
import type { Outcome } from '../gate/actor.js'
import type { RecordedEffects } from './effects.js'
import type { CrashMode, Fault } from './fault.js'
import type { LateWrite } from './late-writes.js'

/** What `run`, `recover` and the other functions are given: a `pg.Pool`, and `url` for other drivers. */
export type CrashHandle = ExploreHandle

/** One start of the program under test. */
export interface CrashInstance {
  /** 1 for `run`; `recover` gets 2 and on. */
  readonly number: number
  /** The process ends here and now, as by a lack of memory. Never returns: `await die()`. */
  readonly die: () => Promise<never>
}

/** What `run` and each `recover` ended with. Those that died ended with nothing. */
export interface CrashOutcome {
  readonly run: Outcome | undefined
  readonly recoveries: readonly (Outcome | undefined)[]
  /** What was done to them; undefined: nothing. */
  readonly fault: Fault | undefined
}

export interface CrashBound {
  /** How many times `recover` may be started until `progress` is true. Default 3: at once, and twice after `advance`. */
  readonly recoveries?: number | undefined
  /** Most statements of one run before it counts as one that never ends. Default 500. */
  readonly statements?: number | undefined
  /** How many points mode `process` takes. Default 10. */
  readonly processPoints?: number | undefined
}

export interface CrashLoopOptions {
  /** Where the database is. Code under test that uses this very pool needs no change. */
  readonly pool?: Pool | undefined
  /** Where the database is, if there is no pool. */
  readonly url?: string | undefined
  /** Makes the rows that each run starts with. */
  readonly setup?: ((db: CrashHandle) => unknown) | undefined
  /** The program under test, from its start to its end. */
  readonly run: (db: CrashHandle, instance: CrashInstance) => unknown
  /** What a fresh instance does after the fault. Default: `run` again, as a caller does who has got no answer. */
  readonly recover?: ((db: CrashHandle, instance: CrashInstance) => unknown) | undefined
  /** Moves time past the leases, before each start of `recover` but the first. */
  readonly advance?: ((db: CrashHandle) => unknown) | undefined
  /** True once all that was begun is done, or is given up in an orderly way. Default: `recover` ended without an error. */
  readonly progress?: ((db: CrashHandle) => unknown) | undefined
  /** Throws, or returns false, if what is left in the end is wrong. Must not change anything. */
  readonly invariant?: ((db: CrashHandle, outcome: CrashOutcome) => unknown) | undefined
  /** The world outside: none of its effects may take place twice. */
  readonly effects?: RecordedEffects | undefined
  /** Default: `crash`, `error`, `half-open` and `zombie`. */
  readonly modes?: readonly CrashMode[] | undefined
  /** What statements fail with in mode `error`. Default: 40001, 40P01, 57P01, 08006, 55P03. */
  readonly errors?: readonly string[] | undefined
  /** True: after each crash the recovery crashes too, at each of its points in turn. */
  readonly duringRecovery?: boolean | undefined
  /** False: recovery that waits for a lock of a process that is gone or asleep has failed. Default true: it is told. */
  readonly mayWait?: boolean | undefined
  /** What a zombie may write over though another has taken over. Default: nothing. */
  readonly mayWriteLate?: ((write: LateWrite) => boolean) | undefined
  /** For mode `process`: starts the program as a process of its own, which finds the database at `url`. */
  readonly child?: ((url: string) => ChildProcess) | undefined
  readonly bound?: CrashBound | undefined
  /** For transactions and statements that do not say. Default: the server's. */
  readonly isolation?: Isolation | undefined
  /** For what instances draw at random, and for the points that mode `process` takes. Default 1. */
  readonly seed?: number | undefined
  /** The time that `Date` shows the instances at their start. Each read moves it by a millisecond. Default: real time. */
  readonly clockStartsAt?: Date | undefined
  /** Identifies this loop for `DIBS_REPLAY`. Default: its options. */
  readonly name?: string | undefined
  /** The string of a printout: that point alone. Default: the environment's `DIBS_REPLAY`, if this loop has printed it. */
  readonly replay?: string | undefined
  /** False: what was found is not thrown but reported. */
  readonly throws?: boolean | undefined
  /** The file to which the report is written as a page. Default: if it failed, one in the folder that `DIBS_REPORT` names. */
  readonly page?: string | undefined
  /** Puts the tables back between runs, in place of the loop, which empties those that were written. */
  readonly reset?: ((db: CrashHandle) => unknown) | undefined
  /** How long nothing may happen before an instance counts as one that hangs. Default: `DIBS_PATIENCE_MS`, or 3,000. */
  readonly patienceMs?: number | undefined
}
