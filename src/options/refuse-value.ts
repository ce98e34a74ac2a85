import { type DibsErrorOptions, InvalidInputError } from '../errors.js'

/** Refuses a value that programs pass on from their own clients, such as an id from a URL: 400, since the client can correct it. */
export const refuseValue = (
  field: string,
  problem: string,
  options: DibsErrorOptions = {},
): InvalidInputError => new InvalidInputError(field, problem, { ...options, status: 400 })
