import { InvalidInputError } from '../errors.js'
import { showGiven } from './name-given.js'

/**
 * Names alone: `+01:00` means the opposite to PostgreSQL, and abbreviations something else: `IST` is Israel there, and `CET` has no
 * summer.
 */
export function checkZone(zone: unknown): string {
  try {
    if (typeof zone === 'string' && /^(?:utc|gmt|[a-z]+\/.+)$/i.test(zone)) {
      new Intl.DateTimeFormat('en', { timeZone: zone })
      return zone
    }
  } catch {
    // It says so below.
  }
  throw new InvalidInputError(
    'timeZone',
    `must be the name of a time zone such as "Europe/Berlin", not ${showGiven(zone)}`,
  )
}
