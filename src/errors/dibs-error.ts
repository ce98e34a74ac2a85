/** One entry of the error registry. Each error class has its own as the static `entry`. */
export interface ErrorEntry {
  /** A stable identifier across releases. Compare this, not the message or the class name. */
  readonly code: `DIBS_${string}`
  /** The HTTP status for a remote caller. */
  readonly status: number
  /** True if the same call, repeated from its start, can succeed. */
  readonly retryable: boolean
  /** An explanation of the error. */
  readonly means: string
  /** Advice for the caller. */
  readonly remedy: string
}

export interface DibsErrorOptions {
  readonly cause?: unknown
}

/**
 * The base class of all errors of Dibs.
 *
 * @example
 * try {
 *   await dibs.transaction(work)
 * } catch (error) {
 *   if (error instanceof DibsError && error.retryable) return tryAgainLater(error.code)
 *   throw error
 * }
 */
export abstract class DibsError extends Error {
  static readonly entry: ErrorEntry = {
    code: 'DIBS_ERROR',
    status: 500,
    retryable: false,
    means: 'An error of a class that was made outside of Dibs.',
    remedy: 'Extend one of the classes below, or give yours an `entry`.',
  }

  readonly code: ErrorEntry['code']
  /** True if the same call, repeated from its start, can succeed. Usually that of the class; a single error may differ. */
  readonly retryable: boolean
  readonly status: number
  /** How many milliseconds to wait before the next try, if that is known. For `Retry-After`. */
  declare readonly retryAfterMs?: number

  constructor(
    message: string,
    options?: DibsErrorOptions & Partial<Pick<ErrorEntry, 'retryable' | 'status'>>,
  ) {
    super(message, options?.cause === undefined ? undefined : { cause: options.cause })
    const { code, retryable, status } = { ...new.target.entry, ...known(options) }
    // Not enumerable, as on every Error, so that `toJSON` lists the name once and first.
    Object.defineProperty(this, 'name', { value: new.target.name, configurable: true, writable: true })
    this.code = code
    this.retryable = retryable
    this.status = status
  }

  /** Returns name, message, code and ids, without stack or cause, for a log line. Do not send it to a client: it may reveal too much. */
  toJSON(): Record<string, unknown> {
    const fields: Record<string, unknown> = { name: this.name, message: this.message }
    return Object.assign(fields, this)
  }
}

/** Returns the values that an error sets in place of those of its class. */
function known({
  retryable,
  status,
}: Partial<Pick<ErrorEntry, 'retryable' | 'status'>> = {}): Partial<ErrorEntry> {
  return { ...(retryable === undefined ? {} : { retryable }), ...(status === undefined ? {} : { status }) }
}
