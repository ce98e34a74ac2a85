import { AsyncLocalStorage } from 'node:async_hooks'
import type { Context, Env, MiddlewareHandler } from 'hono'
import type { RateLimit } from '../../claims/rate-limit/rate-limit.js'
import type { Dibs } from '../../dibs.js'
import { InvalidInputError } from '../../errors.js'
import type { RequestBody } from '../idempotency/exchange.js'
import { Idempotency } from '../idempotency/idempotency.js'
import type { IdempotencyOptions } from '../idempotency/idempotency-options.js'
import { requestTooLarge } from '../idempotency/refusals.js'
import { assertSingleMiddleware, type Claimed, registerClaimed } from '../idempotency/request-claim.js'
import { isStream, readBytes, readResponse, toResponse } from '../idempotency/response-parts.js'
import { streamNotStorable } from '../idempotency/unstorable-response-error.js'
import { type RateLimitedOptions, RouteRateLimit } from '../rate-limit/route-rate-limit.js'

export type { IdempotencyOptions, OwnTransaction } from '../idempotency/idempotency-options.js'
export { type Claimed, claimed } from '../idempotency/request-claim.js'
export type { RateLimitedOptions } from '../rate-limit/route-rate-limit.js'

/**
 * Puts the `Idempotency-Key` middleware in front of a route of Hono, behind authentication and validation.
 *
 * @example
 * import { Hono } from 'hono'
 * import { claimed, idempotency } from 'dibs/hono'
 *
 * const app = new Hono()
 * app.post('/orders', idempotency(dibs, { scope: (c) => [tenant, c.req.header('x-user') ?? ''] }), async (c) => {
 *   const { item } = await c.req.json<{ item: string }>()
 *   const { rows } = await claimed(c).tx.query('insert into orders (item) values ($1) returning id', [item])
 *   return c.json(rows[0], 201)
 * })
 */
export function idempotency<E extends Env>(
  dibs: Dibs,
  options: IdempotencyOptions<Context<E>, unknown>,
): MiddlewareHandler<E> {
  const middleware = new Idempotency<Context<E>>(dibs, options)
  return async (c, next) => {
    const register = (claimed: Claimed<unknown>) => registerClaimed(claimed, c, c.req, c.req.raw)
    assertSingleMiddleware(c)
    const { pathname, search } = new URL(c.req.url)
    let before: Headers | undefined
    let isComplete = false
    const verdict = await middleware.answer({
      source: c,
      method: c.req.method,
      target: `${pathname}${search}`,
      header: (name) => c.req.header(name),
      body: () => readBody(c, middleware.maxRequestBytes),
      isRepeatable: false,
      async run(claimed, maxBytes) {
        register(claimed)
        before = new Headers(c.newResponse(null).headers)
        const made = await inside.run(c, async () => {
          await next()
          return c.res
        })
        if (isStream(made.headers)) throw streamNotStorable()
        isComplete = true
        return await readResponse(made, maxBytes)
      },
    })
    if (verdict.kind === 'pass') {
      if (verdict.claimed) register(verdict.claimed)
      return await next()
    }
    if (verdict.kind === 'replaced' && !before) return answerWith(c, verdict.response)
    const response = verdict.kind === 'handled' ? toResponse(verdict.parts) : verdict.response
    if (verdict.kind === 'replaced')
      for (const [name, value] of before ?? [])
        if (name === 'set-cookie') response.headers.append(name, value)
        else if (!response.headers.has(name)) response.headers.set(name, value)
    if (!isComplete) return divert(c, response)
    c.res = undefined // otherwise `c.res` would keep the headers of the response that is not sent
    c.res = response
  }
}

/** Responds with the headers that earlier middleware has set. */
async function answerWith(c: Context, response: Response): Promise<Response> {
  const body = response.body && (await response.arrayBuffer())
  return c.newResponse(body, response.status as never, Object.fromEntries(response.headers))
}

/** The request whose handler runs. */
const inside = new AsyncLocalStorage<Context>()

/**
 * Sends another response than the handler's. A handler that is still running keeps the context as it was, and nothing of its response is sent. All other code
 * sees the new response.
 */
function divert(c: Context, response: Response): void {
  const own = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(c), 'res')
  const isOwn = (): boolean => inside.getStore() === c
  let sent = response
  Object.defineProperty(c, 'res', {
    get: () => (isOwn() ? own?.get?.call(c) : sent),
    set(value: Response) {
      if (isOwn()) own?.set?.call(c, value)
      else sent = value
    },
  })
  let isFinalized = false
  Object.defineProperty(c, 'finalized', {
    get: () => !isOwn() || isFinalized,
    set(value: boolean) {
      if (isOwn()) isFinalized = value
    },
  })
}

/**
 * Returns the body for the fingerprint. A body that was read before is compared as it was read. Otherwise it is read here, and the handler can read it again.
 */
async function readBody({ req }: Context, maxBytes: number): Promise<RequestBody> {
  const form = await req.bodyCache.formData
  if (form) return { value: form }
  if (Object.keys(req.bodyCache).length > 0) return new Uint8Array(await req.arrayBuffer())
  if (req.raw.bodyUsed)
    throw new InvalidInputError(
      'body',
      'of the request was read through `c.req.raw`: read it with `c.req`, or give `fingerprint`',
    )
  const { body } = req.raw
  if (!body) return undefined
  const bytes = await readBytes(body, maxBytes)
  if (bytes === null) throw requestTooLarge(maxBytes)
  req.raw = new Request(req.raw, { body: new Uint8Array(bytes) })
  return bytes
}

/**
 * Puts a rate limit in front of routes of Hono. A refused request gets 429 with `Retry-After`. Allowed and refused requests both get `RateLimit` headers.
 *
 * @example
 * import { Hono } from 'hono'
 * import { rateLimit } from 'dibs/hono'
 *
 * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
 * new Hono().use(rateLimit(api, { subject: () => tenant }))
 */
export function rateLimit<E extends Env>(
  limit: RateLimit,
  options: RateLimitedOptions<Context<E>>,
): MiddlewareHandler<E> {
  const routeLimit = new RouteRateLimit<Context<E>>(limit, options)
  return async (c, next) => {
    const { headers, refusal } = await routeLimit.check(c)
    if (refusal) return answerWith(c, refusal)
    for (const [name, value] of headers) c.header(name, value)
    await next()
  }
}
