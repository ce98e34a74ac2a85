import { InvalidInputError } from '../errors.js'
import { nameGiven } from './name-given.js'

/**
 * For those without types: a name that is misspelled would otherwise be taken for its default.
 *
 * @param of whose options they are, if that is not clear: `email`
 */
export function checkOptions(options: unknown, names: readonly string[], of?: string): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new InvalidInputError(
      of ?? 'options',
      `must be an object${of === undefined ? '' : ' of options'}, not ${nameGiven(options)}`,
    )
  }
  const unknown = Object.keys(options).find((name) => !names.includes(name))
  if (unknown !== undefined) {
    // What begins with a tilde is for types alone.
    const shown = names.filter((name) => !name.startsWith('~'))
    throw new InvalidInputError(
      of === undefined ? unknown : `${of}.${unknown}`,
      `is no option here; there are ${shown.join(', ') || 'none'}`,
    )
  }
}
