import type { OutgoingHttpHeaders } from 'node:http'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { RateLimit } from '../../claims/rate-limit/rate-limit.js'
import type { Dibs } from '../../dibs.js'
import { InvalidInputError } from '../../errors.js'
import { Idempotency } from '../idempotency/idempotency.js'
import type { IdempotencyOptions } from '../idempotency/idempotency-options.js'
import { type RateLimitedOptions, RouteRateLimit } from '../rate-limit/route-rate-limit.js'
import { CapturedResponse } from './captured-response.js'
import { answerOverNode } from './node-exchange.js'
import { parsedBody } from './parsed-body.js'

export type { IdempotencyOptions, OwnTransaction } from '../idempotency/idempotency-options.js'
export { type Claimed, claimed } from '../idempotency/request-claim.js'
export type { RateLimitedOptions } from '../rate-limit/route-rate-limit.js'

/** The options of the plugin, for all its routes. Each route can have its own options. */
export interface IdempotencyPluginOptions extends IdempotencyOptions<FastifyRequest, unknown> {
  readonly dibs: Dibs
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Puts the middleware in front of this route. An object replaces options of the plugin. */
    idempotency?: boolean | Partial<IdempotencyOptions<FastifyRequest, unknown>>
  }
}

/**
 * Puts the `Idempotency-Key` middleware in front of the routes that ask for it, behind authentication, parsing and validation.
 *
 * @example
 * import Fastify from 'fastify'
 * import { claimed, idempotency } from 'dibs/fastify'
 *
 * const app = Fastify()
 * await app.register(idempotency, { dibs, scope: (request) => [tenant, String(request.headers['x-user'] ?? '')] })
 * app.post('/orders', { config: { idempotency: true } }, async (request, reply) => {
 *   const { item } = request.body as { item: string }
 *   const { rows } = await claimed(request).tx.query('insert into orders (item) values ($1) returning id', [item])
 *   return reply.code(201).send(rows[0])
 * })
 */
export function idempotency(
  app: FastifyInstance,
  { dibs, ...options }: IdempotencyPluginOptions,
  done: (error?: Error) => void,
): void {
  app.addHook('onRoute', (route) => {
    const routeOptions = (route.config as { idempotency?: boolean | object } | undefined)?.idempotency
    if (!routeOptions) return
    const middleware = new Idempotency<FastifyRequest>(dibs, {
      ...options,
      ...(routeOptions === true ? {} : routeOptions),
    })
    Object.assign(route.config as object, { [GUARDED]: true })
    // The hook runs last, after everything else that may refuse a request.
    route.preHandler = [...[route.preHandler ?? []].flat(), hookOf(middleware)]
  })
  // Hooks apply to all routes of an instance, also to routes that were defined before `onRoute` could see them.
  app.addHook('preHandler', async ({ routeOptions: { config } }) => {
    const { idempotency: routeOptions, [GUARDED]: isGuarded } = config as {
      idempotency?: unknown
      [GUARDED]?: true
    }
    if (routeOptions && !isGuarded)
      throw new InvalidInputError(
        'config.idempotency',
        'belongs to a route that was defined before the plugin. Await `app.register` first',
      )
  })
  done()
}

const GUARDED = Symbol('dibs.idempotency')

// The plugin applies to the whole instance that it is registered with, not to an encapsulated child.
Object.assign(idempotency, {
  [Symbol.for('skip-override')]: true,
  [Symbol.for('fastify.display-name')]: 'dibs-idempotency',
})

function hookOf(middleware: Idempotency<FastifyRequest>) {
  return (request: FastifyRequest, reply: FastifyReply, next: (error?: Error) => void): void => {
    const advice = 'add a parser for its content type'
    answerOverNode(middleware, {
      source: request,
      request: request.raw,
      response: reply.raw,
      target: request.originalUrl,
      body: () => parsedBody(request.raw, request, advice),
      callHandler: () => next(),
      before: reply.getHeaders() as OutgoingHttpHeaders,
      send: (response) => sendStored(reply, response),
    }).catch(next)
  }
}

/**
 * Sends a stored response through the hooks of the application, like every response. The bytes stay as they are, because they
 * may have passed the same hooks before.
 */
async function sendStored(reply: FastifyReply, response: Response): Promise<void> {
  const captured = new CapturedResponse(reply.raw, () => Number.POSITIVE_INFINITY)
  reply.code(response.status).send()
  await captured.completed.catch(() => {})
  await captured.sendOther(response, true)
}

async function sendOver(reply: FastifyReply, response: Response): Promise<void> {
  const body = Buffer.from(await response.arrayBuffer())
  reply.code(response.status).headers(Object.fromEntries(response.headers)).send(body)
}

/**
 * Makes a hook of Fastify with a rate limit, for one route or for all. A refused request gets 429 with `Retry-After`. Allowed and refused requests both get
 * `RateLimit` headers.
 *
 * @example
 * import Fastify from 'fastify'
 * import { rateLimit } from 'dibs/fastify'
 *
 * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
 * Fastify().addHook('onRequest', rateLimit(api, { subject: (request) => request.ip }))
 */
export function rateLimit(
  limit: RateLimit,
  options: RateLimitedOptions<FastifyRequest>,
): (request: FastifyRequest, reply: FastifyReply) => Promise<void> {
  const routeLimit = new RouteRateLimit<FastifyRequest>(limit, options)
  return async (request, reply) => {
    const { headers, refusal } = await routeLimit.check(request)
    if (refusal) await sendOver(reply, refusal)
    else reply.headers(Object.fromEntries(headers))
  }
}
