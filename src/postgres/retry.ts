import { BusyError, CommitOutcomeUnknownError, ConnectionLostError, DibsError } from '../errors.js'
import { sleep } from './sleep.js'

/** Full jitter: a random delay below the doubled step, so that callers that lost the same race do not meet again. */
export function backoffMs(attempt: number, baseMs: number, maxMs: number): number {
  return Math.random() * Math.min(maxMs, baseMs * 2 ** Math.min(attempt - 1, 30))
}

/** When a failed call is repeated, and how long it waits before that. */
export interface RetryPolicy {
  readonly isRetryable: (error: unknown) => boolean
  /** The upper bound of the first delay. Each further delay may be twice as long, up to `maxMs`. */
  readonly baseMs: number
  readonly maxMs: number
  /** Added to each delay. */
  readonly minMs?: number | undefined
  readonly maxAttempts?: number | undefined
  /** By this process's monotonic clock. No attempt starts later. */
  readonly deadlineAt?: number | undefined
  /** Ends the delay, and rejects with the reason. */
  readonly signal?: AbortSignal | undefined
  /** True if the call had succeeded for a while before it failed. Delays then start from `baseMs` again. */
  readonly resetsDelay?: ((error: unknown) => boolean) | undefined
  /** Waits for a delay instead of a timer, if something else may end the delay early. */
  readonly wait?: ((delayMs: number) => Promise<void>) | undefined
  /** False: a delay does not keep the process alive. */
  readonly ref?: boolean | undefined
  readonly onRetry?: ((error: unknown, attempt: number, delayMs: number) => void) | undefined
  /** Returns the error to throw when attempts or time are used up. Default: the last error. */
  readonly onGiveUp?: ((error: unknown, attempts: number) => unknown) | undefined
}

/** Calls `fn` again after each error that the policy calls retryable, within the bounds of the policy. */
export async function retry<T>(fn: (attempt: number) => Promise<T>, policy: RetryPolicy): Promise<T> {
  const { isRetryable, baseMs, maxMs, minMs = 0, signal, ref } = policy
  const { maxAttempts = Number.POSITIVE_INFINITY, deadlineAt = Number.POSITIVE_INFINITY } = policy
  let failures = 0
  for (let attempt = 1; ; attempt++) {
    try {
      return await fn(attempt)
    } catch (error) {
      if (!isRetryable(error)) throw error // guard: transaction.retry-conflict-only
      signal?.throwIfAborted()
      failures = policy.resetsDelay?.(error) ? 1 : failures + 1
      const delayMs = minMs + backoffMs(failures, baseMs, maxMs)
      // guard: transaction.retry-max-attempts, transaction.retry-deadline
      const isLast = attempt >= maxAttempts || performance.now() + delayMs >= deadlineAt
      if (!isLast) {
        policy.onRetry?.(error, attempt, delayMs)
        if (policy.wait) await policy.wait(delayMs)
        else
          await sleep(delayMs, signal, { ref: ref ?? true }).catch((ended) => {
            throw signal?.reason ?? ended
          })
      }
      // A busy process may have woken up late.
      if (isLast || performance.now() >= deadlineAt) throw policy.onGiveUp?.(error, attempt) ?? error
    }
  }
}

/** True if the statement may have failed only because an answer, a connection or a lock was missing. */
export const isTransient = (error: unknown): boolean =>
  error instanceof CommitOutcomeUnknownError || (error instanceof DibsError && error.retryable)

/** True after errors that may pass while a caller still waits: the server is back, or a connection is free. */
export const isPassing = (error: unknown): boolean =>
  error instanceof CommitOutcomeUnknownError ||
  error instanceof ConnectionLostError ||
  error instanceof BusyError

/** For statements that may be repeated, since each names its fence or its holder. */
export const RESEND: RetryPolicy = {
  ...{ isRetryable: isTransient, baseMs: 20, maxMs: 500 },
  maxAttempts: 5, // guard: once.send-retries
}
