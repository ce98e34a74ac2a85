import { HoldEndedError } from '../errors.js'
import type { Tx } from '../postgres/executor.js'
import { trackJoinedMethods } from '../postgres/open-calls.js'
import type { SubjectOptions } from './quota-spec.js'
import type { QuotaRefusal, QuotaUse } from './quota-told.js'

/** What a quota does by the id of a reservation. */
interface EndsHolds {
  settle(id: string, actual: number, options: SubjectOptions): Promise<QuotaUse>
  void(id: string, options: Pick<SubjectOptions, 'tx'>): Promise<void>
}

/**
 * A reservation. With `await using` it is given back at the end of the block, unless it was settled.
 */
export class Hold implements AsyncDisposable {
  readonly #quota: EndsHolds
  readonly #of: Pick<SubjectOptions, 'limit' | 'timeZone'>
  /** Where it was made, or settled: others see nothing of that before it commits, and it may be rolled back. */
  #tx: Tx | undefined
  #isOver = false

  constructor(
    quota: EndsHolds,
    /** To settle or give it back by, in any process. */
    readonly id: string,
    /** What was reserved. */
    readonly amount: number,
    /** When it runs out by itself, by the database's clock. */
    readonly leaseUntil: Date,
    /** It was reserved before, under the same id, and not again. */
    readonly replayed: boolean,
    /** What was said of the subject; it counts for `settle` too. */
    { tx, ...of }: SubjectOptions = {},
  ) {
    this.#quota = quota
    this.#of = of
    this.#tx = tx
  }

  /** Takes so much of it, or all, and gives the rest back. */
  async settle(actual: number = this.amount, options: SubjectOptions = {}): Promise<QuotaUse> {
    const use = await this.#quota.settle(this.id, actual, { ...this.#of, ...options })
    this.#end(options.tx)
    return use
  }

  /** Gives it back. */
  async void(options: Pick<SubjectOptions, 'tx'> = {}): Promise<void> {
    await this.#quota.void(this.id, options)
    this.#end(options.tx)
  }

  #end(tx: Tx | undefined): void {
    this.#isOver = tx === undefined
    this.#tx = tx ?? this.#tx
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isOver) return
    // In the transaction that knows of it, or, once that is over, alone.
    if (this.#tx !== undefined && (await this.#giveBack({ tx: this.#tx }).catch(() => false))) return
    await this.#giveBack({})
  }

  /** Settled by its id, or reserved in a transaction that was rolled back, it is over as well. */
  async #giveBack(options: Pick<SubjectOptions, 'tx'>): Promise<true> {
    await this.void(options).catch((error: unknown) => {
      if (!(error instanceof HoldEndedError)) throw error
    })
    return true
  }
}

/** What `quota.tryReserve` returns. */
export type ReserveAttempt = { readonly ok: true; readonly hold: Hold } | QuotaRefusal

trackJoinedMethods(Hold, 'hold', { settle: 1, void: 0 })
