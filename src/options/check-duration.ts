import { InvalidInputError } from '../errors.js'
import { showGiven } from './name-given.js'

export { MAX_TIMER_MS } from './max-timer-ms.js'

/** A hundred years: beyond it a number is more likely a mistake than a duration. */
export const MAX_DURATION_MS = 100 * 365 * 24 * 3_600_000

/** A duration as a caller may give it: a whole number of milliseconds. */
export function checkDuration(field: string, ms: unknown, min = 1, max = MAX_DURATION_MS): number {
  if (typeof ms === 'number' && Number.isSafeInteger(ms) && ms >= min && ms <= max) return ms
  throw new InvalidInputError(
    field,
    `must be a whole number of milliseconds from ${min} to ${max}, not ${showGiven(ms)}`,
  )
}

/** Checks a duration that may also be `Infinity`. Returns it as the database reads it. */
export function checkLifetime(field: string, ms: unknown): string | null {
  return lifetimeText(ms === Number.POSITIVE_INFINITY ? ms : checkDuration(field, ms))
}

/** A checked lifetime as the database reads it: null means forever. */
export const lifetimeText = (ms: number): string | null =>
  ms === Number.POSITIVE_INFINITY ? null : String(ms)
