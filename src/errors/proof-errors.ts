import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * The explorer has found an order of statements that breaks the invariant. The message is the printout.
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
    remedy: 'Read the printout; run that order again with `replay`, and mend the code.',
  }

  constructor(
    /** The order, one line a step, with what each step saw. */
    readonly printout: string,
    /** Who ran, step by step. */
    readonly schedule: readonly string[],
    /** For the option `replay`. */
    readonly replay: string,
    /** The whole report, as `explore` resolves to it with `throws: false`. */
    readonly report: object,
    options?: DibsErrorOptions,
  ) {
    super(printout, options)
  }

  /** The report says all of it; the printout would stand there three times. */
  override toJSON(): Record<string, unknown> {
    const { name, message, code, schedule, replay } = this
    return { name, message, code, schedule, replay }
  }
}

/**
 * The crash loop has found a point at which a fault does harm that recovery does not mend. The message is the printout.
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
    remedy: 'Read the printout; run that point again with `replay`, and mend the code.',
  }

  constructor(
    /** What happened at the first such point, and a list of all. */
    readonly printout: string,
    /** For the option `replay`. */
    readonly replay: string,
    /** The whole report, as `crashLoop` resolves to it with `throws: false`. */
    readonly report: object,
    options?: DibsErrorOptions,
  ) {
    super(printout, options)
  }

  /** The report says all of it; the printout would stand there three times. */
  override toJSON(): Record<string, unknown> {
    const { name, message, code, replay } = this
    return { name, message, code, replay }
  }
}

/**
 * A schedule that was run again went another way.
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
      'The same order of steps, run again, did something else: the code under test does not depend on the order alone.',
    remedy:
      'Look at the step that is named. The usual causes: random values or the time in a statement, rows without an order (several that one statement locks, too), what the process remembers, data that `setup` does not make, code that changed since the replay string was printed.',
  }

  constructor(
    /** The first step that differs, from 1. */
    readonly step: number,
    /** What it was. */
    readonly expected: string,
    /** What it is now. */
    readonly found: string,
    options?: DibsErrorOptions,
  ) {
    super(
      `The schedule went another way at step ${step}.\n  before: ${expected}\n  now:    ${found}\n${ScheduleDivergedError.entry.remedy}`,
      options,
    )
  }
}

/** Why an exploration, or a crash loop, could not be carried out. */
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
 * The exploration, or the crash loop, could not be carried out: this says nothing about the code under test.
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
      'The explorer, or the crash loop, could not do its work; `reason` tells why in one word, `actor` at whom.',
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
