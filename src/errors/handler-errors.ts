import { InvalidInputError } from './caller-errors.js'
import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * A handler throws this error if the work failed now and may succeed later.
 *
 * @example
 * if (response.statusCode === 503) throw new TransientError('the bank is down', { cause: error })
 */
export class TransientError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_TRANSIENT',
    status: 503,
    retryable: true,
    means: 'A handler says that the work failed now and may succeed later.',
    remedy: 'Throw this error in a handler to run it again under its retry policy.',
  }

  constructor(message: string, options?: DibsErrorOptions) {
    super(message, options)
  }
}

/**
 * A handler throws this error if the work can never succeed.
 *
 * @example
 * if (response.statusCode === 404) throw new PermanentError(`there is no account ${id}`)
 */
export class PermanentError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_PERMANENT',
    status: 500,
    retryable: false,
    means: 'A handler says that the work can never succeed, so it is not retried.',
    remedy: 'Throw this error in a handler to set the work aside, for a person to look at.',
  }

  /** True if this is the outcome of an earlier call with the same key. */
  declare readonly replayed?: boolean

  constructor(message: string, options?: DibsErrorOptions) {
    super(message, options)
  }
}

/**
 * A handler throws this error if a business rule refuses the request.
 *
 * @example
 * if (left < 1) throw new BusinessRuleError('sold out', 'sold-out')
 */
export class BusinessRuleError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_BUSINESS_RULE',
    status: 422,
    retryable: false,
    means: 'A handler says that a business rule refuses the request.',
    remedy:
      'Throw this error in a handler to answer the caller. The error is no failure, so nothing is retried.',
  }

  /** True if this is the outcome of an earlier call with the same key. */
  declare readonly replayed?: boolean

  constructor(
    message: string,
    /** Your own stable name of the rule: `sold-out`. */
    readonly rule?: string,
    options?: DibsErrorOptions,
  ) {
    super(message, options)
  }
}

/**
 * A handler throws this error to run again later, because something that it needs is not ready.
 *
 * @example
 * if (!row.ready) throw new SnoozeError(30_000, 'the file is still being written')
 */
export class SnoozeError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_SNOOZE',
    status: 503,
    retryable: true,
    means:
      'A handler asks to run again after `delayMs`, because something is not ready. This does not count as a failed attempt.',
    remedy: 'Throw this error in a handler if something that it needs is not ready yet.',
  }

  constructor(
    readonly delayMs: number,
    reason = 'not yet',
    options?: DibsErrorOptions,
  ) {
    if (!Number.isFinite(delayMs) || delayMs < 0) {
      throw new InvalidInputError(
        'delayMs',
        `must be a duration in milliseconds of 0 or more, not ${typeof delayMs === 'number' ? delayMs : `a ${typeof delayMs}`}`,
      )
    }
    super(`Snoozed for ${delayMs} ms: ${reason}.`, options)
  }
}
