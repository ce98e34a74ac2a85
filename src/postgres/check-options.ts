import { InvalidInputError } from '../errors.js'
import { nameGiven } from './name-given.js'

/** For those without types: a name that is misspelled would otherwise be taken for its default. */
export function checkOptions(options: unknown, names: readonly string[]): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new InvalidInputError('options', `must be an object, not ${nameGiven(options)}`)
  }
  const unknown = Object.keys(options).find((name) => !names.includes(name))
  if (unknown !== undefined) {
    throw new InvalidInputError(unknown, `is no option here; there are ${names.join(', ') || 'none'}`)
  }
}
