import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

export interface RateLimitedDetails extends DibsErrorOptions {
  readonly rateLimit: string
  readonly subject: string
  readonly limit: number
  readonly cost: number
  readonly remaining: number
  readonly retryAfterMs: number
  readonly resetsAt: Date
}

/**
 * A rate limit refused: too much was taken of late. Nothing was consumed.
 *
 * @example
 * if (error instanceof RateLimitedError) response.setHeader('Retry-After', Math.ceil(error.retryAfterMs / 1000))
 */
export class RateLimitedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_RATE_LIMITED',
    status: 429,
    retryable: true,
    means: 'A rate limit refused: too much was taken of late. Nothing was consumed.',
    remedy: 'Try again after `retryAfterMs`: then this cost fits, unless others have come first.',
  }

  /** The name of the rate limit. */
  readonly rateLimit: string
  /** Whose limit it is. */
  readonly subject: string
  readonly limit: number
  /** What was asked for. */
  readonly cost: number
  /** What would have fitted. */
  readonly remaining: number
  override readonly retryAfterMs: number
  /** When the subject is as if it had never taken anything, by this process's clock. */
  readonly resetsAt: Date

  constructor(details: RateLimitedDetails) {
    const { rateLimit, subject, limit, cost, remaining, retryAfterMs, resetsAt, ...options } = details
    super(
      `Rate limit "${rateLimit}" refused ${cost} for "${subject}": ${remaining} would fit now. Nothing was consumed. Try again in ${retryAfterMs} ms.`,
      options,
    )
    this.rateLimit = rateLimit
    this.subject = subject
    this.limit = limit
    this.cost = cost
    this.remaining = remaining
    this.retryAfterMs = retryAfterMs
    this.resetsAt = resetsAt
  }
}

/**
 * More was asked for at once than a limit ever allows: no wait can help.
 *
 * @example
 * if (error instanceof NeverFitsError) return `please ask for at most ${error.limit}`
 */
export class NeverFitsError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_NEVER_FITS',
    status: 422,
    retryable: false,
    means: 'More was asked for at once than a limit ever allows. Nothing was consumed, and no wait can help.',
    remedy: 'Ask for at most `limit` at once, or raise the limit.',
  }

  constructor(
    /** What it was asked of, as a reader would name it: `rate limit "uploads"`. */
    readonly subject: string,
    readonly requested: number,
    /** The most that can be had at once. */
    readonly limit: number,
    options?: DibsErrorOptions,
  ) {
    super(
      `${requested} at once never fits into ${subject}, which allows at most ${limit} at once. Ask for less, or raise the limit.`,
      options,
    )
  }
}
