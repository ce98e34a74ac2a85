import {
  BusinessRuleError,
  InvalidOutcomeError,
  PermanentError,
  SnoozeError,
  StoredValueError,
} from '../errors.js'
import { storeFailure } from '../postgres/stored-failure.js'
import { type Retry, retryDelayMs } from './retry-policy.js'

/** How an attempt ends that has not succeeded; see `job_settle` in sql/0023_job_end.sql. */
export interface Settlement {
  readonly to: 'retry' | 'dead' | 'snooze' | 'back' | 'canceled'
  readonly delayMs: number
  /** A stored failure, as JSON. */
  readonly error: string | null
}

/** A hundred years: no time that the database knows is far beyond. */
const MAX_SNOOZE_MS = 100 * 365 * 86_400_000

/** What an error asks for is heard up to a day. */
const MAX_ASKED_MS = 86_400_000

/** Running it again would end the same way. */
const final = [PermanentError, BusinessRuleError, StoredValueError, InvalidOutcomeError]

/** What becomes of a job whose handler has thrown. */
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
  return { to: 'retry', delayMs: Math.max(delayMs, asksFor(error)), error: storeFailure(error) }
}

/** The job is dead. Its stack is kept with it, for whoever looks at dead letters. */
export const deadWith = (error: unknown): Settlement => ({
  to: 'dead',
  delayMs: 0,
  error: storeFailure(error, { withStack: true }),
})

/** Some errors say when it makes sense to come again. */
function asksFor(error: unknown): number {
  try {
    const { retryAfterMs } = Object(error) as { retryAfterMs?: unknown }
    const isFit = Number.isFinite(retryAfterMs) && Number(retryAfterMs) > 0
    return isFit ? Math.ceil(Math.min(Number(retryAfterMs), MAX_ASKED_MS)) : 0
  } catch {
    return 0 // what was thrown may do anything
  }
}
