import { ConflictError, InvalidInputError } from '../errors.js'
import { fullJitterMs } from './backoff.js'
import { translateError } from './fault.js'
import { showGiven } from './name-given.js'
import { sleep } from './sleep.js'

export interface RetryOptions {
  /** After this no further attempt starts. Default 30,000; `Infinity` for none. */
  readonly deadlineMs?: number | undefined
  /** How often to run in all when conflicts occur. Default 10; 1 never repeats. */
  readonly maxAttempts?: number | undefined
}

/** The bounds of one call, with its deadline on this process's monotonic clock. */
export interface RetryLimits {
  readonly maxAttempts: number
  readonly startedAt: number
  readonly deadlineAt: number
}

export function readLimits({ deadlineMs = 30_000, maxAttempts = 10 }: RetryOptions): RetryLimits {
  if (!(typeof deadlineMs === 'number' && deadlineMs > 0)) {
    throw new InvalidInputError(
      'deadlineMs',
      `must be a number of milliseconds above 0, not ${showGiven(deadlineMs)}`,
    )
  }
  if (!(Number.isSafeInteger(maxAttempts) && maxAttempts >= 1)) {
    throw new InvalidInputError(
      'maxAttempts',
      `must be a whole number of 1 or more, not ${showGiven(maxAttempts)}`,
    )
  }
  const startedAt = performance.now()
  return { maxAttempts, startedAt, deadlineAt: startedAt + deadlineMs }
}

/** Who is told of what becomes of a conflict, and who may end the wait. */
export interface RetryWatch {
  readonly onRetry?: (delayMs: number) => void
  readonly onGiveUp?: (elapsedMs: number) => void
  readonly signal?: AbortSignal
}

/** Waits its turn after a conflict, or throws when attempts or time are used up. */
export async function backOff(
  { maxAttempts, startedAt, deadlineAt }: RetryLimits,
  attempt: number,
  error: unknown,
  { onRetry, onGiveUp, signal }: RetryWatch,
): Promise<void> {
  const delayMs = fullJitterMs(attempt, 5, 1000)
  const hasTime = (afterMs: number): boolean => performance.now() + afterMs < deadlineAt
  if (attempt < maxAttempts && hasTime(delayMs)) {
    onRetry?.(delayMs)
    await sleep(delayMs, signal)
    if (hasTime(0)) return // a busy process may have woken late
  }
  onGiveUp?.(performance.now() - startedAt)
  throw giveUp(error, attempt)
}

function giveUp(error: unknown, attempts: number): unknown {
  const conflict = translateError(error)
  // A class of the caller's own says more than ours.
  if (!(conflict instanceof ConflictError) || conflict.constructor !== ConflictError) return error
  const { subject, expected, current, sqlState, reason } = conflict
  return new ConflictError({ subject, expected, current, sqlState, reason, attempts, cause: error })
}
