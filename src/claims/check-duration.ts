import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../postgres/name-given.js'

/** A hundred years: beyond it a number is more likely a mistake than a duration. */
const MAX_MS = 100 * 365 * 24 * 3_600_000

/** A duration as a caller may give it: a whole number of milliseconds. */
export function checkDuration(field: string, ms: unknown, leastMs = 1): number {
  if (typeof ms === 'number' && Number.isSafeInteger(ms) && ms >= leastMs && ms <= MAX_MS) return ms
  const given = typeof ms === 'number' ? String(ms) : nameGiven(ms)
  throw new InvalidInputError(
    field,
    `must be a whole number of milliseconds from ${leastMs} to ${MAX_MS} (a hundred years), not ${given}`,
  )
}

/** The same, or `Infinity` for ever, which is null on the wire. */
export function checkLifetime(field: string, ms: unknown): string | null {
  return ms === Number.POSITIVE_INFINITY ? null : String(checkDuration(field, ms))
}
