import { InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import { nameGiven } from '../postgres/name-given.js'

/** An entity tag, RFC 9110 §8.8.3, without its quotes. */
export interface EntityTag {
  readonly opaque: string
  readonly isWeak: boolean
}

const etagc = String.raw`[\x21\x23-\x7e\x80-\xff]`
const opaque = new RegExp(`^${etagc}+$`)

/**
 * Returns a version as the value of an `ETag`: `"7"`. The tag is strong, because a version names one state and no other. `weak` is for responses whose bytes
 * may differ; a weak tag never matches an `If-Match`.
 *
 * @example
 * response.setHeader('ETag', etagOf(row.version))
 */
export function etagOf(
  version: number | string,
  options: { readonly weak?: boolean | undefined } = {},
): string {
  checkOptions(options, ['weak'])
  const { weak = false } = options
  const isVersion = typeof version === 'number' ? Number.isSafeInteger(version) : typeof version === 'string'
  if (!isVersion || !opaque.test(String(version))) {
    const given =
      typeof version === 'string' || typeof version === 'number' ? String(version) : nameGiven(version)
    throw new InvalidInputError(
      'version',
      `must be a whole number, or a text of what an entity tag may hold (no blanks, no quotes), not ${JSON.stringify(given)}`,
    )
  }
  return `${weak ? 'W/' : ''}"${version}"`
}

/** Reads a list of entity tags, or `*`. Returns undefined if the value is neither. A tag may hold a comma, so the list is read from left to right. */
export function readEntityTags(value: string): '*' | readonly EntityTag[] | undefined {
  if (value.trim() === '*') return '*'
  const tags: EntityTag[] = []
  const next = new RegExp(`[ \\t,]*(W/)?"(${etagc}*)"[ \\t]*(?:,[ \\t,]*|$)`, 'y')
  while (next.lastIndex < value.length) {
    const found = next.exec(value)
    if (!found) return undefined
    tags.push({ opaque: found[2] as string, isWeak: found[1] !== undefined })
  }
  return tags.length > 0 ? tags : undefined
}
