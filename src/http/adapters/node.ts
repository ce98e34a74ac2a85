import type { IncomingMessage, ServerResponse } from 'node:http'
import type { RateLimit } from '../../claims/rate-limit/rate-limit.js'
import type { Dibs } from '../../dibs.js'
import { InvalidInputError } from '../../errors.js'
import { databaseOf } from '../../postgres/database-of.js'
import { emit } from '../../postgres/events.js'
import { Idempotency } from '../idempotency/idempotency.js'
import type { IdempotencyOptions } from '../idempotency/idempotency-options.js'
import { requestCutOff, requestTooLarge } from '../idempotency/refusals.js'
import { pathOf } from '../idempotency/request-scope.js'
import { type RateLimitedOptions, RouteRateLimit } from '../rate-limit/route-rate-limit.js'
import { answerOverNode } from './node-exchange.js'
import { sendResponse } from './send-response.js'

export type { IdempotencyOptions, OwnTransaction } from '../idempotency/idempotency-options.js'
export { type Claimed, claimed } from '../idempotency/request-claim.js'
export type { RateLimitedOptions } from '../rate-limit/route-rate-limit.js'

/** A request of `node:http` whose body was read. */
export type NodeRequest = IncomingMessage & { readonly body?: Buffer }

/** Handles a request of `node:http`. `body` is the request body, or empty where the middleware has not read it (a GET). */
export type NodeHandler = (
  request: IncomingMessage,
  response: ServerResponse,
  body: Buffer,
) => void | Promise<void>

/**
 * Puts the `Idempotency-Key` middleware in front of a handler of plain `node:http`.
 *
 * @example
 * import { createServer } from 'node:http'
 * import { claimed, idempotent } from 'dibs/node'
 *
 * createServer(
 *   idempotent(dibs, { scope: (request) => [tenant, String(request.headers['x-user'] ?? '')] }, async (request, response, body) => {
 *     const { item } = JSON.parse(body.toString())
 *     await claimed(request).tx.query('insert into orders (item) values ($1)', [item])
 *     response.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify({ item }))
 *   }),
 * )
 */
export function idempotent(
  dibs: Dibs,
  options: IdempotencyOptions<NodeRequest, unknown>,
  handler: NodeHandler,
): (request: IncomingMessage, response: ServerResponse) => void {
  const middleware = new Idempotency<NodeRequest>(dibs, options)
  return (request, response) => {
    const fail = (error: unknown): void => {
      emitFailure(dibs, request, error)
      endWithError(response)
    }
    let body = Buffer.alloc(0)
    answerOverNode(middleware, {
      source: request,
      request,
      response,
      target: request.url ?? '/',
      prepare: async () => {
        body = await readBody(request, middleware.maxRequestBytes)
        Object.assign(request, { body })
      },
      body: () => body,
      callHandler: () => void call(() => handler(request, response, body)).catch(fail),
    }).catch(fail)
  }
}

/** Reports an error to the operators of the service. */
function emitFailure(dibs: object, { method = 'GET', url = '/' }: IncomingMessage, error: unknown): void {
  const { origin } = databaseOf(dibs)
  emit('dibs:http.failed', { ...origin, problem: 'failed', method, path: pathOf(url), error })
}

/** Responds with 500. If the handler had ended its response before it threw, that response is sent instead. */
function endWithError(response: ServerResponse): void {
  if (response.writableEnded) return
  if (response.headersSent) return void response.destroy()
  response.writeHead(500, { 'content-type': 'application/problem+json' })
  response.end(JSON.stringify({ type: 'about:blank', title: 'Internal Server Error', status: 500 }))
}

const call = async (fn: () => void | Promise<void>): Promise<void> => await fn()

/** Reads the whole body, even if it is too long, so that the connection can be reused. Bytes past the limit are not kept. */
function readBody(request: IncomingMessage, maxBytes: number): Promise<Buffer<ArrayBuffer>> {
  return new Promise((resolve, reject) => {
    if (request.readableDidRead)
      throw new InvalidInputError(
        'body',
        'of the request was read before the middleware: read it from the `body` that the handler gets',
      )
    if (request.readableEnded) return resolve(Buffer.alloc(0))
    const hangUp = (): void => reject(requestCutOff())
    if (request.destroyed) return hangUp()
    const chunks: Buffer[] = []
    let length = 0
    request.on('data', (chunk: Buffer) => {
      length += chunk.length
      if (length <= maxBytes) chunks.push(chunk)
    })
    request.on('end', () => {
      // guard: http.max-body
      if (length > maxBytes) reject(requestTooLarge(maxBytes))
      else resolve(Buffer.concat(chunks))
    })
    request.on('error', reject)
    // An HTTP/2 stream that the client resets closes without an error.
    request.on('close', hangUp)
  })
}

/**
 * Puts a rate limit in front of a handler of plain `node:http`. A refused request gets 429 with `Retry-After`. Allowed and refused requests both get
 * `RateLimit` headers.
 *
 * @example
 * import { createServer } from 'node:http'
 * import { rateLimited } from 'dibs/node'
 *
 * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
 * createServer(rateLimited(api, { subject: (request) => request.socket.remoteAddress ?? '' }, (_, response) => void response.end('ok')))
 */
export function rateLimited(
  limit: RateLimit,
  options: RateLimitedOptions<IncomingMessage>,
  handler: (request: IncomingMessage, response: ServerResponse) => void | Promise<void>,
): (request: IncomingMessage, response: ServerResponse) => Promise<void> {
  const routeLimit = new RouteRateLimit<IncomingMessage>(limit, options)
  return async (request, response) => {
    try {
      const { headers, refusal } = await routeLimit.check(request)
      if (refusal) return await sendResponse(response, refusal)
      for (const [name, value] of headers) response.setHeader(name, value)
      await handler(request, response)
    } catch (error) {
      emitFailure(limit, request, error) // no caller awaits the promise, and an unhandled rejection would end the process
      endWithError(response)
    }
  }
}
