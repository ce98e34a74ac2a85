import { InvalidInputError } from '../errors.js'
import { showGiven } from './name-given.js'
import { refuseValue } from './refuse-value.js'

const isAmount = (amount: unknown, min: number, max: number): amount is number =>
  typeof amount === 'number' && Number.isSafeInteger(amount) && amount >= min && amount <= max

/** ` from 1`, ` from 1 to 1000` */
function showRange(min: number, max: number): string {
  if (max !== Number.MAX_SAFE_INTEGER) return ` from ${min} to ${max}`
  return min === Number.MIN_SAFE_INTEGER ? '' : ` from ${min}`
}

const explain = (amount: unknown, min: number, max: number): string =>
  `must be a whole number${showRange(min, max)}, not ${showGiven(amount)}`

/** Checks an amount that programs pass on from their clients: a wrong one is 400. */
export function checkAmount(
  field: string,
  amount: unknown,
  min = 1,
  max: number = Number.MAX_SAFE_INTEGER,
): number {
  if (isAmount(amount, min, max)) return amount
  throw refuseValue(field, explain(amount, min, max))
}

/** Checks an amount that the program itself sets, such as a limit: a wrong one is 500. */
export function checkLimit(
  field: string,
  limit: unknown,
  min = 1,
  max: number = Number.MAX_SAFE_INTEGER,
): number {
  if (isAmount(limit, min, max)) return limit
  throw new InvalidInputError(field, explain(limit, min, max))
}
