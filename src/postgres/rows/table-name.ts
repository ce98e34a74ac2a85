import { InvalidInputError } from '../../errors.js'
import { quoteIdentifier } from '../identifier.js'
import { checkCharacters } from '../key.js'
import { nameGiven, showGiven } from '../name-given.js'

/** A table as a caller names it. */
export interface TableName {
  /** As it was given. */
  readonly given: string
  readonly schema: string | undefined
  readonly name: string
  /** As it stands in SQL: each part quoted. The search path of whoever sends it decides, as it would in a statement of theirs. */
  readonly quoted: string
}

const PART = /"(?:[^"]|"")+"|[^".][^.]*/y

/**
 * Reads `orders`, `shop.orders` or `"a.b"."c"`. A part is taken as it is written, upper case too (`User` is the table that SQL calls `"User"`),
 * unless it stands in double quotes, where it may hold a dot, and two quotes are one.
 */
export function readTableName(given: unknown, field = 'table'): TableName {
  if (typeof given !== 'string')
    throw new InvalidInputError(field, `must be the name of a table, not ${nameGiven(given)}`)
  checkCharacters(field, given)
  const parts = splitParts(given)
  const name = parts?.at(-1)
  if (!parts || name === undefined || parts.length > 2 || parts.some((part) => Buffer.byteLength(part) > 63))
    throw new InvalidInputError(
      field,
      `must be a name such as 'orders' or 'shop.orders', each part 1 to 63 bytes long, not ${showGiven(given)}`,
    )
  const schema = parts.length === 2 ? parts[0] : undefined
  return { given, schema, name, quoted: parts.map(quoteIdentifier).join('.') }
}

function splitParts(given: string): string[] | undefined {
  const parts: string[] = []
  for (let at = 0; at <= given.length; at = PART.lastIndex + 1) {
    PART.lastIndex = at
    const [part] = PART.exec(given) ?? []
    if (part === undefined || ![undefined, '.'].includes(given[PART.lastIndex])) return undefined
    parts.push(part.startsWith('"') ? part.slice(1, -1).replaceAll('""', '"') : part)
  }
  return parts
}
