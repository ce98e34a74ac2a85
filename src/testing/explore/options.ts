import type { Pool } from 'pg'
import type { Outcome } from '../gate/actor.js'
import type { ActorPool } from '../gate/actor-pool.js'

export type Isolation = 'read committed' | 'repeatable read' | 'serializable'

/** What an actor, `setup`, `reset` and the invariant are given: a `pg.Pool`, and `url` for other drivers and processes. */
export type ExploreHandle = ActorPool

/** How far to look. */
export interface ExploreBound {
  /** Most preemptions in a schedule: times an actor is left though it could go on. None given: any number. */
  readonly preemptions?: number | undefined
  /** Most schedules to run in order. Default 2,000. */
  readonly schedules?: number | undefined
  /** When those were not all: how many more to run in random order. Default 250. */
  readonly random?: number | undefined
  /** Most steps in one schedule before an actor counts as one that never ends. Default 500. */
  readonly steps?: number | undefined
}

export interface ExploreOptions {
  /**
   * Where the database is. Code under test that uses this very pool is explored as it is: while an actor runs, what it
   * asks of the pool goes through the explorer.
   */
  readonly pool?: Pool | undefined
  /** Where the database is, if there is no pool. */
  readonly url?: string | undefined
  /** Makes the rows that each schedule starts with. Runs before each schedule. */
  readonly setup?: ((db: ExploreHandle) => unknown) | undefined
  /** Who runs at the same time, by name. */
  readonly actors: Readonly<Record<string, (db: ExploreHandle) => unknown>>
  /** Throws, or returns false, if what the actors left is wrong. Must not change anything. */
  readonly invariant?:
    | ((db: ExploreHandle, outcomes: Readonly<Record<string, Outcome>>) => unknown)
    | undefined
  /** Errors that an actor may end with. Any other that it does not handle is a failure of the schedule. */
  readonly mayFail?: ((error: unknown, actor: string) => boolean) | undefined
  readonly bound?: ExploreBound | undefined
  /**
   * True: also schedules that differ from another only in the order of steps that commute. For actors that share memory,
   * the order of which the database does not know.
   */
  readonly everyOrder?: boolean | undefined
  /** For transactions and statements that do not say. Default: the server's. */
  readonly isolation?: Isolation | undefined
  /** For random orders, and for what actors draw at random. Default 1. */
  readonly seed?: number | undefined
  /** The time that `Date` shows the actors at their start. Each read moves it by a millisecond. Default: real time. */
  readonly clockStartsAt?: Date | undefined
  /** Identifies this exploration for `DIBS_REPLAY`. Default: the names of the actors, with the other options. */
  readonly name?: string | undefined
  /**
   * The string of a printout: runs that schedule alone. Default: the environment's `DIBS_REPLAY`, if this exploration has
   * printed it.
   */
  readonly replay?: string | undefined
  /** One order, by the names of the actors, a name a step; once it is used up, whoever can go on does. */
  readonly schedule?: readonly string[] | undefined
  /** False: a race is not thrown but reported. */
  readonly throws?: boolean | undefined
  /**
   * The file to which the report is written as a page, whatever was found. Default: for a race, one in the folder that the
   * environment's `DIBS_REPORT` names.
   */
  readonly page?: string | undefined
  /** Puts the tables back between schedules, in place of the explorer, which empties those that were written. */
  readonly reset?: ((db: ExploreHandle) => unknown) | undefined
  /**
   * How long nothing may happen before the explorer says that an actor waits for something it cannot see. Default: the
   * environment's `DIBS_PATIENCE_MS`, or 5,000.
   */
  readonly patienceMs?: number | undefined
  /**
   * The role has no right to set `deadlock_timeout`: let deadlocks take the server's own time (a second, mostly), and let
   * the server choose the victim.
   */
  readonly slowDeadlocks?: boolean | undefined
}
