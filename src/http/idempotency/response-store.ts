import { InvalidInputError } from '../../errors.js'
import type { Json } from '../../postgres/json.js'
import type { Exchange, MaxBytesFor } from './exchange.js'
import type { LargeResponses } from './idempotency-options.js'
import { DEFAULT_RESPONSE_BYTES, type ReadIdempotencyOptions } from './read-idempotency-options.js'
import { Refusal } from './refusals.js'
import {
  fromStored,
  isStream,
  type ResponseParts,
  type StoredResponse,
  toByteStream,
  toResponse,
  toStored,
} from './response-parts.js'
import { streamNotStorable, UnstorableResponseError } from './unstorable-response-error.js'

/** A response that is not stored is kept in memory up to this size, until its transaction has ended. */
export const MAX_UNSTORED_BYTES = 16 * 1_048_576

/** The handler's response is sent unchanged but not stored, and the handler's writes are rolled back. */
export class ResponseNotStored extends Error {
  readonly parts: ResponseParts

  constructor(parts: ResponseParts) {
    super(`The response has status ${parts.status}, which is not stored.`)
    this.parts = parts
  }
}

/** Decides which responses of a route are stored, and in which form, and makes responses from what was stored. */
export class ResponseStore<R> {
  readonly #options: ReadIdempotencyOptions<R>

  constructor(options: ReadIdempotencyOptions<R>) {
    this.#options = options
  }

  readonly maxBytes: MaxBytesFor = (status) => {
    const { stores, maxResponseBytes, large } = this.#options
    if (!stores(status)) return MAX_UNSTORED_BYTES
    // `large` does not apply to refusals.
    return large && status >= 400 ? Math.max(maxResponseBytes, DEFAULT_RESPONSE_BYTES) : maxResponseBytes
  }

  /** Throws if the response is not stored. */
  async toStored(
    exchange: Exchange<R>,
    parts: ResponseParts,
    hasBegun = exchange.hasBegun?.() ?? true,
  ): Promise<StoredResponse> {
    const { stores, replayHeaders, large, maxResponseBytes } = this.#options
    if (!hasBegun || !canReplay(parts.status) || !stores(parts.status)) throw responseNotStored(parts)
    if (isStream(parts.headers)) throw streamNotStorable()
    if (parts.body) return toStored(parts, replayHeaders, parts.body)
    if (large && parts.status < 400) {
      const reference = await makeReference(large, exchange, parts)
      return toStored(parts, replayHeaders, { reference: reference ?? null })
    }
    throw new UnstorableResponseError(
      `The response is longer than ${maxResponseBytes} bytes. Raise \`maxResponseBytes\`, or use \`large\` to rebuild such responses.`,
    )
  }

  async toResponse(stored: StoredResponse, exchange: Exchange<R>): Promise<Response> {
    return stored.reference === undefined
      ? toResponse(fromStored(stored))
      : await this.#rebuild(stored, stored.reference, exchange)
  }

  async #rebuild(stored: StoredResponse, reference: Json, exchange: Exchange<R>): Promise<Response> {
    const { large } = this.#options
    const rebuild = async (): Promise<Response> => {
      if (large) return await large.rebuild(reference, exchange.source)
      throw new InvalidInputError(
        'large',
        'must be given while there are stored references to large responses',
      )
    }
    const rebuilt = await rebuild().catch((cause) => {
      const detail =
        'The request is done, but its response could not be rebuilt. Repeat the request with the same key.'
      throw new Refusal({ name: 'failed', state: 'done', detail, cause })
    })
    const headers = new Headers(stored.headers.map(([name, value]): [string, string] => [name, value]))
    for (const [name, value] of rebuilt.headers) if (name !== 'set-cookie') headers.set(name, value)
    return new Response(rebuilt.body && toByteStream(rebuilt.body), { status: stored.status, headers })
  }
}

/** The work of the handler is done, so a failure here must not make it run again. */
async function makeReference<R>(
  large: LargeResponses<R>,
  exchange: Exchange<R>,
  parts: ResponseParts,
): Promise<Json> {
  try {
    return await large.reference(parts, exchange.source)
  } catch (cause) {
    throw new UnstorableResponseError('The response is too long, and `large.reference` has failed.', {
      cause,
    })
  }
}

/** The error that rolls back the handler's writes and sends its response unchanged. */
export function responseNotStored(parts: ResponseParts): Error {
  if (parts.body) return new ResponseNotStored(parts)
  return new UnstorableResponseError(
    `The response is longer than ${MAX_UNSTORED_BYTES} bytes, and nothing of it can be sent before the transaction has ended.`,
    { isOutcome: false },
  )
}

/** `Response` accepts no other statuses. */
const canReplay = (status: number): boolean => status >= 200 && status <= 599
