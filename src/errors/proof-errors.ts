import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * The explorer found an order of statements that breaks the invariant. The message is the printout.
 *
 * @example
 * if (error instanceof RaceFoundError) console.log(`again with replay: '${error.replay}'`)
 */
export class RaceFoundError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_RACE_FOUND',
    status: 500,
    retryable: false,
    means: 'The explorer found an order of statements in which the invariant breaks or an actor fails.',
    remedy: 'Read the printout. Run that order again with `replay`, and fix the code.',
  }

  constructor(
    /** The order of steps, one line per step, with what each step saw. */
    readonly printout: string,
    /** The actor of each step. */
    readonly schedule: readonly string[],
    /** The value for the option `replay`. */
    readonly replay: string,
    /** The whole report, as `explore` resolves to it with `throws: false`. */
    readonly report: object,
    options?: DibsErrorOptions,
  ) {
    super(printout, options)
  }

  /** Leaves out the report, which would repeat the printout. */
  override toJSON(): Record<string, unknown> {
    const { name, message, code, schedule, replay } = this
    return { name, message, code, schedule, replay }
  }
}

/**
 * The crash loop found a point at which a fault does damage that recovery does not repair. The message is the printout.
 *
 * @example
 * if (error instanceof CrashFoundError) console.log(`again with replay: '${error.replay}'`)
 */
export class CrashFoundError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_CRASH_FOUND',
    status: 500,
    retryable: false,
    means:
      'The crash loop found a point at which a crash, an error or a late return breaks the invariant, repeats an effect or leaves work undone.',
    remedy: 'Read the printout. Run that point again with `replay`, and fix the code.',
  }

  constructor(
    /** A description of the first such point, and a list of all points. */
    readonly printout: string,
    /** The value for the option `replay`. */
    readonly replay: string,
    /** The whole report, as `crashLoop` resolves to it with `throws: false`. */
    readonly report: object,
    options?: DibsErrorOptions,
  ) {
    super(printout, options)
  }

  /** Leaves out the report, which would repeat the printout. */
  override toJSON(): Record<string, unknown> {
    const { name, message, code, replay } = this
    return { name, message, code, replay }
  }
}

/**
 * A schedule took other steps when it was replayed.
 *
 * @example
 * if (error instanceof ScheduleDivergedError) console.log(`step ${error.step}: ${error.found}`)
 */
export class ScheduleDivergedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_SCHEDULE_DIVERGED',
    status: 500,
    retryable: false,
    means:
      'The same order of steps did something else when it was replayed. So the behavior of the code under test does not depend on the order alone.',
    remedy:
      'Look at the step that is named. The usual causes: random values or the time in a statement, rows without an order (several that one statement locks, too), what the process remembers, data that `setup` does not make, code that changed since the replay string was printed.',
  }

  constructor(
    /** The first step that differs, from 1. */
    readonly step: number,
    /** The step in the earlier run. */
    readonly expected: string,
    /** The step in this run. */
    readonly found: string,
    options?: DibsErrorOptions,
  ) {
    super(
      `The schedule went another way at step ${step}.\n  before: ${expected}\n  now:    ${found}\n${ScheduleDivergedError.entry.remedy}`,
      options,
    )
  }
}

/** Why an exploration or a crash loop could not run. */
export type ExplorationFailure =
  | 'setup'
  | 'advance'
  | 'progress'
  | 'invariant'
  | 'reset'
  | 'stalled'
  | 'endless'
  | 'outside'
  | 'privilege'
  | 'connection'
  | 'schedule'
  | 'server'

/**
 * The exploration or the crash loop could not run. This says nothing about the code under test.
 *
 * @example
 * if (error instanceof ExplorationError && error.reason === 'stalled') console.log(`${error.actor} waits for something unseen`)
 */
export class ExplorationError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_EXPLORATION',
    status: 500,
    retryable: false,
    means:
      'The explorer or the crash loop could not do its work. `reason` says why in one word, and `actor` names the actor.',
    remedy: 'Do what the message says.',
  }

  constructor(
    message: string,
    readonly reason: ExplorationFailure,
    readonly actor?: string,
    options?: DibsErrorOptions,
  ) {
    super(message, options)
  }
}
