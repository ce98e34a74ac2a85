import { InvalidInputError } from '../errors.js'
import { showGiven } from './name-given.js'

/**
 * Accepts only names of time zones. PostgreSQL reads `+01:00` with the opposite sign, and abbreviations differently: `IST` is
 * Israel, and `CET` has no summer time.
 */
export function checkZone(zone: unknown): string {
  try {
    if (typeof zone === 'string' && /^(?:utc|gmt|[a-z]+\/.+)$/i.test(zone)) {
      new Intl.DateTimeFormat('en', { timeZone: zone })
      return zone
    }
  } catch {
    // Refused below.
  }
  throw new InvalidInputError(
    'timeZone',
    `must be the name of a time zone such as "Europe/Berlin", not ${showGiven(zone)}`,
  )
}
