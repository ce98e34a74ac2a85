import { InvalidInputError } from '../errors.js'
import { unknownOption } from '../postgres/check-options.js'
import { showGiven } from '../postgres/name-given.js'

/** What an option must be, and how to say so. */
export type Kind = readonly [isRight: (value: unknown) => boolean, what: string]

const ISOLATIONS = ['read committed', 'repeatable read', 'serializable']

export const ANYTHING: Kind = [() => true, 'anything']
export const FUNCTION: Kind = [(value) => typeof value === 'function', 'a function']
export const BOOLEAN: Kind = [(value) => typeof value === 'boolean', 'true or false']
export const NUMBER: Kind = [Number.isFinite, 'a number']
export const TEXT: Kind = [(value) => typeof value === 'string', 'a string']
export const NAME: Kind = [(value) => typeof value === 'string' && value !== '', 'a string that is not empty']
export const LIST: Kind = [Array.isArray, 'a list of names']
export const MILLISECONDS: Kind = [(value) => typeof value === 'number' && value > 0, 'more than 0']
export const PATH: Kind = [(value) => typeof value === 'string' && value !== '', 'the path of a file']
export const DATE: Kind = [(value) => value instanceof Date && !Number.isNaN(value.getTime()), 'a valid Date']
export const ISOLATION: Kind = [
  (value) => ISOLATIONS.includes(value as string),
  `one of ${ISOLATIONS.join(', ')}`,
]

const POOL: Kind = [
  (value) => typeof (value as { connect?: unknown } | null)?.connect === 'function',
  'a Pool of pg',
]

/** What the explorer and the crash loop are both given. */
export const COMMON = {
  name: NAME,
  pool: POOL,
  url: TEXT,
  setup: FUNCTION,
  invariant: FUNCTION,
  bound: [(value) => typeof value === 'object' && value !== null, 'an object'],
  isolation: ISOLATION,
  seed: NUMBER,
  clockStartsAt: DATE,
  replay: TEXT,
  throws: BOOLEAN,
  page: PATH,
  reset: FUNCTION,
  patienceMs: MILLISECONDS,
} as const satisfies Record<string, Kind>

interface Given {
  readonly pool?: unknown
  readonly url?: unknown
}

/** Refuses what is not acceptable: an option that is misspelled would be one that is not obeyed. */
export function checkGiven<Options extends Given>(
  options: Options,
  { of, kinds }: { readonly of: string; readonly kinds: Readonly<Record<keyof Options, Kind>> },
): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options))
    throw new InvalidInputError('options', `of ${of} must be an object, not ${showGiven(options)}`)
  for (const name of Object.keys(options))
    if (!Object.hasOwn(kinds, name)) throw unknownOption(name, Object.keys(kinds))
  if (Boolean(options.pool) === Boolean(options.url))
    throw new InvalidInputError('pool', 'or `url` must be given, and not both')
  for (const [name, [isRight, what]] of Object.entries<Kind>(kinds)) {
    const value = options[name as keyof Options]
    if (value !== undefined && !isRight(value))
      throw new InvalidInputError(name, `must be ${what}, not ${showGiven(value)}`)
  }
}

/** @param least what each bound must be at least */
export function checkBounds(bound: object | undefined, least: Readonly<Record<string, number>>): void {
  for (const [name, value] of Object.entries<unknown>({ ...bound })) {
    const lowest = least[name]
    if (lowest === undefined) throw unknownOption(name, Object.keys(least), 'bound')
    if (value !== undefined && !(typeof value === 'number' && value >= lowest))
      throw new InvalidInputError(`bound.${name}`, `must be ${lowest} or more, not ${showGiven(value)}`)
    if (typeof value === 'number' && value % 1 > 0)
      throw new InvalidInputError(`bound.${name}`, `must be a whole number, not ${value}`)
  }
}
