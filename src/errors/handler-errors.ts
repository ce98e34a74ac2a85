import { InvalidInputError } from './caller-errors.js'
import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * Thrown by a handler: failed now, may work later.
 *
 * @example
 * if (response.statusCode === 503) throw new TransientError('the bank is down', { cause: error })
 */
export class TransientError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_TRANSIENT',
    status: 503,
    retryable: true,
    means: 'A handler says: this failed now and may work later.',
    remedy: 'Thrown by your handler to be run again under its retry policy.',
  }

  constructor(message: string, options?: DibsErrorOptions) {
    super(message, options)
  }
}

/**
 * Thrown by a handler: will never work.
 *
 * @example
 * if (response.statusCode === 404) throw new PermanentError(`there is no account ${id}`)
 */
export class PermanentError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_PERMANENT',
    status: 500,
    retryable: false,
    means: 'A handler says: this will never work, do not try again.',
    remedy: 'Thrown by your handler; the work is set aside for a person to look at.',
  }

  /** It is the outcome of an earlier call with the same key. */
  declare readonly replayed?: boolean

  constructor(message: string, options?: DibsErrorOptions) {
    super(message, options)
  }
}

/**
 * Thrown by a handler: understood, and refused by a rule of the business.
 *
 * @example
 * if (left < 1) throw new BusinessRuleError('sold out', 'sold-out')
 */
export class BusinessRuleError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_BUSINESS_RULE',
    status: 422,
    retryable: false,
    means: 'A handler says: the request is understood and refused by a rule of the business.',
    remedy: 'Thrown by your handler; it is an answer to the caller and no fault, so nothing is retried.',
  }

  /** It is the outcome of an earlier call with the same key. */
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
 * Thrown by a handler: not yet, run me again later.
 *
 * @example
 * if (!row.ready) throw new SnoozeError(30_000, 'the file is still being written')
 */
export class SnoozeError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_SNOOZE',
    status: 503,
    retryable: true,
    means: 'A handler says: not yet, run me again after `delayMs`. It is not counted as a failed attempt.',
    remedy: 'Thrown by your handler when what it needs is not there yet.',
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
