import { PreconditionFailedError, PreconditionRequiredError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import { refuseValue } from '../postgres/refuse-value.js'
import { etagOf, readEntityTags } from './entity-tag.js'
import { type RequestHeaders, readHeader } from './request-headers.js'

/** What a client expects to be there. */
export type ExpectedVersion =
  /** `*`: whatever it is, as long as there is something. */
  | { readonly any: true }
  /** One of these, as they stand between the quotes. Empty if the client named weak tags only, which match nothing here. */
  | { readonly any: false; readonly versions: readonly string[] }

type Version = number | string

/**
 * What a request expects by `If-Match`. Without that header it is refused with 428; `required: false` answers `undefined`.
 *
 * @example
 * const expected = ifMatch(request.headers)
 * if (!expected.any) console.log(`one of ${expected.versions.join(', ')}`)
 */
export function ifMatch(headers: RequestHeaders, options?: { readonly required?: true }): ExpectedVersion
export function ifMatch(
  headers: RequestHeaders,
  options: { readonly required?: boolean },
): ExpectedVersion | undefined
export function ifMatch(
  headers: RequestHeaders,
  options: { readonly required?: boolean } = {},
): ExpectedVersion | undefined {
  checkOptions(options, ['required'])
  const tags = readTags(headers, 'If-Match')
  if (tags === '*') return { any: true }
  if (tags) return { any: false, versions: tags.filter(({ isWeak }) => !isWeak).map(({ opaque }) => opaque) }
  if (options.required ?? true) throw new PreconditionRequiredError('If-Match')
  return undefined
}

/**
 * Refuses a request whose `If-Match` is not for the current version: 412, or 428 without one. `current` is undefined where there is nothing.
 *
 * It looks, so lock the row that `current` is read from, or another may write before you do; `withIfMatch` needs no lock.
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
  options: { readonly required?: boolean } = {},
): void {
  const expected = ifMatch(headers, options)
  if (!expected) return
  const isMet = current !== undefined && (expected.any || expected.versions.includes(String(current)))
  if (!isMet) throw refuse('If-Match', current)
}

/**
 * Refuses a request that is to make something new (`If-None-Match: *`), or is not for this version, with 412. `current` is what was there before;
 * undefined, or a request without the header, passes.
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
 * The client has this version already (`If-None-Match`): answer a GET with 304 and its `ETag`, without a body. A header that is malformed is as good as none.
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

/** Whether they are weak or not. */
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

/** 412, with what is there. */
export function refuse(
  header: 'If-Match' | 'If-None-Match',
  current: Version | undefined,
  cause?: unknown,
): PreconditionFailedError {
  const etag = current === undefined ? undefined : etagOf(current)
  return new PreconditionFailedError({ header, current, etag, cause })
}
