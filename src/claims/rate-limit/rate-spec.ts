import { InvalidInputError } from '../../errors.js'
import { MAX_TIMER_MS } from '../../options/max-timer-ms.js'
import { duration, wholeNumber } from '../../options/number-options.js'
import { required } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { oneOf } from '../../options/value-options.js'
import { checkKey } from '../../postgres/key.js'

const algorithms = ['gcra', 'token-bucket', 'fixed-window', 'sliding-window'] as const
const policies = ['fail', 'allow', 'local'] as const

export type RateAlgorithm = (typeof algorithms)[number]

/** The policy of a rate limit while the database cannot be reached. */
export type IfDown = (typeof policies)[number]

export interface RateLimitOptions {
  /**
   * The algorithm.
   *
   * - `gcra`: evenly spaced, with a burst of 1 by default
   * - `token-bucket`: as `gcra`, with a burst of the whole limit by default
   * - `fixed-window`: up to `limit` in each period, with periods counted from 1970
   * - `sliding-window`: up to `limit` in any period, approximately
   */
  readonly algorithm: RateAlgorithm
  /** The amount for each period. */
  readonly limit: number
  /** The length of the period. */
  readonly perMs: number
  /** The amount available at once after a rest. Only for `gcra` (default 1) and `token-bucket` (default: the limit). */
  readonly burst?: number | undefined
  /** How long to wait for other callers that take from the same subject, then `BusyError`. Default 500. */
  readonly waitMs?: number | undefined
  /**
   * The action while the database cannot be reached. `fail` (default): throw the error of the database. `allow`: grant the call. `local`: count in this
   * process alone.
   */
  readonly ifDown?: IfDown | undefined
  /** Only for `allow` and `local`. Without an answer within this time, the database counts as unreachable. Default 1,000. */
  readonly downAfterMs?: number | undefined
}

/** A validated rate limit. */
export interface RateSpec {
  readonly name: string
  readonly algorithm: RateAlgorithm
  readonly limit: number
  readonly perUs: number
  /** The maximum amount available at once: the burst or the limit. */
  readonly capacity: number
  /** The rule by which stored amounts are counted. When the rule changes, all subjects start from zero. */
  readonly rule: string
  readonly waitMs: number
  readonly ifDown: IfDown
  readonly downAfterMs: number
}

/** Ensures that three products of an amount and the period, in microseconds, fit in a bigint. */
const MAX_PRODUCT = 2 ** 53 / 4

export const rateLimitOptions = optionTable<RateLimitOptions>()('dibs.rateLimit', {
  algorithm: required(oneOf(algorithms)),
  limit: required(wholeNumber()),
  perMs: required(duration()),
  burst: wholeNumber(),
  waitMs: duration({ default: 500, min: 0, max: MAX_TIMER_MS }),
  ifDown: oneOf(policies, { default: 'fail' }),
  downAfterMs: duration({ default: 1_000, max: MAX_TIMER_MS }),
})

export function checkRateSpec(name: unknown, options: RateLimitOptions): RateSpec {
  const { perMs, burst, ...spec } = rateLimitOptions.read(options)
  const { algorithm, limit, ifDown } = spec
  const capacity = checkBurst(algorithm, limit, burst)
  if (Math.max(limit, capacity) * perMs > MAX_PRODUCT) {
    const field = capacity > limit ? 'burst' : 'limit'
    throw new InvalidInputError(
      field,
      `times perMs must be at most 2^51, and is ${Math.max(limit, capacity)} × ${perMs}`,
    )
  }
  if (options.downAfterMs !== undefined && ifDown === 'fail')
    throw new InvalidInputError('downAfterMs', "is only for ifDown: 'allow' and 'local'")
  const rule = `${algorithm}:${perMs}`
  return { ...spec, name: checkKey('name', name), perUs: perMs * 1_000, capacity, rule }
}

function checkBurst(algorithm: RateAlgorithm, limit: number, burst: number | undefined): number {
  if (burst === undefined) return algorithm === 'gcra' ? 1 : limit
  if (algorithm !== 'gcra' && algorithm !== 'token-bucket')
    throw new InvalidInputError('burst', `is not for ${algorithm}, whose burst is its limit`)
  return burst
}

/** By this process's clock, because callers compare the time with it. Only the database's clock decides what fits. */
export const resetsAtOf = (resetUs: number): Date => new Date(Date.now() + Math.ceil(resetUs / 1_000))
