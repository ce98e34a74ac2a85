import type { RateAlgorithm } from '../src/claims/rate-limit/rate-spec.js'

/** A cost that was granted, and the time that counted for it. */
interface Grant {
  readonly at: bigint
  readonly cost: bigint
}

export interface ModelLimit {
  readonly limit: bigint
  readonly burst: bigint
}

/**
 * A rate limit as one would define it, and not as one would store it: buckets by what is owed, as a fraction with any denominator, windows by
 * the list of all that was granted.
 */
export class RateModel {
  readonly #algorithm: RateAlgorithm
  readonly #per: bigint
  readonly #grants: Grant[] = []
  /** Owed, over `#per`, at `#at`. */
  #owed = 0n
  #at = 0n

  constructor(algorithm: RateAlgorithm, perUs: bigint) {
    this.#algorithm = algorithm
    this.#per = perUs
  }

  /** The used amount at a time, in units of 1 / `per`. */
  used(at: bigint, { limit }: ModelLimit): bigint {
    const now = at > this.#at ? at : this.#at
    if (this.#algorithm === 'gcra' || this.#algorithm === 'token-bucket') {
      const left = this.#owed - (now - this.#at) * limit
      return left > 0n ? left : 0n
    }
    const window = now / this.#per
    const sum = (wanted: bigint) =>
      this.#grants
        .filter((grant) => grant.at / this.#per === wanted)
        .reduce((total, { cost }) => total + cost, 0n)
    const fading =
      this.#algorithm === 'sliding-window' ? sum(window - 1n) * (this.#per - (now % this.#per)) : 0n
    return sum(window) * this.#per + fading
  }

  fits(at: bigint, cost: bigint, limits: ModelLimit): boolean {
    const isBucket = this.#algorithm === 'gcra' || this.#algorithm === 'token-bucket'
    return this.used(at, limits) + cost * this.#per <= (isBucket ? limits.burst : limits.limit) * this.#per
  }

  take(at: bigint, cost: bigint, limits: ModelLimit): boolean {
    if (!this.fits(at, cost, limits)) return false
    this.#owed = this.used(at, limits) + cost * this.#per
    const now = at > this.#at ? at : this.#at
    this.#grants.push({ at: now, cost })
    const isBucket = this.#algorithm === 'gcra' || this.#algorithm === 'token-bucket'
    // A clock that goes back within a window is believed: it makes what fades weigh more.
    this.#at = isBucket ? now : now - (now % this.#per)
    return true
  }
}
