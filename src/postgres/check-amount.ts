import { InvalidInputError } from '../errors.js'
import { nameGiven } from './name-given.js'
import { refuseValue } from './refuse-value.js'

const isAmount = (amount: unknown, least: number): amount is number =>
  typeof amount === 'number' && Number.isSafeInteger(amount) && amount >= least

const explain = (amount: unknown, least: number): string =>
  `must be a whole number from ${least}, not ${typeof amount === 'number' ? amount : nameGiven(amount)}`

/** Checks an amount that programs pass on from their clients: a wrong one is 400. */
export function checkAmount(field: string, amount: unknown, least = 1): number {
  if (isAmount(amount, least)) return amount
  throw refuseValue(field, explain(amount, least))
}

/** Checks an amount that the program itself sets, such as a limit: a wrong one is 500. */
export function checkLimit(field: string, limit: unknown, least = 1): number {
  if (isAmount(limit, least)) return limit
  throw new InvalidInputError(field, explain(limit, least))
}
