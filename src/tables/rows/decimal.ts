import { InvalidInputError } from '../../errors.js'
import { showGiven } from '../../options/name-given.js'

const PLAIN = /^([+-]?)(\d{1,500})(?:\.(\d{1,500}))?$/

/** An exact decimal number, never a float. */
export interface Decimal {
  readonly text: string
  /** All digits as an integer, in units of the last place. */
  readonly units: bigint
  /** The number of digits after the decimal point, without trailing zeros. */
  readonly places: number
}

/** Reads an exact number. A JavaScript number is read as it prints, and must be safe if it is whole. */
export function readDecimal(field: string, value: unknown): Decimal {
  const isExact =
    typeof value === 'bigint' ||
    typeof value === 'string' ||
    (typeof value === 'number' &&
      Number.isFinite(value) &&
      (!Number.isInteger(value) || Number.isSafeInteger(value)))
  const [, sign, whole, fraction = ''] = (isExact && PLAIN.exec(`${value}`)) || []
  if (whole === undefined) {
    throw new InvalidInputError(
      field,
      `must be a number given exactly: a safe integer, a bigint, or digits as text, not ${showGiven(value)}`,
    )
  }
  const trimmed = fraction.replace(/0+$/, '')
  const units = BigInt(`${whole}${trimmed}`) * (sign === '-' ? -1n : 1n)
  return { units, places: trimmed.length, text: writeDecimal(units, trimmed.length) }
}

export function writeDecimal(units: bigint, places: number): string {
  const digits = `${units < 0n ? -units : units}`.padStart(places + 1, '0')
  const point = digits.length - places
  return `${units < 0n ? '-' : ''}${digits.slice(0, point)}${places > 0 ? `.${digits.slice(point)}` : ''}`
}

/** Returns a negative number if the first is less. */
export function compareDecimals(one: Decimal, other: Decimal): number {
  const places = Math.max(one.places, other.places)
  const [first, second] = [one, other].map(
    ({ units, places: own }) => units * 10n ** BigInt(places - own),
  ) as [bigint, bigint]
  return first < second ? -1 : first > second ? 1 : 0
}
