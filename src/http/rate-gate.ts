import { createHash } from 'node:crypto'
import { type RateLeft, RateLimit, type RateRefusal } from '../claims/rate-limit.js'
import { BusyError, DibsError, InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import { MAX_KEY_BYTES } from '../postgres/key.js'
import { nameGiven } from '../postgres/name-given.js'
import { checkStatus } from './options.js'
import {
  DEFAULT_STYLE,
  makeProblem,
  type Problem,
  type ProblemDetails,
  type ProblemName,
  type ProblemStyle,
  problemResponse,
} from './problem.js'

/** The options of a rate limit in front of a route. `R` is the type of the framework's request. */
export interface RateLimitedOptions<R> {
  /** Returns who is limited: a tenant, a user, an address. */
  readonly subject: (request: R) => string | Promise<string>
  /** Returns the cost of a request. Default 1. */
  readonly cost?: ((request: R) => number | Promise<number>) | undefined
  /** Also send `X-RateLimit-Limit`, `-Remaining` and `-Reset`. Default false. */
  readonly legacyHeaders?: boolean | undefined
  /** The status of a refused request. Default 429. */
  readonly status?: number | undefined
  /** The prefix of problem types. Default `urn:dibs:problem:`. */
  readonly problemTypes?: string | undefined
  /** Returns the body of a problem in your own format. */
  readonly problemBody?: ((problem: Problem) => unknown) | undefined
}

/** The decision of a rate limit about one request. */
export interface RateVerdict {
  /** Headers of the response, whether the handler or the rate limit makes it. */
  readonly headers: readonly (readonly [string, string])[]
  /** The response if the request is refused. Undefined if the handler may run. */
  readonly refusal: Response | undefined
}

/** Hashes a subject that is longer than a key may be, because clients may send any length. */
function shorten(subject: string): string {
  if (typeof subject !== 'string' || Buffer.byteLength(subject) <= MAX_KEY_BYTES) return subject
  return `#${createHash('sha256').update(subject).digest('hex')}`
}

/** A rate limit in front of a route, without its framework. */
export class RateGate<R> {
  readonly #limit: () => RateLimit
  readonly #options: RateLimitedOptions<R>
  readonly #style: ProblemStyle

  constructor(limit: RateLimit | (() => RateLimit), options: RateLimitedOptions<R>) {
    checkOptions(options, ['subject', 'cost', 'legacyHeaders', 'status', 'problemTypes', 'problemBody'])
    const { subject, status, problemTypes = DEFAULT_STYLE.base, problemBody } = options
    if (typeof subject !== 'function')
      throw new InvalidInputError(
        'subject',
        `must be a function that says who is limited, not ${nameGiven(subject)}`,
      )
    checkStatus('status', status ?? 429)
    if (typeof limit !== 'function' && !(limit instanceof RateLimit))
      throw new InvalidInputError('limit', `must be what \`dibs.rateLimit()\` gave, not ${nameGiven(limit)}`)
    this.#limit = typeof limit === 'function' ? limit : () => limit
    this.#options = options
    const statuses = status === undefined ? {} : { rateLimited: status }
    this.#style = { statuses, base: problemTypes, body: problemBody }
  }

  async check(request: R): Promise<RateVerdict> {
    const limit = this.#limit()
    const { subject, cost } = this.#options
    try {
      const attempt = await limit.tryTake(shorten(await subject(request)), cost ? await cost(request) : 1)
      const headers = this.#headers(limit, attempt)
      if (attempt.ok) return { headers, refusal: undefined }
      const refusal = this.#refuseAttempt(attempt)
      for (const [name, value] of headers) refusal.headers.set(name, value)
      return { headers, refusal }
    } catch (error) {
      if (!(error instanceof DibsError) || error instanceof InvalidInputError || !error.retryable) throw error
      const detail = 'This attempt has done nothing. Repeat the request.'
      const retryAfterMs = error instanceof BusyError ? error.retryAfterMs : 1_000
      return { headers: [], refusal: this.#refuse('unavailable', { detail, retryAfterMs }) }
    }
  }

  #refuseAttempt({ retryAfterMs, resetsAt, limit, remaining, cost }: RateRefusal): Response {
    const shown = { limit, remaining, cost }
    // Clients retry a 429, and no wait helps here.
    if (retryAfterMs === undefined)
      return this.#refuse('neverFits', {
        detail: 'The request costs more than the limit allows at once.',
        shown,
      })
    const detail = 'Too many requests were made recently. Repeat this one later.'
    return this.#refuse('rateLimited', {
      detail,
      retryAfterMs,
      shown: { ...shown, resetsAt: resetsAt.toISOString() },
    })
  }

  #refuse(name: ProblemName, details: ProblemDetails): Response {
    return problemResponse(makeProblem(name, details, this.#style), this.#style)
  }

  /** The headers of draft-ietf-httpapi-ratelimit-headers. */
  #headers({ name, limit, perMs }: RateLimit, { remaining, resetsAt }: RateLeft): RateVerdict['headers'] {
    const policy = JSON.stringify(name.replace(/[^\x20-\x7e]/g, '?'))
    const resetSeconds = Math.max(0, Math.ceil((resetsAt.getTime() - Date.now()) / 1_000))
    const legacy: [string, string][] = [
      ['x-ratelimit-limit', String(limit)],
      ['x-ratelimit-remaining', String(remaining)],
      ['x-ratelimit-reset', String(resetSeconds)],
    ]
    return [
      ['ratelimit-policy', `${policy};q=${limit};w=${Math.ceil(perMs / 1_000)}`],
      ['ratelimit', `${policy};r=${remaining};t=${resetSeconds}`],
      ...(this.#options.legacyHeaders ? legacy : []),
    ]
  }
}
