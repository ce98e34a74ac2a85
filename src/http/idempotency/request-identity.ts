import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import type { Exchange } from './exchange.js'
import { readIdempotencyKey } from './idempotency-key.js'
import type { ReadIdempotencyOptions } from './read-idempotency-options.js'
import { Refusal } from './refusals.js'
import { fingerprintRequest } from './request-fingerprint.js'
import { normalizeTarget, pathOf, readOwner, requestScope } from './request-scope.js'

/** The parts that identify a request and its repetitions. */
export interface RequestIdentity {
  readonly scope: string
  readonly key: string
  readonly fingerprint: unknown
  readonly requestId: string | undefined
}

/** Returns undefined if the request has no key and needs none. */
export async function readKey<R>(
  exchange: Exchange<R>,
  { key: findKey, header, keyPattern, required }: ReadIdempotencyOptions<R>,
): Promise<string | undefined> {
  const found: unknown = findKey ? await findKey(exchange.source) : exchange.header(header)
  if (found === undefined || found === null) {
    if (!required) return undefined // guard: http.required
    const problem = findKey
      ? 'The request does not contain its key.'
      : `Send a header \`${header}\` with a key of your own.`
    throw new Refusal({
      name: 'keyMissing',
      state: 'not started',
      detail: `${problem} The key must be the same for each repetition of this request, and another for each new request.`,
    })
  }
  // The function `key` returns the key itself, not the value of a header.
  if (findKey && typeof found !== 'string' && typeof found !== 'number')
    throw new InvalidInputError('key', `must return a string or a number, not ${nameGiven(found)}`)
  const read = readIdempotencyKey(findKey ? JSON.stringify(String(found)) : String(found), keyPattern)
  if ('key' in read) return read.key
  throw new Refusal({ name: 'keyInvalid', state: 'not started', detail: `The key ${read.problem}.` })
}

export async function identifyRequest<R>(
  exchange: Exchange<R>,
  key: string,
  options: ReadIdempotencyOptions<R>,
): Promise<RequestIdentity> {
  const { method } = exchange
  const { scope, fingerprint, requestId, normalizePath } = options
  const target = normalizeTarget(exchange.target, normalizePath)
  const owner = scope === 'anonymous' ? [] : readOwner(await scope(exchange.source))
  return {
    scope: requestScope(owner, method, pathOf(target)),
    key,
    fingerprint: fingerprint
      ? ((await fingerprint(exchange.source)) ?? null)
      : await fingerprintRequest({
          method,
          target,
          headers: options.fingerprintHeaders.map((name) => [name, exchange.header(name) ?? ''] as const),
          type: exchange.header('content-type') ?? '',
          encoding: exchange.header('content-encoding') ?? '',
          body: await exchange.body(),
          maxBytes: options.maxRequestBytes,
        }),
    requestId: requestId?.(exchange.source),
  }
}
