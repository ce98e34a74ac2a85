import { InvalidInputError } from '../errors.js'
import { hasMethods, nameGiven, showGiven } from './name-given.js'
import { findNearest } from './nearest-name.js'

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

export function unknownOption(name: string, expected: readonly string[]): InvalidInputError {
  const nearest = findNearest(name.slice(0, MAX_COMPARED), expected)
  const meant = nearest === undefined ? '' : ` Did you mean ${nearest}?`
  const offer = expected.length === 0 ? 'This call has no options' : `Expected one of: ${expected.join(', ')}`
  return new InvalidInputError(name, '', { message: `Unknown option ${showGiven(name)}.${meant} ${offer}.` })
}

/** Longer names are not compared as a whole: the time for that grows with their length. */
const MAX_COMPARED = 100

/** A transaction of Dibs or of a library, given where the options stand. */
const isTransaction = (options: object): boolean =>
  ['query', 'execute', '$executeRawUnsafe', 'unsafe', 'raw'].some((name) => hasMethods(options, name))

function readNames(options: unknown, of: string | undefined): readonly string[] {
  try {
    if (typeof options === 'object' && options !== null && !Array.isArray(options)) {
      if (!isTransaction(options)) return Object.keys(options)
      throw new InvalidInputError(
        of ?? 'options',
        'must be an object of options, not a transaction. Pass the transaction as `{ tx }`',
      )
    }
  } catch (error) {
    if (error instanceof InvalidInputError) throw error
    // A proxy that throws is refused below.
  }
  throw new InvalidInputError(
    of ?? 'options',
    `must be an object${of === undefined ? '' : ' of options'}, not ${nameGiven(options)}`,
  )
}
