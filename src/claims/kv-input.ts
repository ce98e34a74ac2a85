import { InvalidInputError } from '../errors.js'
import { checkLifetime } from '../postgres/check-duration.js'
import { toJson } from '../postgres/json.js'
import { checkCharacters, MAX_KEY_BYTES } from '../postgres/key.js'
import { nameGiven } from '../postgres/name-given.js'

/** The maximum number of keys that `getMany` takes. */
export const MAX_KEYS = 1_000

/** PostgreSQL merges with a recursive function, and its stack is limited. This depth is well within that limit. */
const MAX_PATCH_DEPTH = 50

const MAX_PATHS = 1_000

/** The path of a field: its name, or the names on the way to it through the objects around it. */
export type FieldPath = string | readonly string[]

export function checkVersion(field: string, version: unknown): string {
  if (typeof version === 'number' && Number.isSafeInteger(version) && version >= 1) return String(version)
  const given = typeof version === 'number' ? String(version) : nameGiven(version)
  throw new InvalidInputError(field, `must be the version of an entry, a whole number from 1, not ${given}`)
}

/** The lifetime of a new entry. Null means forever. */
export function checkTtl(ttlMs: unknown): string | null {
  return ttlMs === undefined ? null : checkLifetime('ttlMs', ttlMs)
}

/** The new lifetime of an existing entry. The first value says whether the entry keeps its expiry. */
export function checkNewTtl(ttlMs: unknown): readonly ['true' | 'false', string | null] {
  return [ttlMs === undefined ? 'true' : 'false', checkTtl(ttlMs)]
}

export function checkFields(fields: unknown): string {
  const json = toJson('fields', fields)
  if (!json.startsWith('{')) {
    throw new InvalidInputError('fields', `must be an object, not ${nameGiven(fields)}`)
  }
  if (depthOf(JSON.parse(json)) > MAX_PATCH_DEPTH) {
    throw new InvalidInputError('fields', `must not be objects nested deeper than ${MAX_PATCH_DEPTH} levels`)
  }
  return json
}

/** How deep objects are nested in objects. Arrays do not count, because an array is replaced as a whole. */
function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return 0
  // No spread: a value of one megabyte can have more fields than a call may have arguments.
  return 1 + Object.values(value).reduce<number>((deepest, inner) => Math.max(deepest, depthOf(inner)), 0)
}

export function checkPaths(paths: unknown): string {
  if (!Array.isArray(paths)) {
    throw new InvalidInputError(
      'remove',
      `must be an array of field names and paths, not ${nameGiven(paths)}`,
    )
  }
  if (paths.length > MAX_PATHS) throw new InvalidInputError('remove', `must be at most ${MAX_PATHS} paths`)
  return toJson('remove', paths.map(checkPath))
}

function checkPath(path: unknown): readonly string[] {
  const names = Array.isArray(path) ? path : [path]
  if (names.length === 0) throw new InvalidInputError('remove', 'must not hold an empty path')
  for (const name of names) {
    if (typeof name !== 'string') {
      throw new InvalidInputError(
        'remove',
        `must hold names of fields, which are texts, not ${nameGiven(name)}`,
      )
    }
  }
  return names
}

/** The range of keys that begin with a prefix: `from` is included, and `below` is not. `below` is undefined if no string is greater than all these keys. */
export function prefixRange(prefix: unknown): { readonly from: string; readonly below: string | undefined } {
  if (typeof prefix !== 'string') {
    throw new InvalidInputError('prefix', `must be a text, not ${nameGiven(prefix)}`)
  }
  if (Buffer.byteLength(prefix) > MAX_KEY_BYTES) {
    throw new InvalidInputError('prefix', `must be at most ${MAX_KEY_BYTES} bytes long, as keys are`)
  }
  checkCharacters('prefix', prefix)
  return { from: prefix, below: nextText(prefix) }
}

const LAST_CODE_POINT = 0x10ffff

/**
 * The smallest string that is greater than all strings that begin with `text`. UTF-8 sorts by code point. JavaScript sorts by UTF-16 code unit, so this
 * function increments the last code point.
 */
function nextText(text: string): string | undefined {
  const points = [...text].map((character) => character.codePointAt(0) ?? 0)
  while (points.at(-1) === LAST_CODE_POINT) points.pop()
  const last = points.pop()
  if (last === undefined) return undefined
  // Surrogates are not characters: after U+D7FF comes U+E000.
  return String.fromCodePoint(...points, last === 0xd7ff ? 0xe000 : last + 1)
}
