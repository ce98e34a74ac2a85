import { wholeNumber } from '../options/number-options.js'
import { unchecked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { refuseValue } from '../options/refuse-value.js'

/**
 * One page of a list.
 *
 * @example
 * const { items, nextCursor } = await dibs.queues.list({ prefix: 'mail' }, { limit: 50 })
 * if (nextCursor !== undefined) await dibs.queues.list({ prefix: 'mail' }, { limit: 50, cursor: nextCursor })
 */
export interface Page<T> {
  readonly items: readonly T[]
  /** Pass it as `cursor` to read the next page. Undefined on the last page. */
  readonly nextCursor: string | undefined
}

/** The part of a list to read. */
export interface PageOptions {
  /** The maximum number of items on the page, 1 to 1,000. Default 100. */
  readonly limit?: number | undefined
  /** `nextCursor` of the previous page. Default: the first page. */
  readonly cursor?: string | undefined
}

export const pageOptions = optionTable<PageOptions>()('every list, page', {
  limit: wholeNumber({ default: 100, max: 1_000, fromClient: true }),
  cursor: unchecked(), // by `decodeCursor`
})

const MAX_CURSOR_LENGTH = 20_000

/**
 * An opaque cursor: the sort key of the last item on a page.
 *
 * @param list the name of the list, so that another list refuses the cursor: `locks`
 * @param place the sort key, as strings
 */
export const encodeCursor = (list: string, place: readonly string[]): string =>
  Buffer.from(JSON.stringify([list, ...place])).toString('base64url')

/** Matches a part of a cursor that is any text. */
export const ANY_TEXT = /^/
/** Matches a part of a cursor that is a whole number which JavaScript and PostgreSQL's bigint both represent exactly. */
export const WHOLE_NUMBER = /^\d{1,16}$/

/**
 * Reads a cursor that `encodeCursor` made for the same list.
 *
 * @param patterns one per part of the sort key; a client may have changed the cursor
 * @returns the parts of the sort key; undefined if no cursor was given
 */
export function decodeCursor(
  list: string,
  cursor: unknown,
  patterns: readonly RegExp[],
): readonly string[] | undefined {
  if (cursor === undefined) return undefined
  const [name, ...place] = parseCursor(cursor) ?? []
  const isOurs =
    name === list &&
    place.length === patterns.length &&
    patterns.every((pattern, n) => isText(place[n]) && pattern.test(place[n]))
  if (!isOurs) throw refuseValue('cursor', 'must be `nextCursor` of the previous page of the same list')
  return place as string[]
}

function parseCursor(cursor: unknown): readonly unknown[] | undefined {
  if (typeof cursor !== 'string' || cursor.length > MAX_CURSOR_LENGTH) return undefined
  try {
    const parsed: unknown = JSON.parse(Buffer.from(cursor, 'base64url').toString())
    return Array.isArray(parsed) ? parsed : undefined
  } catch {
    return undefined
  }
}

/** PostgreSQL stores neither NUL nor half of a surrogate pair. */
const isText = (part: unknown): part is string => typeof part === 'string' && !/[\0\p{Surrogate}]/u.test(part)

/**
 * Makes a page of the rows of a query whose LIMIT was one more than `limit`: the extra row shows that there is a next page.
 *
 * @param placeOf the sort key of a row, as `decodeCursor` returns it
 */
export function toPage<R, T>(
  list: string,
  rows: readonly R[],
  limit: number,
  placeOf: (row: R) => readonly string[],
  read: (row: R) => T,
): Page<T> {
  const last = rows[limit - 1]
  return {
    items: rows.slice(0, limit).map(read),
    nextCursor: rows.length > limit && last !== undefined ? encodeCursor(list, placeOf(last)) : undefined,
  }
}
