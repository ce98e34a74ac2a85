import { InvalidInputError } from '../../errors.js'
import { showGiven } from '../../options/name-given.js'
import { optionTable } from '../../options/option-table.js'
import { boolean } from '../../options/value-options.js'

/** An entity tag, RFC 9110 §8.8.3, without its quotes. */
export interface EntityTag {
  readonly opaque: string
  readonly isWeak: boolean
}

export interface EntityTagOptions {
  /** True for a response whose bytes may differ. A weak tag never matches an `If-Match`. Default false. */
  readonly weak?: boolean | undefined
}

export const entityTagOptions = optionTable<EntityTagOptions>()('etagOf', {
  weak: boolean({ default: false }),
})

const etagc = String.raw`[\x21\x23-\x7e\x80-\xff]`
const opaque = new RegExp(`^${etagc}+$`)

/**
 * Returns a version as the value of an `ETag`: `"7"`. The tag is strong by default, because a version names exactly one state.
 *
 * @example
 * response.setHeader('ETag', etagOf(row.version))
 */
export function etagOf(version: number | string, options?: EntityTagOptions): string {
  const { weak } = entityTagOptions.read(options)
  const isVersion = typeof version === 'number' ? Number.isSafeInteger(version) : typeof version === 'string'
  if (!isVersion || !opaque.test(String(version))) {
    throw new InvalidInputError(
      'version',
      `must be a whole number, or a string without blanks and quotes, not ${showGiven(version)}`,
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
