import { InvalidInputError } from '../errors.js'

/**
 * How long nothing may happen before it is a stall: as the options say, or `DIBS_PATIENCE_MS` for a machine that is slow as a
 * whole, or what is usual.
 */
export function patienceOf(given: number | undefined, usualMs: number): number {
  const named = process.env.DIBS_PATIENCE_MS
  if (given !== undefined || named === undefined || named === '') return given ?? usualMs
  const ms = Number(named)
  if (ms > 0 && ms <= 2_147_483_647) return ms
  throw new InvalidInputError(
    'DIBS_PATIENCE_MS',
    `must be a number of milliseconds, and is ${JSON.stringify(named)}`,
  )
}
