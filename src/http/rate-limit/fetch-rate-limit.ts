import type { RateLimit } from '../../claims/rate-limit/rate-limit.js'
import { type RateLimitedOptions, RouteRateLimit } from './route-rate-limit.js'

/**
 * Puts a rate limit in front of a handler with Fetch types. A refused request gets 429 with `Retry-After`. Allowed and refused requests both get `RateLimit`
 * headers.
 *
 * @example
 * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
 * const handle = rateLimited(api, { subject: () => tenant }, async () => Response.json({ ok: true }))
 */
export function rateLimited(
  limit: RateLimit,
  options: RateLimitedOptions<Request>,
  handler: (request: Request) => Response | Promise<Response>,
): (request: Request) => Promise<Response> {
  const routeLimit = new RouteRateLimit<Request>(limit, options)
  return async (request) => {
    const { headers, refusal } = await routeLimit.check(request)
    if (refusal) return refusal
    const { body, status, statusText, headers: own } = await handler(request)
    const response = new Response(body, { status, statusText, headers: own }) // the headers of the handler may be immutable
    for (const [name, value] of headers) response.headers.set(name, value)
    return response
  }
}
