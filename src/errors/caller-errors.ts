import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * An argument is not acceptable; nothing was sent.
 *
 * @example
 * if (error instanceof InvalidInputError) return `please correct ${error.field}`
 */
export class InvalidInputError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_INVALID_INPUT',
    status: 500,
    retryable: false,
    means: 'An argument is not acceptable. Nothing was sent to the database.',
    remedy:
      'Correct the argument named in `field`. It is a mistake in the program, hence 500. `status` is 400 where programs pass on what their own client sent: an `If-Match` header, input that does not fit its schema, a value that does not fit its column, the id of a job, the place in a list.',
  }

  constructor(
    /** The argument, as a path: `attempts`, `schema`. */
    readonly field: string,
    /** What is wrong, in a form that follows "`field` ": `must be positive, not -1`. */
    problem: string,
    /** `status`: 400 if the value usually comes from a client of the program (see `refuseValue`). `message`: the whole message, in place of `problem`. */
    options?: DibsErrorOptions & { readonly status?: number; readonly message?: string },
  ) {
    super(options?.message ?? `\`${field}\` ${problem}.`, options)
  }
}

/**
 * This instance was closed.
 *
 * @example
 * if (error instanceof ClosedError) return // we are shutting down
 */
export class ClosedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_CLOSED',
    status: 503,
    retryable: false,
    means: 'This Dibs instance was closed.',
    remedy: 'Stop what still uses it before calling `close()`, or open a new one.',
  }

  constructor(
    options?: DibsErrorOptions,
    message = 'This Dibs instance is closed. Stop what still uses it before calling close(), or open a new one.',
  ) {
    super(message, options)
  }
}
