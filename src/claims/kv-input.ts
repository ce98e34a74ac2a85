import { InvalidInputError } from '../errors.js'
import { checkLifetime } from '../postgres/check-duration.js'
import { toJson } from '../postgres/json.js'
import { checkCharacters, MAX_KEY_BYTES } from '../postgres/key.js'
import { nameGiven } from '../postgres/name-given.js'

/** Most keys that `getMany` takes, and most entries on a page of `scan`. */
export const MAX_KEYS = 1_000

/** PostgreSQL merges by a function that calls itself, and its stack is limited; this is well within. */
const MAX_PATCH_DEPTH = 50

const MAX_PATHS = 1_000

/** Where a field is: its name, or the way to it through the objects around it. */
export type FieldPath = string | readonly string[]

export function checkVersion(field: string, version: unknown): string {
  if (typeof version === 'number' && Number.isSafeInteger(version) && version >= 1) return String(version)
  const given = typeof version === 'number' ? String(version) : nameGiven(version)
  throw new InvalidInputError(field, `must be the version of an entry, a whole number from 1, not ${given}`)
}

/** How long something written from scratch lives: null for ever. */
export function checkTtl(ttlMs: unknown): string | null {
  return ttlMs === undefined ? null : checkLifetime('ttlMs', ttlMs)
}

/** How long something that is there lives from now on; the first says whether it keeps what it has. */
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

/** How deep objects lie in objects; what is in an array is replaced as a whole, and counts for nothing. */
function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return 0
  // No spread: a megabyte has room for more fields than a call may have arguments.
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

/** The keys that begin with a prefix: from this on, and below that; undefined where no text is beyond all of them. */
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
 * The least text that is greater than all that begin with this one. UTF-8 sorts as code points do, and JavaScript's own
 * order of UTF-16 does not, so it is the last code point that is raised.
 */
function nextText(text: string): string | undefined {
  const points = [...text].map((character) => character.codePointAt(0) ?? 0)
  while (points.at(-1) === LAST_CODE_POINT) points.pop()
  const last = points.pop()
  if (last === undefined) return undefined
  // Halves of surrogate pairs are no characters: after U+D7FF comes U+E000.
  return String.fromCodePoint(...points, last === 0xd7ff ? 0xe000 : last + 1)
}
