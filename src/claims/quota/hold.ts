import { HoldEndedError } from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'
import { trackJoinedMethods } from '../../postgres/open-calls.js'
import type { QuotaRefusal, QuotaUse } from './quota-result.js'
import type { SubjectOptions } from './quota-spec.js'

/** The methods of a quota that end a reservation by its id. */
interface EndsHolds {
  settle(id: string, actual: number, options: SubjectOptions): Promise<QuotaUse>
  void(id: string, options: Pick<SubjectOptions, 'tx'>): Promise<void>
}

/** A reservation. With `await using`, the end of the block gives the reservation back, unless it was settled. */
export class Hold implements AsyncDisposable {
  readonly #quota: EndsHolds
  readonly #of: Pick<SubjectOptions, 'limit' | 'timeZone'>
  /**
   * The transaction in which the hold was made or settled. Other transactions see the hold only after the commit, and a
   * rollback removes it.
   */
  #tx: Tx | undefined
  #isOver = false

  constructor(
    quota: EndsHolds,
    /** The id of the reservation. Any process can settle it or give it back by this id. */
    readonly id: string,
    /** The reserved amount. */
    readonly amount: number,
    /** When the reservation runs out by itself, by the database's clock. */
    readonly leaseUntil: Date,
    /** True if the amount was reserved before under the same id, and not again. */
    readonly replayed: boolean,
    /** The options of the call that made the hold. `limit` and `timeZone` count for `settle` too. */
    { tx, ...of }: SubjectOptions = {},
  ) {
    this.#quota = quota
    this.#of = of
    this.#tx = tx
  }

  /** Takes `actual` of the reserved amount, by default all of it, and gives back the rest. */
  async settle(actual: number = this.amount, options: SubjectOptions = {}): Promise<QuotaUse> {
    const use = await this.#quota.settle(this.id, actual, { ...this.#of, ...options })
    this.#end(options.tx)
    return use
  }

  /** Gives the reserved amount back. */
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
    // Sends the call first in the transaction that knows the hold. If that transaction is over, sends the call alone.
    if (this.#tx !== undefined && (await this.#giveBack({ tx: this.#tx }).catch(() => false))) return
    await this.#giveBack({})
  }

  /** Gives the amount back. `HoldEndedError` is no error here: the hold was settled by its id, or reserved in a transaction that was rolled back. */
  async #giveBack(options: Pick<SubjectOptions, 'tx'>): Promise<true> {
    await this.void(options).catch((error: unknown) => {
      if (!(error instanceof HoldEndedError)) throw error
    })
    return true
  }
}

/** Result of `quota.tryReserve`. */
export type ReserveAttempt = { readonly ok: true; readonly hold: Hold } | QuotaRefusal

trackJoinedMethods(Hold, 'hold', { settle: 1, void: 0 })
