import { DibsError, NeverFitsError, RateLimitedError } from '../../errors.js'
import { checkAmount } from '../../options/check-amount.js'
import { unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import type { Database } from '../../postgres/database.js'
import { registerInstance } from '../../postgres/database-of.js'
import { emit, isHeard } from '../../postgres/events.js'
import type { Tx } from '../../postgres/executor.js'
import { checkKey } from '../../postgres/key.js'
import { trackJoinedMethods } from '../../postgres/open-calls.js'
import { RateClaim } from '../acquire/acquire-claims.js'
import { checkRateSpec, type RateLimitOptions, type RateSpec, resetsAtOf } from './rate-spec.js'
import { type Decision, RateStore } from './rate-store.js'

/** The remaining amount of a rate limit for a subject. */
export interface RateLeft {
  readonly remaining: number
  /** When the subject is as if it had never taken anything, by this process's clock. */
  readonly resetsAt: Date
  /** True if the database could not be reached, and `ifDown` has decided. */
  readonly degraded: boolean
}

/** The result if a cost does not fit. Nothing was taken. */
export interface RateRefusal extends RateLeft {
  readonly ok: false
  readonly limit: number
  readonly cost: number
  /**
   * How long until this cost fits, if no other caller takes. Missing if no wait helps: the cost is above the limit or the
   * burst.
   */
  readonly retryAfterMs?: number
}

/** Result of `rateLimit.tryTake`. */
export type RateAttempt = (RateLeft & { readonly ok: true }) | RateRefusal

export interface RateTakeOptions {
  /** Your own open transaction. The take commits or rolls back with it. */
  readonly tx?: Tx | undefined
}

export const rateTakeOptions = optionTable<RateTakeOptions>()(
  'rateLimit.take, rateLimit.tryTake, rateLimit.peek',
  { tx: unchecked() },
)

/** The options of `rateLimit.claim`: none. The transaction is an option of `dibs.acquire`. */
const rateClaimOptions = optionTable<object>()('rateLimit.claim', {})

/**
 * A limit for each subject and period, shared by all processes: `dibs.rateLimit`. Define a rate limit once and share it. Calls for one subject that arrive
 * while another is in flight then share one statement.
 *
 * @example
 * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
 * const { remaining } = await api.take('tenant:7')
 */
export class RateLimit {
  readonly #spec: RateSpec
  readonly #store: RateStore

  constructor(database: Database, name: string, options: RateLimitOptions) {
    this.#spec = checkRateSpec(name, options)
    registerInstance(this, database)
    this.#store = new RateStore(database, this.#spec)
  }

  get name(): string {
    return this.#spec.name
  }

  /** The amount for each period. */
  get limit(): number {
    return this.#spec.limit
  }

  get perMs(): number {
    return this.#spec.perUs / 1_000
  }

  /**
   * Takes a cost, or throws `RateLimitedError` and takes nothing. A cost that can never fit throws `NeverFitsError`.
   *
   * @example
   * const uploads = dibs.rateLimit('uploads', { algorithm: 'gcra', limit: 600, perMs: 60_000, burst: 50 })
   * try {
   *   await uploads.take('tenant:7', 12)
   * } catch (error) {
   *   if (error instanceof RateLimitedError) console.log(`in ${error.retryAfterMs} ms`)
   * }
   */
  async take(subject: string, cost = 1, options: RateTakeOptions = {}): Promise<RateLeft> {
    this.#checkFits(cost)
    const attempt = await this.tryTake(subject, cost, options)
    if (!attempt.ok) {
      const { ok: _, degraded: __, retryAfterMs = 1, ...refused } = attempt
      throw new RateLimitedError({ rateLimit: this.name, subject, retryAfterMs, ...refused })
    }
    const { ok: _, ...left } = attempt
    return left
  }

  /**
   * Like `take`, but returns `{ ok: false }` instead of an error if the cost does not fit. `retryAfterMs` is missing if the
   * cost can never fit. `BusyError` is thrown, because it is then unknown how much is left.
   *
   * @example
   * const api = dibs.rateLimit('api', { algorithm: 'sliding-window', limit: 100, perMs: 60_000 })
   * const attempt = await api.tryTake('tenant:7')
   * if (!attempt.ok) console.log(`${attempt.remaining} of ${attempt.limit} left`, attempt.retryAfterMs ?? 'no wait helps')
   */
  async tryTake(subject: string, cost = 1, options: RateTakeOptions = {}): Promise<RateAttempt> {
    const { tx } = rateTakeOptions.read(options)
    const request = { subject: checkKey('subject', subject), cost: checkAmount('cost', cost) }
    const { limit, capacity } = this.#spec
    if (cost > capacity) {
      this.#emitRefused(subject, { cost })
      return { ok: false, limit, cost, ...(await this.#leftOf(subject, tx)) }
    }
    const decision = await this.#store.take(request, tx)
    if (decision.granted) return { ok: true, ...toLeft(decision) }
    const retryAfterMs = Math.max(1, Math.ceil((decision.retryAfterUs ?? 0) / 1_000))
    this.#emitRefused(subject, { cost, retryAfterMs })
    return { ok: false, limit, cost, retryAfterMs, ...toLeft(decision) }
  }

  /**
   * Returns what is left now, without taking or waiting. The next call that takes may find less.
   *
   * @example
   * const api = dibs.rateLimit('api', { algorithm: 'fixed-window', limit: 100, perMs: 60_000 })
   * const { remaining, resetsAt } = await api.peek('tenant:7')
   */
  async peek(subject: string, options: RateTakeOptions = {}): Promise<RateLeft> {
    const { tx } = rateTakeOptions.read(options)
    return toLeft(await this.#store.peek(checkKey('subject', subject), tx))
  }

  /**
   * Makes a claim for `dibs.acquire`, which takes this cost together with other claims, all or none. Under a lease, each attempt counts.
   *
   * @example
   * const api = dibs.rateLimit('api', { algorithm: 'gcra', limit: 600, perMs: 60_000 })
   * await dibs.acquire([claim.once({ scope: 'orders', key }), api.claim(tenant)], async (tx) => {
   *   await tx.query('insert into orders (key) values ($1)', [key])
   * })
   */
  claim(subject: string, cost = 1, options: Readonly<Record<string, never>> = {}): RateClaim {
    rateClaimOptions.read(options)
    const { name, limit, rule, algorithm, perUs, capacity } = this.#spec
    this.#checkFits(cost)
    const fields = { rule, algorithm, perUs, burst: capacity }
    return new RateClaim(name, checkKey('subject', subject), limit, cost, fields)
  }

  /** Refuses a cost that can never fit, before anything is sent. */
  #checkFits(cost: number): void {
    const { name, capacity } = this.#spec
    if (checkAmount('cost', cost) > capacity) throw new NeverFitsError(`rate limit "${name}"`, cost, capacity)
  }

  #emitRefused(subject: string, refused: { readonly cost: number; readonly retryAfterMs?: number }): void {
    if (isHeard('dibs:rate.refused'))
      emit('dibs:rate.refused', { ...this.#store.originOf(subject), ...refused })
  }

  /** Like `peek`, but does not fail without the database: the refusal of a cost that can never fit must not depend on it. */
  async #leftOf(subject: string, tx: Tx | undefined): Promise<RateLeft> {
    try {
      return toLeft(await this.#store.peek(subject, tx))
    } catch (error) {
      if (tx !== undefined || !(error instanceof DibsError && error.retryable)) throw error
      return { remaining: 0, resetsAt: new Date(), degraded: true }
    }
  }
}

trackJoinedMethods(RateLimit, 'rateLimit', { take: 2, tryTake: 2, peek: 1 })

const toLeft = ({ remaining, resetUs, degraded }: Decision): RateLeft => ({
  remaining,
  resetsAt: resetsAtOf(resetUs),
  degraded,
})
