import { PreconditionFailedError, PreconditionRequiredError } from '../../errors.js'
import { optionTable } from '../../options/option-table.js'
import { refuseValue } from '../../options/refuse-value.js'
import { boolean } from '../../options/value-options.js'
import { etagOf, readEntityTags } from './entity-tag.js'
import { type RequestHeaders, readHeader } from './request-headers.js'

/** The version that a client expects. */
export type ExpectedVersion =
  /** `*`: any version, as long as there is one. */
  | { readonly any: true }
  /** One of these versions, without their quotes. Empty if the client sent only weak tags, which match nothing here. */
  | { readonly any: false; readonly versions: readonly string[] }

type Version = number | string

export interface PreconditionOptions {
  /** False: a request without the header passes. Default true. */
  readonly required?: boolean | undefined
}

export const preconditionOptions = optionTable<PreconditionOptions>()(
  'ifMatch, assertIfMatch, preconditionOpenApi',
  { required: boolean({ default: true }) },
)

/**
 * Reads the `If-Match` header of a request. A request without it is refused with 428. With `required: false`, `ifMatch` returns undefined instead.
 *
 * @example
 * const expected = ifMatch(request.headers)
 * if (!expected.any) console.log(`one of ${expected.versions.join(', ')}`)
 */
export function ifMatch(headers: RequestHeaders, options?: { readonly required?: true }): ExpectedVersion
export function ifMatch(headers: RequestHeaders, options: PreconditionOptions): ExpectedVersion | undefined
export function ifMatch(headers: RequestHeaders, options?: PreconditionOptions): ExpectedVersion | undefined {
  const { required } = preconditionOptions.read(options)
  const tags = readTags(headers, 'If-Match')
  if (tags === '*') return { any: true }
  if (tags) return { any: false, versions: tags.filter(({ isWeak }) => !isWeak).map(({ opaque }) => opaque) }
  if (required) throw new PreconditionRequiredError('If-Match')
  return undefined
}

/**
 * Refuses a request whose `If-Match` does not name the current version, with 412. A request without `If-Match` is refused with 428. `current` is undefined if
 * nothing exists.
 *
 * `assertIfMatch` only compares, so lock the row that you read `current` from. Otherwise another transaction may write before you do. `withIfMatch` needs no
 * lock.
 *
 * @example
 * await dibs.transaction(async (tx) => {
 *   const { rows } = await tx.query<{ version: number }>('select version from doc where id = $1 for update', [id])
 *   assertIfMatch(request.headers, rows[0]?.version)
 *   await tx.query('delete from doc where id = $1', [id])
 * })
 */
export function assertIfMatch(
  headers: RequestHeaders,
  current: Version | undefined,
  options: PreconditionOptions = {},
): void {
  const expected = ifMatch(headers, options)
  if (!expected) return
  const isMet = current !== undefined && (expected.any || expected.versions.includes(String(current)))
  if (!isMet) throw refuse('If-Match', current)
}

/**
 * Refuses a request with 412 if it wants to create something that exists (`If-None-Match: *`), or excludes the current version. `current` is the version that
 * was there before. The request passes if `current` is undefined, or if it has no such header.
 *
 * @example
 * const made = await dibs.kv.setIfAbsent(key, body)
 * assertIfNoneMatch(request.headers, made.ok ? undefined : made.current.version)
 */
export function assertIfNoneMatch(headers: RequestHeaders, current: Version | undefined): void {
  const tags = readTags(headers, 'If-None-Match')
  if (tags && isNamed(tags, current)) throw refuse('If-None-Match', current)
}

/**
 * True if the client already has this version (`If-None-Match`). Respond to such a GET with 304 and its `ETag`, without a body. A malformed header counts as
 * none.
 *
 * @example
 * const headers = { ETag: etagOf(row.version) }
 * if (isNotModified(request.headers, row.version)) return new Response(null, { status: 304, headers })
 * return Response.json(row, { headers })
 */
export function isNotModified(headers: RequestHeaders, current: Version | undefined): boolean {
  const value = readHeader(headers, 'if-none-match')
  const tags = value === undefined ? undefined : readEntityTags(value)
  return tags !== undefined && isNamed(tags, current)
}

type Tags = NonNullable<ReturnType<typeof readEntityTags>>

/** Compares weak tags like strong ones. */
function isNamed(tags: Tags, current: Version | undefined): boolean {
  if (current === undefined) return false
  return tags === '*' || tags.some(({ opaque }) => opaque === String(current))
}

function readTags(headers: RequestHeaders, header: 'If-Match' | 'If-None-Match'): Tags | undefined {
  const value = readHeader(headers, header.toLowerCase())
  if (value === undefined) return undefined
  const tags = readEntityTags(value)
  if (tags) return tags
  throw refuseValue(header, 'must be a list of entity tags in double quotes, or *')
}

/** Makes a 412 error with the current version. */
export function refuse(
  header: 'If-Match' | 'If-None-Match',
  current: Version | undefined,
  cause?: unknown,
): PreconditionFailedError {
  const etag = current === undefined ? undefined : etagOf(current)
  return new PreconditionFailedError({ header, current, etag, cause })
}
