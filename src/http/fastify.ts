import type { OutgoingHttpHeaders } from 'node:http'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { RateLimit } from '../claims/rate-limit.js'
import type { Dibs } from '../dibs.js'
import { InvalidInputError } from '../errors.js'
import { CapturedResponse } from './captured-response.js'
import { Idempotency } from './idempotency.js'
import { answerOverNode } from './node-exchange.js'
import type { IdempotencyOptions } from './options.js'
import { parsedBody } from './parsed-body.js'
import { RateGate, type RateLimitedOptions } from './rate-gate.js'

export { type Claimed, claimed } from './claimed.js'
export type { IdempotencyOptions, OwnTransaction } from './options.js'
export type { RateLimitedOptions } from './rate-gate.js'

/** The options of the plugin: those of all its routes, each of which can have its own. */
export interface IdempotencyPluginOptions extends IdempotencyOptions<FastifyRequest, unknown> {
  readonly dibs: Dibs
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The `Idempotency-Key` is in front of this route; with these options in place of those of the plugin. */
    idempotency?: boolean | Partial<IdempotencyOptions<FastifyRequest, unknown>>
  }
}

/**
 * The `Idempotency-Key` in front of the routes that ask for it, behind what authenticates, parses and validates.
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
    const asked = (route.config as { idempotency?: boolean | object } | undefined)?.idempotency
    if (!asked) return
    const gate = new Idempotency<FastifyRequest>(dibs, { ...options, ...(asked === true ? {} : asked) })
    Object.assign(route.config as object, { [GUARDED]: true })
    // The last of them: whatever else may refuse a request has done so.
    route.preHandler = [...[route.preHandler ?? []].flat(), hookOf(gate)]
  })
  // Hooks are for all routes of an instance, also for those that were made before `onRoute` could see them.
  app.addHook('preHandler', async ({ routeOptions: { config } }) => {
    const { idempotency: asked, [GUARDED]: isGuarded } = config as { idempotency?: unknown; [GUARDED]?: true }
    if (asked && !isGuarded)
      throw new InvalidInputError(
        'config.idempotency',
        'is of a route that was made before the plugin: await `app.register` first',
      )
  })
  done()
}

const GUARDED = Symbol('dibs.idempotency')

// For the whole of the instance that it is registered with, and not for a part of its own.
Object.assign(idempotency, {
  [Symbol.for('skip-override')]: true,
  [Symbol.for('fastify.display-name')]: 'dibs-idempotency',
})

function hookOf(gate: Idempotency<FastifyRequest>) {
  return (request: FastifyRequest, reply: FastifyReply, next: (error?: Error) => void): void => {
    const advice = 'add a parser for its content type'
    answerOverNode(gate, {
      source: request,
      request: request.raw,
      response: reply.raw,
      target: request.originalUrl,
      body: () => parsedBody(request.raw, request, advice),
      letGo: () => next(),
      before: reply.getHeaders() as OutgoingHttpHeaders,
      send: (response) => sendStored(reply, response),
    }).catch(next)
  }
}

/**
 * Through the hooks of the application, as every answer; but with these very bytes, which may have gone through the same hooks
 * before.
 */
async function sendStored(reply: FastifyReply, response: Response): Promise<void> {
  const captured = new CapturedResponse(reply.raw, () => Number.POSITIVE_INFINITY)
  reply.code(response.status).send()
  await captured.whole.catch(() => {})
  await captured.sendOther(response, true)
}

async function sendOver(reply: FastifyReply, response: Response): Promise<void> {
  const body = Buffer.from(await response.arrayBuffer())
  reply.code(response.status).headers(Object.fromEntries(response.headers)).send(body)
}

/**
 * A rate limit as a hook of Fastify, for a route or for all of them: 429 with `Retry-After` when it refuses, `RateLimit` headers in any case.
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
  const gate = new RateGate<FastifyRequest>(limit, options)
  return async (request, reply) => {
    const { headers, refusal } = await gate.check(request)
    if (refusal) await sendOver(reply, refusal)
    else reply.headers(Object.fromEntries(headers))
  }
}
