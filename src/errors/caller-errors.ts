import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * An argument is not valid. Nothing was sent to the database.
 *
 * @example
 * if (error instanceof InvalidInputError) return `please correct ${error.field}`
 */
export class InvalidInputError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_INVALID_INPUT',
    status: 500,
    retryable: false,
    means: 'An argument is not valid. Nothing was sent to the database.',
    remedy:
      'Correct the argument named in `field`. This is usually a mistake in the program, so `status` is 500. `status` is 400 for values that programs pass on from their own clients: an `If-Match` header, input that does not fit its schema, a value that does not fit its column, the id of a job, the cursor of a list.',
  }

  constructor(
    /** The path of the argument: `attempts`, `schema`. */
    readonly field: string,
    /** The problem, in a form that follows "`field` ": `must be positive, not -1`. */
    problem: string,
    /** `status`: 400 if the value usually comes from a client of the program (see `refuseValue`). `message`: the whole message, in place of `problem`. */
    options?: DibsErrorOptions & { readonly status?: number; readonly message?: string },
  ) {
    super(options?.message ?? `\`${field}\` ${problem}.`, options)
  }
}

/**
 * This Dibs instance was closed.
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
    remedy: 'Stop all code that uses the instance before you call `close()`, or open a new instance.',
  }

  constructor(
    options?: DibsErrorOptions,
    message = 'This Dibs instance is closed. Stop what still uses it before calling close(), or open a new one.',
  ) {
    super(message, options)
  }
}
