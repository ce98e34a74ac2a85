import { ConflictError, PreconditionRequiredError } from '../../errors.js'
import { refuseValue } from '../../options/refuse-value.js'
import { mayRepeat, repeatOnConflict } from '../../postgres/retry-on-conflict.js'
import { ifMatch, refuse } from './precondition.js'
import type { RequestHeaders } from './request-headers.js'

/**
 * Runs a write with the version that the client has seen: its `If-Match`, which must be one number in quotes.
 *
 * If that version is no longer current (a `ConflictError` with it as `expected`), the client gets 412 at once, because a retry cannot help. After another
 * conflict, such as a deadlock, `fn` runs again, as in `retryOnConflict`, unless a transaction is open around it.
 *
 * @example
 * const version = await withIfMatch(request.headers, (version) =>
 *   dibs.transaction(async (tx) => {
 *     const { rows } = await tx.query<{ version: number }>(
 *       'update doc set item = $3, version = version + 1 where id = $1 and version = $2 returning version',
 *       [id, version, body.item],
 *     )
 *     if (!rows[0]) throw new ConflictError({ subject: `doc ${id}`, expected: version })
 *     return rows[0].version
 *   }),
 * )
 */
export async function withIfMatch<T>(
  headers: RequestHeaders,
  fn: (version: number) => Promise<T>,
): Promise<T> {
  const version = readVersion(headers)
  const write = async (): Promise<T> => {
    try {
      return await fn(version)
    } catch (error) {
      const hasMovedOn = error instanceof ConflictError && error.expected === version // guard: http.if-match-own-conflict
      throw hasMovedOn ? refuse('If-Match', error.current, error) : error
    }
  }
  return await (mayRepeat() ? repeatOnConflict(write) : write())
}

function readVersion(headers: RequestHeaders): number {
  const expected = ifMatch(headers)
  // `*` names no version, so it would overwrite the update of another writer.
  if (expected.any) throw new PreconditionRequiredError('If-Match')
  const { versions } = expected
  if (versions.length > 1) throw refuseValue('If-Match', 'must be one entity tag here')
  const [text = ''] = versions
  const version = Number(text)
  // A tag that no version can have is not the current one.
  if (!Number.isSafeInteger(version) || String(version) !== text) throw refuse('If-Match', undefined)
  return version
}
