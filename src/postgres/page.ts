import { nameGiven } from './name-given.js'
import { refuseValue } from './refuse-value.js'

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

/** Which page of a list to read. */
export interface PageOptions {
  /** The maximum number of items on the page, 1 to 1,000. Default 100. */
  readonly limit?: number | undefined
  /** `nextCursor` of the previous page. Default: the first page. */
  readonly cursor?: string | undefined
}

/** The names of the fields of `PageOptions`, for `checkOptions`. */
export const PAGE_OPTIONS = ['limit', 'cursor'] as const

const DEFAULT_LIMIT = 100
const MAX_LIMIT = 1_000
const MAX_CURSOR_LENGTH = 20_000

export function checkPageLimit(limit: unknown = DEFAULT_LIMIT): number {
  if (typeof limit === 'number' && Number.isSafeInteger(limit) && limit >= 1 && limit <= MAX_LIMIT)
    return limit
  const given = typeof limit === 'number' ? String(limit) : nameGiven(limit)
  throw refuseValue('limit', `must be a whole number from 1 to ${MAX_LIMIT}, not ${given}`)
}

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
