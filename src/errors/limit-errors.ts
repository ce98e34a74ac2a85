import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'
import { setKnown } from './set-known.js'

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
 * A rate limit refused, because too much was taken recently. Nothing was consumed.
 *
 * @example
 * if (error instanceof RateLimitedError) response.setHeader('Retry-After', Math.ceil(error.retryAfterMs / 1000))
 */
export class RateLimitedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_RATE_LIMITED',
    status: 429,
    retryable: true,
    means: 'A rate limit refused, because too much was taken recently. Nothing was consumed.',
    remedy: 'Try again after `retryAfterMs`. Then this cost fits, unless other callers come first.',
  }

  /** The name of the rate limit. */
  declare readonly rateLimit: string
  /** The subject of the limit, such as a tenant. */
  declare readonly subject: string
  declare readonly limit: number
  /** The requested cost. */
  declare readonly cost: number
  /** The highest cost that would have fitted. */
  declare readonly remaining: number
  declare readonly retryAfterMs: number
  /** When the whole limit is available again, by the clock of this process. */
  declare readonly resetsAt: Date

  constructor(details: RateLimitedDetails) {
    const { rateLimit, subject, limit, cost, remaining, retryAfterMs, resetsAt, ...options } = details
    super(
      `Rate limit "${rateLimit}" refused ${cost} for "${subject}": ${remaining} would fit now. Nothing was consumed. Try again in ${retryAfterMs} ms.`,
      options,
    )
    setKnown<RateLimitedError>(this, { rateLimit, subject, limit, cost, remaining, retryAfterMs, resetsAt })
  }
}

/**
 * The request is larger than the limit ever allows at once, so no wait helps.
 *
 * @example
 * if (error instanceof NeverFitsError) return `please ask for at most ${error.limit}`
 */
export class NeverFitsError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_NEVER_FITS',
    status: 422,
    retryable: false,
    means:
      'The request is larger than the limit ever allows at once. Nothing was consumed, and no wait helps.',
    remedy: 'Ask for at most `limit` at once, or raise the limit.',
  }

  constructor(
    /** The limit, in readable form: `rate limit "uploads"`. */
    readonly subject: string,
    readonly requested: number,
    /** The maximum that can be taken at once. */
    readonly limit: number,
    options?: DibsErrorOptions,
  ) {
    super(
      `${requested} at once never fits into ${subject}, which allows at most ${limit} at once. Ask for less, or raise the limit.`,
      options,
    )
  }
}
