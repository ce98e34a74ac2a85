import { InvalidInputError } from '../errors.js'
import { nameGiven } from './name-given.js'

export { MAX_TIMER_MS } from './max-timer-ms.js'

/** A hundred years: beyond it a number is more likely a mistake than a duration. */
const MAX_MS = 100 * 365 * 24 * 3_600_000

/** A duration as a caller may give it: a whole number of milliseconds. */
export function checkDuration(field: string, ms: unknown, leastMs = 1, mostMs = MAX_MS): number {
  if (typeof ms === 'number' && Number.isSafeInteger(ms) && ms >= leastMs && ms <= mostMs) return ms
  const given = typeof ms === 'number' ? String(ms) : nameGiven(ms)
  throw new InvalidInputError(
    field,
    `must be a whole number of milliseconds from ${leastMs} to ${mostMs}, not ${given}`,
  )
}

/** The same, or `Infinity` for ever, which is null on the wire. */
export function checkLifetime(field: string, ms: unknown): string | null {
  return ms === Number.POSITIVE_INFINITY ? null : String(checkDuration(field, ms))
}
