import type { Pool } from 'pg'
import { InvalidInputError } from '../../errors.js'
import { checkFunction } from '../../options/check-function.js'
import { wholeNumber } from '../../options/number-options.js'
import { checked, required } from '../../options/option.js'
import { optionTable, type ReadOptions } from '../../options/option-table.js'
import { boolean, func, stringList } from '../../options/value-options.js'
import type { Isolation } from '../../postgres/transaction-types.js'
import { currentActor, type Outcome } from '../gate/actor.js'
import type { ActorPool } from '../gate/actor-pool.js'
import { checkTarget, sharedOptions } from '../shared-options.js'
import { actorOf } from './schedule/trace.js'

/** The argument of actors, `setup`, `reset` and the invariant: a `pg.Pool`, and `url` for other drivers and processes. */
export type ExploreHandle = ActorPool

/** How many schedules to run, and how long each may be. */
export interface ExploreBound {
  /** The most preemptions in one schedule. A preemption leaves an actor that could go on. Default: no limit. */
  readonly preemptions?: number | undefined
  /** The most schedules that the systematic search runs. Default 2,000. */
  readonly schedules?: number | undefined
  /** How many schedules to run in random order if the systematic search did not finish. Default 250. */
  readonly random?: number | undefined
  /** The most steps in one schedule. An actor that needs more counts as endless. Default 500. */
  readonly steps?: number | undefined
}

export interface ExploreOptions {
  /**
   * The database, as a pool. Code under test that uses this very pool needs no change: while an actor runs, its calls
   * of the pool go through the explorer.
   */
  readonly pool?: Pool | undefined
  /** The database, as a URL, if there is no pool. */
  readonly url?: string | undefined
  /** Inserts the rows that each schedule starts with. Runs before each schedule. */
  readonly setup?: ((db: ExploreHandle) => unknown) | undefined
  /** The functions that run at the same time, by name. */
  readonly actors: Readonly<Record<string, (db: ExploreHandle) => unknown>>
  /** Throws, or returns false, if the actors left a wrong state. Must not change anything. */
  readonly invariant?:
    | ((db: ExploreHandle, outcomes: Readonly<Record<string, Outcome>>) => unknown)
    | undefined
  /** True for an error that an actor may end with. Any other unhandled error is a failure of the schedule. */
  readonly mayFail?: ((error: unknown, actor: string) => boolean) | undefined
  readonly bound?: ExploreBound | undefined
  /**
   * True: also run schedules that differ from another only in the order of independent steps. For actors that share
   * memory, since the explorer knows only what the database does. Default false.
   */
  readonly everyOrder?: boolean | undefined
  /** The isolation level of transactions and statements that name none. Default: the server's. */
  readonly isolation?: Isolation | undefined
  /** The seed for random schedules, and for the random numbers that actors draw. Default 1. */
  readonly seed?: number | undefined
  /** The time that `Date` shows the actors at their start. Each read moves it by a millisecond. Default: real time. */
  readonly clockStartsAt?: Date | undefined
  /** Identifies this exploration for `DIBS_REPLAY`. Default: the names of the actors, with the other options. */
  readonly name?: string | undefined
  /**
   * The replay string of a printout: runs that schedule alone. Default: the environment's `DIBS_REPLAY`, if this
   * exploration has printed it.
   */
  readonly replay?: string | undefined
  /** One schedule, as the names of the actors, one name per step. After its end, the actors run one after the other. */
  readonly schedule?: readonly string[] | undefined
  /** False: a race is not thrown but reported. Default true. */
  readonly throws?: boolean | undefined
  /**
   * The file to which the report is written as a page, whatever was found. Default: for a race, a file in the folder
   * that the environment's `DIBS_REPORT` names.
   */
  readonly page?: string | undefined
  /** Restores the tables between schedules. Default: the explorer empties the tables that were written. */
  readonly reset?: ((db: ExploreHandle) => unknown) | undefined
  /**
   * How long nothing may happen before the explorer reports that an actor waits for something outside the database.
   * Default: the environment's `DIBS_PATIENCE_MS`, or 5,000.
   */
  readonly patienceMs?: number | undefined
  /**
   * True if the role has no right to set `deadlock_timeout`: a deadlock then lasts as long as the server's setting says
   * (mostly a second), and the server chooses the victim. Default false.
   */
  readonly slowDeadlocks?: boolean | undefined
}

export const exploreBounds = optionTable<ExploreBound>()('explore: bound', {
  preemptions: wholeNumber({ min: 0, mayBeInfinite: true }),
  schedules: wholeNumber({ default: 2_000, mayBeInfinite: true }),
  random: wholeNumber({ min: 0, default: 250, mayBeInfinite: true }),
  steps: wholeNumber({ default: 500, mayBeInfinite: true }),
})

const MAX_ACTORS = 26
const ACTOR_NAME = /^[^\s/]{1,40}$/

function checkActors(field: string, actors: unknown): void {
  const entries = Object.entries(actors ?? {})
  if (entries.length === 0 || entries.length > MAX_ACTORS)
    throw new InvalidInputError(field, `must be 1 to ${MAX_ACTORS}, not ${entries.length}`)
  for (const [name, run] of entries) {
    if (!ACTOR_NAME.test(name))
      throw new InvalidInputError(
        field,
        `must have names without blanks and slashes, not ${JSON.stringify(name)}`,
      )
    checkFunction(`${field}.${name}`, run)
  }
}

export const exploreOptions = optionTable<ExploreOptions>()('explore', {
  ...sharedOptions,
  actors: required(checked(checkActors, { bounds: `1 to ${MAX_ACTORS}` })),
  invariant: func(),
  mayFail: func(),
  bound: checked((field, value) => exploreBounds.read(value as ExploreBound, field)),
  everyOrder: boolean({ default: false }),
  schedule: stringList(),
  slowDeadlocks: boolean({ default: false }),
})

/** The options of one exploration, with their defaults. */
export type ExploreSettings = ReadOptions<ExploreOptions, typeof exploreOptions.fields>

/** Checks the options of `explore` and fills in the defaults. */
export function readExploreOptions(options: ExploreOptions): ExploreSettings {
  if (currentActor())
    throw new InvalidInputError(
      'actors',
      'must not explore themselves: this call comes from within an exploration',
    )
  const settings = exploreOptions.read(options)
  checkTarget(settings)
  const names = Object.keys(settings.actors)
  const unknown = settings.schedule?.find((unit) => !names.includes(actorOf(unit)))
  if (unknown !== undefined)
    throw new InvalidInputError(
      'schedule',
      `names ${unknown}, who is not among the actors (${names.join(', ')})`,
    )
  return settings
}
