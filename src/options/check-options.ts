import { InvalidInputError } from '../errors.js'
import { hasMethods, nameGiven, showGiven } from './name-given.js'
import { findNearest } from './nearest-name.js'

/**
 * Refuses an option that a call does not have. Without types, a misspelled option would silently keep its default.
 *
 * @param of whose options they are, if that is not clear: `email`
 */
export function checkOptions(options: unknown, names: readonly string[], of?: string): void {
  const unknown = readNames(options, of).find((name) => !names.includes(name))
  if (unknown !== undefined) throw refuseName(options, unknown, names, of)
}

/** The error for an unknown name in `options`. A transaction may stand in their place. */
export function refuseName(
  options: unknown,
  unknown: string,
  names: readonly string[],
  of: string | undefined,
): InvalidInputError {
  if (isTransaction(options)) return transactionInPlace(of)
  // Names that begin with a tilde exist for types alone.
  const expected = names.filter((name) => !name.startsWith('~'))
  return unknownOption(unknown, expected, of)
}

export function unknownOption(name: string, expected: readonly string[], of?: string): InvalidInputError {
  const field = of === undefined ? name : `${of}.${name}`
  const nearest = findNearest(name.slice(0, MAX_COMPARED), expected)
  const meant = nearest === undefined ? '' : ` Did you mean ${nearest}?`
  const offer = expected.length === 0 ? 'This call has no options' : `Expected one of: ${expected.join(', ')}`
  return new InvalidInputError(field, '', {
    message: `Unknown option ${showGiven(field)}.${meant} ${offer}.`,
  })
}

/** Longer names are not compared as a whole: the time for that grows with their length. */
const MAX_COMPARED = 100

/** A transaction of Dibs or of a library, given where the options stand. */
const isTransaction = (options: unknown): boolean =>
  ['query', 'execute', 'executeQuery', '$executeRawUnsafe', 'unsafe', 'raw'].some((name) =>
    hasMethods(options, name),
  )

const transactionInPlace = (of: string | undefined): InvalidInputError =>
  new InvalidInputError(
    of ?? 'options',
    'must be an object of options, not a transaction. Pass the transaction as `{ tx }`',
  )

/** The own names of an object of options. Refuses everything else. */
export function readNames(options: unknown, of: string | undefined): readonly string[] {
  try {
    if (typeof options === 'object' && options !== null && !Array.isArray(options)) {
      const names = Object.keys(options)
      // A transaction may have no properties except methods. Most calls get plain options, whose methods need no check.
      if (Object.getPrototypeOf(options) === Object.prototype || !isTransaction(options)) return names
    }
    if (isTransaction(options)) throw transactionInPlace(of)
  } catch (error) {
    // A proxy that throws is refused below.
    if (error instanceof InvalidInputError) throw error
  }
  throw new InvalidInputError(
    of ?? 'options',
    `must be an object${of === undefined ? '' : ' of options'}, not ${nameGiven(options)}`,
  )
}
