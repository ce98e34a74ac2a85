import type { NextFunction, Request, Response } from 'express'
import type { RateLimit } from '../../claims/rate-limit/rate-limit.js'
import type { Dibs } from '../../dibs.js'
import { Idempotency } from '../idempotency/idempotency.js'
import type { IdempotencyOptions } from '../idempotency/idempotency-options.js'
import { type RateLimitedOptions, RouteRateLimit } from '../rate-limit/route-rate-limit.js'
import { answerOverNode } from './node-exchange.js'
import { parsedBody } from './parsed-body.js'
import { sendResponse } from './send-response.js'

export type { IdempotencyOptions, OwnTransaction } from '../idempotency/idempotency-options.js'
export { type Claimed, claimed } from '../idempotency/request-claim.js'
export type { RateLimitedOptions } from '../rate-limit/route-rate-limit.js'

/** A middleware of Express 4 and 5. */
// biome-ignore lint/suspicious/noExplicitAny: routes have any parameters
export type ExpressMiddleware = (request: Request<any>, response: Response, next: NextFunction) => void

/**
 * Puts the `Idempotency-Key` middleware in front of a route of Express 4 or 5. Place it behind authentication, parsing and validation.
 *
 * The handler responds as usual. Nothing reaches the client before everything is committed.
 *
 * @example
 * import express from 'express'
 * import { claimed, idempotency } from 'dibs/express'
 *
 * const app = express()
 * app.use(express.json())
 * app.post('/orders', idempotency(dibs, { scope: (req) => [req.get('x-tenant') ?? '', req.ip ?? ''] }), async (req, res) => {
 *   const { tx } = claimed(req)
 *   const { rows } = await tx.query<{ id: string }>('insert into orders (item) values ($1) returning id', [req.body.item])
 *   res.status(201).json({ id: rows[0]?.id })
 * })
 */
export function idempotency(dibs: Dibs, options: IdempotencyOptions<Request, unknown>): ExpressMiddleware {
  const middleware = new Idempotency<Request>(dibs, options)
  return (request, response, next) => {
    answerOverNode(middleware, {
      source: request,
      request,
      response,
      target: request.originalUrl,
      body: () => parsedBody(request, request, 'put express.json(), or another parser, in front of it'),
      callHandler: () => next(),
    }).catch(next)
  }
}

/**
 * Puts a rate limit in front of routes of Express. A refused request gets 429 with `Retry-After`. Allowed and refused requests both get `RateLimit` headers.
 *
 * @example
 * import express from 'express'
 * import { rateLimit } from 'dibs/express'
 *
 * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
 * express().use(rateLimit(api, { subject: (req) => req.ip ?? '' }))
 */
export function rateLimit(limit: RateLimit, options: RateLimitedOptions<Request>): ExpressMiddleware {
  const routeLimit = new RouteRateLimit<Request>(limit, options)
  return (request, response, next) => {
    const check = async (): Promise<void> => {
      const { headers, refusal } = await routeLimit.check(request)
      if (refusal) return await sendResponse(response, refusal)
      for (const [name, value] of headers) response.setHeader(name, value)
      next()
    }
    check().catch(next)
  }
}
