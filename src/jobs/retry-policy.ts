import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../options/name-given.js'
import { duration, number } from '../options/number-options.js'
import { optionTable } from '../options/option-table.js'
import { oneOf } from '../options/value-options.js'

/** Returns the delay before the next attempt in milliseconds, or null if there is no next attempt. `attempt` is the number of the failed attempt, from 1. */
export type CustomRetry = (attempt: number, error: unknown) => number | null

export interface RetryOptions {
  /** How the delay grows: `exponential` doubles it, `linear` adds `baseMs`, `fixed` keeps it. Default `exponential`. */
  readonly backoff?: 'exponential' | 'linear' | 'fixed' | undefined
  /** The delay after the first attempt. Default 1,000. */
  readonly baseMs?: number | undefined
  /** The longest delay. Default 3,600,000 (one hour). */
  readonly maxMs?: number | undefined
  /** The random share of the delay, from 0 to 1, so that jobs that failed together do not retry together. Default 0.5. */
  readonly jitter?: number | undefined
}

export type Retry = RetryOptions | CustomRetry

/** A month. A longer delay is more likely a mistake. */
const MAX_DELAY_MS = 31 * 24 * 3_600_000

export const jobRetryOptions = optionTable<RetryOptions>()('dibs.jobs, retry', {
  backoff: oneOf(['exponential', 'linear', 'fixed'], { default: 'exponential' }),
  baseMs: duration({ default: 1_000, min: 0, max: MAX_DELAY_MS }),
  maxMs: duration({ default: 3_600_000, min: 0, max: MAX_DELAY_MS }),
  jitter: number({ default: 0.5, min: 0, max: 1 }),
})

export function checkRetry(field: string, retry: unknown): void {
  if (typeof retry === 'function') return
  if (typeof retry !== 'object' || retry === null || Array.isArray(retry))
    throw new InvalidInputError(field, `must be an object of options, or a function, not ${nameGiven(retry)}`)
  jobRetryOptions.read(retry, field)
}

/**
 * Returns the delay after the failed attempt number `attempt`, or null for no more attempts. If a custom function throws, or returns no number, the default
 * policy applies.
 */
export function retryDelayMs(retry: Retry | undefined, attempt: number, error: unknown): number | null {
  if (typeof retry === 'function') {
    try {
      const delayMs = retry(attempt, error)
      if (delayMs === null || delayMs === Number.POSITIVE_INFINITY) return null
      if (Number.isFinite(delayMs)) return Math.min(MAX_DELAY_MS, Math.max(0, Math.ceil(delayMs)))
    } catch {
      // The default policy decides.
    }
    return retryDelayMs(undefined, attempt, error)
  }
  const { backoff, baseMs, maxMs, jitter } = jobRetryOptions.read(retry)
  const grown = {
    exponential: baseMs * 2 ** Math.min(attempt - 1, 30),
    linear: baseMs * attempt,
    fixed: baseMs,
  }[backoff]
  return Math.ceil(Math.min(maxMs, grown) * (1 - jitter * Math.random()))
}
