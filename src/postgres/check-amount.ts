import { InvalidInputError } from '../errors.js'
import { nameGiven } from './name-given.js'

/** Units are whole, and there is at least one. */
export function checkAmount(field: string, amount: unknown, least = 1): number {
  if (typeof amount === 'number' && Number.isSafeInteger(amount) && amount >= least) return amount
  const given = typeof amount === 'number' ? String(amount) : nameGiven(amount)
  throw new InvalidInputError(field, `must be a whole number from ${least}, not ${given}`)
}
