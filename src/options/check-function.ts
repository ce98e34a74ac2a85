import { InvalidInputError } from '../errors.js'
import { nameGiven } from './name-given.js'

/** Refuses a callback that is not a function before anything starts. */
export function checkFunction(field: string, fn: unknown): void {
  if (typeof fn !== 'function') throw new InvalidInputError(field, `must be a function, not ${nameGiven(fn)}`)
}
