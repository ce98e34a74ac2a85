import { InvalidInputError } from '../../errors.js'
import { nameGiven, showGiven } from '../../options/name-given.js'
import { quoteIdentifier } from '../../postgres/identifier.js'
import { checkCharacters } from '../../postgres/key.js'

/** The name of a table, as a caller wrote it. */
export interface TableName {
  /** The name as the caller wrote it. */
  readonly input: string
  readonly schema: string | undefined
  readonly name: string
  /**
   * The name in SQL, each part quoted. A name without a schema is resolved by the search path of the session that runs the
   * statement.
   */
  readonly quoted: string
}

const PART = /"(?:[^"]|"")+"|[^".][^.]*/y

/**
 * Reads `orders`, `shop.orders` or `"a.b"."c"`. A part keeps its case (`User` is the table that SQL calls `"User"`). In double
 * quotes, a part may hold a dot, and two quotes mean one.
 */
export function readTableName(input: unknown, field = 'table'): TableName {
  if (typeof input !== 'string')
    throw new InvalidInputError(field, `must be the name of a table, not ${nameGiven(input)}`)
  checkCharacters(field, input)
  const parts = splitParts(input)
  const name = parts?.at(-1)
  if (!parts || name === undefined || parts.length > 2 || parts.some((part) => Buffer.byteLength(part) > 63))
    throw new InvalidInputError(
      field,
      `must be a name such as 'orders' or 'shop.orders', each part 1 to 63 bytes long, not ${showGiven(input)}`,
    )
  const schema = parts.length === 2 ? parts[0] : undefined
  return { input, schema, name, quoted: parts.map(quoteIdentifier).join('.') }
}

function splitParts(input: string): string[] | undefined {
  const parts: string[] = []
  for (let at = 0; at <= input.length; at = PART.lastIndex + 1) {
    PART.lastIndex = at
    const [part] = PART.exec(input) ?? []
    if (part === undefined || ![undefined, '.'].includes(input[PART.lastIndex])) return undefined
    parts.push(part.startsWith('"') ? part.slice(1, -1).replaceAll('""', '"') : part)
  }
  return parts
}
