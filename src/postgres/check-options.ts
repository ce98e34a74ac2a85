import { InvalidInputError } from '../errors.js'
import { nameGiven, showGiven } from './name-given.js'

/**
 * Refuses an option that a call does not have. Without types, a misspelled option would silently have its default.
 *
 * @param of whose options they are, if that is not clear: `email`
 */
export function checkOptions(options: unknown, names: readonly string[], of?: string): void {
  const unknown = readNames(options, of).find((name) => !names.includes(name))
  if (unknown === undefined) return
  // Names that begin with a tilde exist for types alone.
  const expected = names.filter((name) => !name.startsWith('~'))
  throw unknownOption(of === undefined ? unknown : `${of}.${unknown}`, expected)
}

export const unknownOption = (name: string, expected: readonly string[]): InvalidInputError =>
  new InvalidInputError(name, '', {
    message: `Unknown option ${showGiven(name)}. ${expected.length === 0 ? 'This call has no options' : `Expected one of: ${expected.join(', ')}`}.`,
  })

function readNames(options: unknown, of: string | undefined): readonly string[] {
  try {
    if (typeof options === 'object' && options !== null && !Array.isArray(options))
      return Object.keys(options)
  } catch {
    // A proxy that throws is refused below.
  }
  throw new InvalidInputError(
    of ?? 'options',
    `must be an object${of === undefined ? '' : ' of options'}, not ${nameGiven(options)}`,
  )
}
