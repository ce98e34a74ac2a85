import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * The claim you held is someone else's by now.
 *
 * @example
 * if (error instanceof FenceLostError) return // another holder does this work
 */
export class FenceLostError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_FENCE_LOST',
    status: 409,
    retryable: false,
    means: 'The claim you held was taken over or released; nothing was written under its fence.',
    remedy: 'Stop the work: someone else owns it now. Do not write its result anywhere.',
  }

  constructor(
    /** What was claimed, as a reader would name it: `lock "nightly-report"`. */
    readonly subject: string,
    readonly fence: number,
    options?: DibsErrorOptions,
  ) {
    super(
      `The claim on ${subject} with fence ${fence} is lost: another holder took it over or it was released. Nothing was written. Stop this work.`,
      options,
    )
  }
}

/**
 * A bounded wait ended.
 *
 * @example
 * if (error instanceof BusyError) response.setHeader('Retry-After', Math.ceil(error.retryAfterMs / 1000))
 */
export class BusyError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_BUSY',
    status: 503,
    retryable: true,
    means: 'A bounded wait ended before its turn came, or the server has no room for another connection.',
    remedy: 'Try again after `retryAfterMs`; raise the wait if this is usual.',
  }

  constructor(
    /** What was waited for. */
    readonly subject: string,
    readonly waitedMs: number,
    override readonly retryAfterMs: number,
    options?: DibsErrorOptions,
  ) {
    const waited =
      waitedMs > 0
        ? `Waited ${Math.round(waitedMs)} ms for ${subject} and did not get it`
        : `There is no ${subject} now`
    super(`${waited}. Try again in ${retryAfterMs} ms.`, options)
  }
}

export interface ConflictDetails extends DibsErrorOptions {
  /** What two writers met on: a record, or the transaction. */
  readonly subject: string
  readonly expected?: number | undefined
  readonly current?: number | undefined
  readonly sqlState?: string | undefined
  /** How often it was tried before giving up. */
  readonly attempts?: number | undefined
  readonly reason?: string | undefined
}

/**
 * Another writer was first. Thrown inside `dibs.transaction`, it makes that run again.
 *
 * @example
 * if (row.version !== seen) throw new ConflictError({ subject: `order ${id}`, expected: seen, current: row.version })
 */
export class ConflictError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_CONFLICT',
    status: 409,
    retryable: true,
    means:
      'Another writer was first: the version has moved on, or PostgreSQL refused the order of two transactions (40001, 40P01).',
    remedy:
      'Run the whole unit again, reading included. `dibs.transaction` does so by itself; when it gives up, back off.',
  }

  readonly subject: string
  declare readonly expected?: number | undefined
  declare readonly current?: number | undefined
  declare readonly sqlState?: string | undefined
  declare readonly attempts?: number | undefined
  declare readonly reason?: string | undefined

  constructor({ subject, expected, current, sqlState, attempts, reason, cause }: ConflictDetails) {
    const versions =
      expected === undefined ? '' : ` Expected version ${expected}, found ${current ?? 'none'}.`
    const tries =
      attempts === undefined ? '' : ` Gave up after ${attempts} ${attempts === 1 ? 'attempt' : 'attempts'}.`
    super(
      `Conflict on ${subject}: another writer was first.${versions}${tries}${reason ? ` (${reason})` : ''}`,
      { cause },
    )
    this.subject = subject
    if (expected !== undefined) this.expected = expected
    if (current !== undefined) this.current = current
    if (sqlState !== undefined) this.sqlState = sqlState
    if (attempts !== undefined) this.attempts = attempts
    if (reason !== undefined) this.reason = reason
  }
}
