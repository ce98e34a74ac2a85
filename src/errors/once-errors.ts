import { describeLease } from './describe-lease.js'
import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'
import { setKnown } from './set-known.js'

export interface InProgressDetails extends DibsErrorOptions {
  readonly holder?: string | undefined
  readonly leaseUntil?: Date | undefined
  /** Replaces the default message. */
  readonly message?: string | undefined
}

/**
 * Another caller is working on the same key.
 *
 * @example
 * if (error instanceof InProgressError) response.setHeader('Retry-After', Math.ceil(error.retryAfterMs / 1000))
 */
export class InProgressError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_IN_PROGRESS',
    status: 409,
    retryable: true,
    means: 'Another caller is working on the same key, and this call does not wait for it.',
    remedy:
      'Call again with the same key after `retryAfterMs`, or let the call wait (`waitMs`). `holder` and `leaseUntil` say who works on the key and until when the lease lasts.',
  }

  /** The host and process that work on the key. Unknown while the key is part of an open transaction. */
  declare readonly holder?: string
  /** When the lease of that holder ends, unless it is renewed. By the database's clock. */
  declare readonly leaseUntil?: Date

  constructor(
    /** The work in progress, in readable form. */
    readonly subject: string,
    override readonly retryAfterMs: number,
    /** The id of the claim that is held. Unknown while the claim is part of an open transaction. */
    readonly id?: string,
    options: InProgressDetails = {},
  ) {
    const { message, holder, leaseUntil, cause } = options
    const who = holder === undefined ? 'Another caller' : `"${holder}"${describeLease(leaseUntil)}`
    super(
      message ??
        `${who} works on ${subject} just now. Call again with the same key in ${retryAfterMs} ms, or pass waitMs to wait for its outcome.`,
      { cause },
    )
    setKnown<InProgressError>(this, { holder, leaseUntil })
  }
}

/**
 * The key was used before for another request.
 *
 * @example
 * if (error instanceof FingerprintMismatchError) return 'this key belongs to another request'
 */
export class FingerprintMismatchError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_FINGERPRINT_MISMATCH',
    status: 422,
    retryable: false,
    means:
      'The key was used before with another fingerprint, so it belongs to another request. Nothing was run.',
    remedy: 'Use a new key for a new request. Repeat a request without changes.',
  }

  constructor(
    readonly subject: string,
    /** The id of the claim that the key belongs to. Unknown while the claim is part of an open transaction. */
    readonly id?: string,
    options?: DibsErrorOptions & { readonly message?: string | undefined },
  ) {
    super(
      options?.message ??
        `${subject} was claimed before with another fingerprint, so this is not the same request. Nothing was run. Use a new key for a new request.`,
      options,
    )
  }
}

/**
 * An earlier attempt has no recorded outcome, and may have had its effect.
 *
 * @example
 * if (error instanceof AmbiguousOutcomeError) await orders.flag(error.id) // for a person to look at
 */
export class AmbiguousOutcomeError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_AMBIGUOUS_OUTCOME',
    status: 409,
    retryable: false,
    means:
      'An earlier attempt has no recorded outcome and may have had its effect. `onAmbiguous` says to hold, or a slot was to be voided. Nothing was run.',
    remedy:
      "Find out whether the effect took place. If it did, call `dibs.claims.resolve(address, { outcome })`. If not, call `dibs.claims.resolve(address, 'retry')`.",
  }

  constructor(
    readonly subject: string,
    readonly id: string,
    /** The attempt without a recorded outcome. */
    readonly attempt: number,
    options?: DibsErrorOptions & { readonly message?: string | undefined; readonly address?: object },
  ) {
    const address = options?.address ? JSON.stringify(options.address) : 'address'
    super(
      options?.message ??
        `Attempt ${attempt} on ${subject} did not say how it ended and may have had its effect, so nothing was run again. Find out, then say so: dibs.claims.resolve(${address}, { outcome }) if it had, dibs.claims.resolve(${address}, 'retry') if it had not.`,
      options,
    )
  }
}

/**
 * The work is done, but its outcome could not be stored.
 *
 * @example
 * if (error instanceof OutcomeNotStoredError) console.error('done, but not recorded', error.cause)
 */
export class OutcomeNotStoredError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_OUTCOME_NOT_STORED',
    status: 503,
    retryable: true,
    means:
      'The handler of a leased claim has ended, but its outcome could not be stored. The claim is not released: nobody repeats the work before its lease has run out.',
    remedy:
      'Call again with the same key later. `onAmbiguous` decides what happens then. A handler that passes on `claim.idempotencyKey` may be repeated.',
  }

  constructor(
    readonly subject: string,
    readonly id: string,
    options?: DibsErrorOptions,
  ) {
    super(
      `The work on ${subject} is done, but its outcome could not be stored. The claim is kept until its lease has run out; call again with the same key then.`,
      options,
    )
  }
}

/**
 * The return value of a function cannot be stored.
 *
 * @example
 * if (error instanceof InvalidOutcomeError) console.error(`return plain JSON: ${error.message}`)
 */
export class InvalidOutcomeError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_INVALID_OUTCOME',
    status: 500,
    retryable: false,
    means:
      'The return value of your function, or of a step, cannot be stored: it is not JSON or, in a single flight, does not fit `result`. Joined: the work was rolled back. Leased: the work is done, so the claim has failed for good and is not repeated.',
    remedy:
      'Return plain JSON of at most 1 MiB that fits `result`. The message says which part is wrong, and where.',
  }

  constructor(
    /** The value that could not be stored: `outcome`, or a step; `the result of job 7 ("email")`. */
    readonly field: string,
    problem: string,
    options?: DibsErrorOptions,
  ) {
    super(`${field.startsWith('the ') ? `T${field.slice(1)}` : `\`${field}\``} ${problem}.`, options)
  }
}

/**
 * A stored value does not fit the schema that reads it.
 *
 * @example
 * if (error instanceof StoredValueError) console.error(error.issues.join('\n'))
 */
export class StoredValueError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_STORED_VALUE',
    status: 500,
    retryable: false,
    means: 'A stored outcome, step or value does not fit the schema that reads it.',
    remedy:
      'Make the schema accept what other releases store, or forget the claim. For a single flight, change its key with its shape.',
  }

  constructor(
    readonly subject: string,
    /** One message per mismatch, with its path. */
    readonly issues: readonly string[],
    options?: DibsErrorOptions,
  ) {
    super(`What is stored for ${subject} does not fit its schema: ${issues.join('; ')}.`, options)
  }
}
