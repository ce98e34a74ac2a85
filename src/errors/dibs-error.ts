/** One line of the registry; each error class carries its own as the static `entry`. */
export interface ErrorEntry {
  /** Stable across releases: compare this, not the message or the class name. */
  readonly code: `DIBS_${string}`
  /** The HTTP status that says the same to a remote caller. */
  readonly status: number
  /** True when the same call, made again from its start, can succeed. */
  readonly retryable: boolean
  /** What has happened. */
  readonly means: string
  /** What the caller does about it. */
  readonly remedy: string
}

export interface DibsErrorOptions {
  readonly cause?: unknown
}

/**
 * The base of every error here.
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
    means: 'An error of a class made outside of Dibs.',
    remedy: 'Extend one of the classes below, or give yours an `entry`.',
  }

  readonly code: ErrorEntry['code']
  /** As its class says, or what is known of this very one. */
  readonly retryable: boolean
  readonly status: number
  /** When to try again, where that is known: for `Retry-After`. */
  declare readonly retryAfterMs?: number

  constructor(
    message: string,
    options?: DibsErrorOptions & Partial<Pick<ErrorEntry, 'retryable' | 'status'>>,
  ) {
    super(message, options?.cause === undefined ? undefined : { cause: options.cause })
    const { code, retryable, status } = { ...new.target.entry, ...known(options) }
    // Not enumerable, as on every Error, so that `toJSON` lists it once and first.
    Object.defineProperty(this, 'name', { value: new.target.name, configurable: true, writable: true })
    this.code = code
    this.retryable = retryable
    this.status = status
  }

  /** Name, message, code and ids, without stack or cause: for a log line. To a client of yours it may tell too much. */
  toJSON(): Record<string, unknown> {
    const fields: Record<string, unknown> = { name: this.name, message: this.message }
    return Object.assign(fields, this)
  }
}

/** What an instance says in place of its class. */
function known({
  retryable,
  status,
}: Partial<Pick<ErrorEntry, 'retryable' | 'status'>> = {}): Partial<ErrorEntry> {
  return { ...(retryable === undefined ? {} : { retryable }), ...(status === undefined ? {} : { status }) }
}
