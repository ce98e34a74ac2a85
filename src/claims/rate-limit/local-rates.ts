import type { RateSpec } from './rate-spec.js'

/** The decision about one cost, as the SQL function `rate_take` returns it. */
export interface RateDecision {
  readonly granted: boolean
  readonly remaining: number
  /** Only if refused: the time until this cost fits, if no other caller takes. */
  readonly retryAfterUs?: number
  /** The time until the subject is as if unused. */
  readonly resetUs: number
}

/** The columns of a row of the table `rate`. */
interface Rate {
  readonly at: bigint
  readonly level: bigint
  readonly previous: bigint
}

const UNUSED: Rate = { at: 0n, level: 0n, previous: 0n }

/** Beyond this number, the limiter drops the least recently used subjects. */
const MAX_SUBJECTS = 10_000

/**
 * The rate limit in this process alone, while the database cannot be reached. Decides as the SQL function `rate_decide` does,
 * in whole numbers. A property test checks both against one model.
 */
export class LocalRates {
  readonly #spec: RateSpec
  readonly #maxSubjects: number
  /** The subjects, in the order of their last use. */
  readonly #rates = new Map<string, Rate & { readonly until: bigint }>()

  constructor(spec: RateSpec, maxSubjects = MAX_SUBJECTS) {
    this.#spec = spec
    this.#maxSubjects = maxSubjects
  }

  get size(): number {
    return this.#rates.size
  }

  /** Takes a cost if it fits. A cost of 0 takes nothing. */
  take(subject: string, cost: number, nowUs: bigint = monotonicUs()): RateDecision {
    const before = this.#rates.get(subject) ?? UNUSED
    const { rate, until, decision } = decide(this.#spec, before, BigInt(cost), nowUs)
    if (cost > 0 && decision.granted) {
      this.#rates.delete(subject)
      this.#rates.set(subject, { ...rate, until })
      this.#forget(nowUs)
    }
    return decision
  }

  /** Checks two subjects for each one that was added, so that all idle subjects are dropped in time. */
  #forget(nowUs: bigint): void {
    let checked = 0
    for (const [subject, { until }] of this.#rates) {
      if (++checked > 2) return
      // guard: rate.local-memory
      if (until <= nowUs || this.#rates.size > this.#maxSubjects) this.#rates.delete(subject)
    }
  }
}

/** The time since 1970, from which windows are counted. Never goes back. */
function monotonicUs(): bigint {
  return BigInt(Math.floor((performance.timeOrigin + performance.now()) * 1_000))
}

const max = (...values: readonly bigint[]): bigint => values.reduce((a, b) => (a > b ? a : b))

function decide(spec: RateSpec, before: Rate, cost: bigint, nowUs: bigint) {
  const per = BigInt(spec.perUs)
  const rate = advance(spec, before, max(nowUs, before.at))
  const isBucket = isBucketed(spec)
  const elapsed = max(nowUs, rate.at) - rate.at
  const used = isBucket ? rate.level : rate.previous * (per - elapsed) + rate.level * per
  const room = BigInt(spec.capacity) * per - used - cost * per
  const granted = room >= 0n
  const after = granted ? { ...rate, level: rate.level + (isBucket ? cost * per : cost) } : rate
  const until = resetAt(spec, after, nowUs)
  const left = granted ? room : room + cost * per
  const decision: RateDecision = {
    granted,
    remaining: Number(max(0n, left / per)),
    ...(granted ? {} : { retryAfterUs: Number(fitsAt(spec, rate, cost, -room) - nowUs) }),
    resetUs: Number(max(0n, until - nowUs)),
  }
  return { rate: after, until, decision }
}

const isBucketed = ({ algorithm }: RateSpec): boolean => algorithm === 'gcra' || algorithm === 'token-bucket'

/** The state of a subject at a time. */
function advance(spec: RateSpec, { at, level, previous }: Rate, now: bigint): Rate {
  if (isBucketed(spec))
    return { at: now, level: max(0n, level - (now - at) * BigInt(spec.limit)), previous: 0n }
  const per = BigInt(spec.perUs)
  const start = now - (now % per)
  if (start === at) return { at, level, previous }
  const isNext = spec.algorithm === 'sliding-window' && start === at + per
  return { at: start, level: 0n, previous: isNext ? level : 0n }
}

const divideUp = (a: bigint, b: bigint): bigint => (a + b - 1n) / b

function resetAt(spec: RateSpec, { at, level, previous }: Rate, now: bigint): bigint {
  const per = BigInt(spec.perUs)
  if (isBucketed(spec)) return at + divideUp(level, BigInt(spec.limit))
  if (level > 0n && spec.algorithm === 'sliding-window') return at + 2n * per
  return level > 0n || previous > 0n ? at + per : now
}

/** The time at which a cost fits that now lacks the amount `lack`. */
function fitsAt(spec: RateSpec, { at, level, previous }: Rate, cost: bigint, lack: bigint): bigint {
  const per = BigInt(spec.perUs)
  const limit = BigInt(spec.limit)
  if (isBucketed(spec)) return at + divideUp(lack, limit)
  if (spec.algorithm === 'fixed-window') return at + per
  const room = limit - level - cost
  // The amount of the previous window fades. If this window is full by itself, its amount fades in the next.
  return room >= 0n ? at + per - (room * per) / previous : at + 2n * per - ((limit - cost) * per) / level
}
