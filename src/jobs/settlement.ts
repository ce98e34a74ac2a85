import {
  BusinessRuleError,
  InvalidOutcomeError,
  PermanentError,
  SnoozeError,
  StoredValueError,
} from '../errors.js'
import { storeFailure } from '../postgres/stored-failure.js'
import { type Retry, retryDelayMs } from './retry-policy.js'

/** The end of an attempt that did not succeed. See `job_settle` in sql/0032_job_settle.sql. */
export interface Settlement {
  readonly to: 'retry' | 'dead' | 'snooze' | 'release' | 'canceled'
  readonly delayMs: number
  /** A stored failure, as JSON. */
  readonly error: string | null
}

/** A hundred years. PostgreSQL cannot represent times far beyond that. */
const MAX_SNOOZE_MS = 100 * 365 * 86_400_000

/** An error may ask for a delay of at most a day. */
const MAX_REQUESTED_MS = 86_400_000

/** After these errors, another attempt would end the same way. */
const final = [PermanentError, BusinessRuleError, StoredValueError, InvalidOutcomeError]

/** Decides how an attempt ends whose handler has thrown. */
export function settlementOf(
  error: unknown,
  job: { readonly attempt: number; readonly maxAttempts: number },
  retry: Retry | undefined,
): Settlement {
  if (error instanceof SnoozeError) {
    const delayMs = Math.min(MAX_SNOOZE_MS, Math.ceil(error.delayMs))
    return { to: 'snooze', delayMs, error: storeFailure(error) }
  }
  const isOver = final.some((type) => error instanceof type) || job.attempt >= job.maxAttempts
  const delayMs = isOver ? null : retryDelayMs(retry, job.attempt, error)
  if (delayMs === null) return deadWith(error)
  return { to: 'retry', delayMs: Math.max(delayMs, requestedDelayMs(error)), error: storeFailure(error) }
}

/** The job is dead. The stack is kept, for `jobs.dead`. */
export const deadWith = (error: unknown): Settlement => ({
  to: 'dead',
  delayMs: 0,
  error: storeFailure(error, { withStack: true }),
})

/** The delay that the error itself requests in `retryAfterMs`, or 0. */
function requestedDelayMs(error: unknown): number {
  try {
    const { retryAfterMs } = Object(error) as { retryAfterMs?: unknown }
    const isFit = Number.isFinite(retryAfterMs) && Number(retryAfterMs) > 0
    return isFit ? Math.ceil(Math.min(Number(retryAfterMs), MAX_REQUESTED_MS)) : 0
  } catch {
    return 0 // A handler can throw a value whose getters throw.
  }
}
