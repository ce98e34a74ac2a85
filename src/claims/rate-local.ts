import type { RateSpec } from './rate-spec.js'

/** What `rate_take` says of a cost. */
export interface RateDecision {
  readonly granted: boolean
  readonly remaining: number
  /** Until this cost fits, if nobody else comes; of one that was refused. */
  readonly retryAfterUs?: number
  /** Until it is as if unused. */
  readonly resetUs: number
}

/** As in a row of the table. */
interface Rate {
  readonly at: bigint
  readonly level: bigint
  readonly previous: bigint
}

const UNUSED: Rate = { at: 0n, level: 0n, previous: 0n }

/** Beyond it those that were not asked for longest are forgotten, used or not. */
const MAX_SUBJECTS = 10_000

/**
 * The same algorithms in this process alone, for while the database is away. It decides as `rate_decide` does, in whole numbers; a
 * property test holds both against one model.
 */
export class LocalRates {
  readonly #spec: RateSpec
  readonly #most: number
  /** In the order in which they were last asked for. */
  readonly #rates = new Map<string, Rate & { readonly until: bigint }>()

  constructor(spec: RateSpec, most = MAX_SUBJECTS) {
    this.#spec = spec
    this.#most = most
  }

  get size(): number {
    return this.#rates.size
  }

  /** A cost of 0 takes nothing: a look. */
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

  /** One more than came in, so that in time all that are idle go. */
  #forget(nowUs: bigint): void {
    for (const [subject, { until }] of [...this.#firstTwo()]) {
      if (until <= nowUs || this.#rates.size > this.#most) this.#rates.delete(subject)
    }
  }

  *#firstTwo() {
    let n = 0
    for (const entry of this.#rates) {
      if (++n > 2) return
      yield entry
    }
  }
}

/** Since 1970, as windows are counted, and never back. */
function monotonicUs(): bigint {
  return BigInt(Math.floor((performance.timeOrigin + performance.now()) * 1_000))
}

const most = (...values: readonly bigint[]): bigint => values.reduce((a, b) => (a > b ? a : b))

function decide(spec: RateSpec, before: Rate, cost: bigint, nowUs: bigint) {
  const per = BigInt(spec.perUs)
  const rate = bring(spec, before, most(nowUs, before.at))
  const isBucket = isBucketed(spec)
  const elapsed = most(nowUs, rate.at) - rate.at
  const used = isBucket ? rate.level : rate.previous * (per - elapsed) + rate.level * per
  const room = BigInt(spec.capacity) * per - used - cost * per
  const granted = room >= 0n
  const after = granted ? { ...rate, level: rate.level + (isBucket ? cost * per : cost) } : rate
  const until = resetAt(spec, after, nowUs)
  const left = granted ? room : room + cost * per
  const decision: RateDecision = {
    granted,
    remaining: Number(most(0n, left / per)),
    ...(granted ? {} : { retryAfterUs: Number(fitsAt(spec, rate, cost, -room) - nowUs) }),
    resetUs: Number(most(0n, until - nowUs)),
  }
  return { rate: after, until, decision }
}

const isBucketed = ({ algorithm }: RateSpec): boolean => algorithm === 'gcra' || algorithm === 'token-bucket'

/** What it has come to by now. */
function bring(spec: RateSpec, { at, level, previous }: Rate, now: bigint): Rate {
  if (isBucketed(spec))
    return { at: now, level: most(0n, level - (now - at) * BigInt(spec.limit)), previous: 0n }
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

/** When a cost that lacks so much now will fit. */
function fitsAt(spec: RateSpec, { at, level, previous }: Rate, cost: bigint, lack: bigint): bigint {
  const per = BigInt(spec.perUs)
  const limit = BigInt(spec.limit)
  if (isBucketed(spec)) return at + divideUp(lack, limit)
  if (spec.algorithm === 'fixed-window') return at + per
  const room = limit - level - cost
  // What was taken in the window before fades; if this one is full, in the next its own does.
  return room >= 0n ? at + per - (room * per) / previous : at + 2n * per - ((limit - cost) * per) / level
}
