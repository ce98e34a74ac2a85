import type { IfLate } from '../../src/claims/quota/quota-spec.js'

/** A model of a quota without counters. Each call sums up the list of entries anew. */
export interface ModelOptions {
  /** Undefined: a stock. */
  readonly everyMs?: number | undefined
  readonly ifLate: IfLate
  readonly keepMs: number
}

export interface Entry {
  readonly id: string | undefined
  readonly subject: string
  readonly requested: number
  readonly expires: number | undefined
  forget: number
  window: number
  amount: number
  state: 'held' | 'taken' | 'void' | 'expired' | 'refunded'
}

export type QuotaAnswer = readonly [what: string, ...figures: unknown[]]

export class QuotaModel {
  readonly #options: ModelOptions
  #entries: Entry[] = []
  now = 0

  constructor(options: ModelOptions) {
    this.#options = options
  }

  add(entry: Entry): void {
    this.#entries.push(entry)
  }

  get #window(): number {
    const { everyMs } = this.#options
    return everyMs === undefined ? 0 : Math.floor(this.now / everyMs) * everyMs
  }

  get #end(): number {
    return this.#window + (this.#options.everyMs ?? Number.POSITIVE_INFINITY)
  }

  #isHeld({ state, expires = 0 }: Entry): boolean {
    return state === 'held' && expires > this.now
  }

  #stateOf(entry: Entry): Entry['state'] {
    return entry.state === 'held' && !this.#isHeld(entry) ? 'expired' : entry.state
  }

  #find(id: string | undefined): Entry | undefined {
    return id === undefined ? undefined : this.#entries.find((entry) => entry.id === id)
  }

  #of(subject: string): Entry[] {
    return this.#entries.filter((entry) => entry.subject === subject && entry.window === this.#window)
  }

  use(subject: string): { used: number; held: number } {
    const entries = this.#of(subject)
    const sum = (chosen: Entry[]) => chosen.reduce((total, { amount }) => total + amount, 0)
    return {
      used: sum(entries.filter(({ state }) => state === 'taken' || state === 'refunded')),
      held: sum(entries.filter((entry) => this.#isHeld(entry))),
    }
  }

  /** Until so much is free. */
  #freeIn(subject: string, need: number): number | undefined {
    let freed = 0
    const holds = this.#of(subject).filter((entry) => this.#isHeld(entry))
    for (const { amount, expires = 0 } of holds.sort((a, b) => (a.expires ?? 0) - (b.expires ?? 0))) {
      freed += amount
      if (freed >= need) return Math.min(expires, this.#end) - this.now
    }
    return this.#end === Number.POSITIVE_INFINITY ? undefined : this.#end - this.now
  }

  take(subject: string, amount: number, limit: number, id?: string, leaseMs?: number): QuotaAnswer {
    const known = this.#find(id)
    if (known) {
      const isSame =
        known.subject === subject &&
        known.requested === amount &&
        (known.expires === undefined) === (leaseMs === undefined)
      if (!isSame) return ['mismatch']
      const state = this.#stateOf(known)
      if (leaseMs !== undefined) return state === 'held' ? ['reserved', known.expires] : ['ended', state]
      return state === 'taken' ? ['replayed', this.use(subject)] : ['ended', state]
    }
    if (amount > limit) return ['never']
    const { used, held } = this.use(subject)
    const need = used + held + amount - limit
    if (need > 0) return ['refused', { used, held }, this.#freeIn(subject, need)]
    const expires = leaseMs === undefined ? undefined : this.now + leaseMs
    const forget = (this.#options.everyMs === undefined ? this.now : this.#end) + this.#options.keepMs
    const state = leaseMs === undefined ? 'taken' : 'held'
    this.#entries.push({
      id,
      subject,
      requested: amount,
      amount,
      expires,
      forget,
      state,
      window: this.#window,
    })
    return leaseMs === undefined ? ['taken', this.use(subject)] : ['reserved', expires]
  }

  settle(id: string, actual: number, limit: number): QuotaAnswer {
    const entry = this.#find(id)
    if (!entry) return ['ended', 'unknown']
    const state = this.#stateOf(entry)
    if (state === 'taken' && entry.expires !== undefined && entry.amount === actual)
      return ['settled', this.use(entry.subject)]
    const { ifLate } = this.#options
    if (state !== 'held' && (state !== 'expired' || ifLate === 'fail')) return ['ended', state]
    if (actual > entry.requested) return ['too much']
    if (state === 'expired') {
      const { used, held } = this.use(entry.subject)
      const need = used + held + actual - limit
      if (ifLate === 'take' && actual > 0 && need > 0)
        return ['refused', { used, held }, actual > limit ? undefined : this.#freeIn(entry.subject, need)]
      entry.forget += this.#window - entry.window
      entry.window = this.#window
    }
    entry.state = 'taken'
    entry.amount = actual
    return ['settled', this.use(entry.subject)]
  }

  void(id: string): QuotaAnswer {
    const entry = this.#find(id)
    if (!entry) return ['ended', 'unknown']
    const state = this.#stateOf(entry)
    if (state === 'taken' || state === 'refunded') return ['ended', state]
    entry.state = 'void'
    return ['void']
  }

  refund(id: string, amount?: number): QuotaAnswer {
    const entry = this.#find(id)
    if (!entry) return ['ended', 'unknown']
    const state = this.#stateOf(entry)
    if (state === 'refunded') return ['already']
    if (state !== 'taken') return ['ended', state]
    if ((amount ?? 0) > entry.amount) return ['too much']
    entry.state = 'refunded'
    entry.amount -= amount ?? entry.amount
    return ['refunded']
  }

  /** Ids are forgotten; what they took stays taken. */
  maintain(): void {
    this.#entries = this.#entries.flatMap((entry) => {
      if (entry.id === undefined || entry.forget > this.now || this.#isHeld(entry)) return [entry]
      const state = this.#stateOf(entry)
      return state === 'taken' || state === 'refunded'
        ? [{ ...entry, id: undefined, state: 'taken' as const }]
        : []
    })
  }
}
