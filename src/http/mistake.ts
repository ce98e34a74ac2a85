import { InvalidInputError } from '../errors.js'

/** A mistake of the application's, which shows when somebody asks it for something: not theirs, so it is no 400. */
export const mistake = (field: string, problem: string): InvalidInputError =>
  new InvalidInputError(field, problem, { status: 500 })
