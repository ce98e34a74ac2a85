import type { RateLimit } from '../claims/rate-limit.js'
import { RateGate, type RateLimitedOptions } from './rate-gate.js'

/**
 * A rate limit in front of a handler on Fetch types: 429 with `Retry-After` when it refuses, `RateLimit` headers in any case.
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
  const gate = new RateGate<Request>(limit, options)
  return async (request) => {
    const { headers, refusal } = await gate.check(request)
    if (refusal) return refusal
    const { body, status, statusText, headers: own } = await handler(request)
    const response = new Response(body, { status, statusText, headers: own }) // theirs may not be changed
    for (const [name, value] of headers) response.headers.set(name, value)
    return response
  }
}
