import { createHash } from 'node:crypto'
import { type Item, serializeItem } from 'structured-headers'
import { type RateLeft, RateLimit, type RateRefusal } from '../../claims/rate-limit/rate-limit.js'
import { PROBLEM_BASE } from '../../errors/problem-types.js'
import { DibsError, InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import { wholeNumber } from '../../options/number-options.js'
import { required } from '../../options/option.js'
import { optionTable, type ReadOptions } from '../../options/option-table.js'
import { boolean, func, string } from '../../options/value-options.js'
import { MAX_KEY_BYTES } from '../../postgres/key.js'
import {
  makeProblem,
  type Problem,
  type ProblemDetails,
  type ProblemName,
  type ProblemStyle,
  problemResponse,
} from '../problem.js'

/** The options of a rate limit in front of a route. `R` is the type of the framework's request. */
export interface RateLimitedOptions<R> {
  /** Returns who is limited: a tenant, a user, an address. */
  readonly subject: (request: R) => string | Promise<string>
  /** Returns the cost of a request. Default 1. */
  readonly cost?: ((request: R) => number | Promise<number>) | undefined
  /** True: also send `X-RateLimit-Limit`, `-Remaining` and `-Reset`. Default false. */
  readonly legacyHeaders?: boolean | undefined
  /** The status of a refused request. Default 429. */
  readonly status?: number | undefined
  /** The prefix of problem types. Default `urn:dibs:problem:`. */
  readonly problemTypes?: string | undefined
  /** Returns the body of a problem in your own format. */
  readonly problemBody?: ((problem: Problem) => unknown) | undefined
}

export const rateLimitedOptions = optionTable<RateLimitedOptions<never>>()(
  'rateLimited, rateLimit, @RateLimited',
  {
    subject: required(func()),
    cost: func(),
    legacyHeaders: boolean({ default: false }),
    status: wholeNumber({ default: 429, min: 400, max: 599 }),
    problemTypes: string({ default: PROBLEM_BASE }),
    problemBody: func(),
  },
)

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
export class RouteRateLimit<R> {
  readonly #limit: () => RateLimit
  readonly #options: ReadOptions<RateLimitedOptions<R>, typeof rateLimitedOptions.fields>
  readonly #style: ProblemStyle

  constructor(limit: RateLimit | (() => RateLimit), options: RateLimitedOptions<R>) {
    // The table does not know the type of the framework's request.
    const read = rateLimitedOptions.read(options as RateLimitedOptions<never>)
    if (typeof limit !== 'function' && !(limit instanceof RateLimit))
      throw new InvalidInputError('limit', `must come from \`dibs.rateLimit()\`, not be ${nameGiven(limit)}`)
    this.#limit = typeof limit === 'function' ? limit : () => limit
    this.#options = read as unknown as ReadOptions<RateLimitedOptions<R>, typeof rateLimitedOptions.fields>
    this.#style = {
      statuses: { rateLimited: read.status },
      base: read.problemTypes,
      body: read.problemBody,
    }
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
      const retryAfterMs = error.retryAfterMs ?? 1_000
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
    const policy = name.replace(/[^\x20-\x7e]/g, '?')
    const resetSeconds = Math.max(0, Math.ceil((resetsAt.getTime() - Date.now()) / 1_000))
    const legacy: [string, string][] = [
      ['x-ratelimit-limit', String(limit)],
      ['x-ratelimit-remaining', String(remaining)],
      ['x-ratelimit-reset', String(resetSeconds)],
    ]
    return [
      ['ratelimit-policy', writeItem(policy, { q: limit, w: Math.ceil(perMs / 1_000) })],
      ['ratelimit', writeItem(policy, { r: remaining, t: resetSeconds })],
      ...(this.#options.legacyHeaders ? legacy : []),
    ]
  }
}

/** The largest Integer of RFC 9651. */
const MAX_INTEGER = 999_999_999_999_999

function writeItem(name: string, parameters: Readonly<Record<string, number>>): string {
  const entries = Object.entries(parameters).map(
    ([key, value]) => [key, Math.min(value, MAX_INTEGER)] as const,
  )
  const item: Item = [name, new Map(entries)]
  return serializeItem(item)
}
