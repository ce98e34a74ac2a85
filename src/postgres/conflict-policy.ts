import { ConflictError } from '../errors.js'
import { timeLimit, wholeNumber } from '../options/number-options.js'
import { isConflict, translateError } from './fault.js'
import type { RetryPolicy } from './retry.js'

export interface RetryOptions {
  /** After this no further attempt starts. Default 30,000; `Infinity` for none. */
  readonly deadlineMs?: number | undefined
  /** The maximum number of runs if conflicts occur. 1: never repeat. Default 10. */
  readonly maxAttempts?: number | undefined
}

export const retryOptions = {
  deadlineMs: timeLimit({ default: 30_000 }),
  maxAttempts: wholeNumber({ default: 10 }),
}

/** The bounds of one call, with its deadline on this process's monotonic clock. */
export interface RetryLimits {
  readonly maxAttempts: number
  readonly startedAt: number
  readonly deadlineAt: number
}

/** Starts the clock of a call. */
export function limitsOf({
  deadlineMs = retryOptions.deadlineMs.default,
  maxAttempts = retryOptions.maxAttempts.default,
}: RetryOptions): RetryLimits {
  const startedAt = performance.now()
  return { maxAttempts, startedAt, deadlineAt: startedAt + deadlineMs }
}

/** The policy that repeats a call after conflicts, within its limits. */
export const conflictPolicy = (
  { maxAttempts, startedAt, deadlineAt }: RetryLimits,
  {
    signal,
    onRetry,
    onGiveUp,
  }: Pick<RetryPolicy, 'signal' | 'onRetry'> & {
    readonly onGiveUp?: (error: unknown, attempts: number, elapsedMs: number) => void
  } = {},
): RetryPolicy => ({
  // guard: transaction.commit-unknown-retry
  ...{ isRetryable: isConflict, baseMs: 5, maxMs: 1_000, maxAttempts, deadlineAt, signal, onRetry },
  onGiveUp: (error, attempts) => {
    onGiveUp?.(error, attempts, performance.now() - startedAt)
    return exhausted(error, attempts)
  },
})

/** Adds the number of attempts to a `ConflictError`. A subclass of the caller stays as it is. */
function exhausted(error: unknown, attempts: number): unknown {
  const conflict = translateError(error)
  if (!(conflict instanceof ConflictError) || conflict.constructor !== ConflictError) return error
  const { subject, expected, current, sqlState, reason } = conflict
  return new ConflictError({ subject, expected, current, sqlState, reason, attempts, cause: error })
}
