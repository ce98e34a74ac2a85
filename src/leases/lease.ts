import { setMaxListeners } from 'node:events'
import type { LossReason } from '../errors.js'

/** `lost`: another may hold the claim. `ended`: the holder has released the claim, or has recorded its outcome. */
export type LeaseState = 'held' | 'lost' | 'ended'

/** A holder counts its lease as over a little early, because two clocks do not run at the same rate. */
const DEADLINE_SHARE = 0.99

export interface LeaseStart {
  readonly leaseMs: number
  /** When the statement was sent that began the lease, by `performance.now()`. The lease cannot have begun earlier. */
  readonly sentAt: number
  /** How much of the lease was left. Default: `leaseMs`. Infinity: only the database decides when the lease is over. */
  readonly leftMs?: number
  /** The longest time to hold the lease, however often it is renewed. Default: no limit. */
  readonly maxHoldMs?: number
}

/**
 * The holder's side of a lease that a `LeaseRenewer` renews. By this process's monotonic clock, the lease is over before the database gives the claim to
 * another holder.
 */
export abstract class Lease {
  leaseState: LeaseState = 'held'
  readonly leaseMs: number
  /** When the next renewal is due, by `performance.now()`. */
  renewAt: number
  /** The renewer that the lease was added to. */
  renewer: { remove(lease: Lease): void } | undefined
  /** When the lease has been held for its longest time. */
  readonly #maxEndsAt: number
  /** When the lease is over, unless it is renewed. */
  #deadlineAt: number
  /** True if a renewal was requested since the last one that was confirmed. */
  #isRequested = false
  /** True if the lease cannot be renewed beyond its deadline. */
  #isLast = false
  #controller: AbortController | undefined
  #abortReason: unknown

  constructor({ leaseMs, sentAt, leftMs = leaseMs, maxHoldMs = Number.POSITIVE_INFINITY }: LeaseStart) {
    this.leaseMs = leaseMs
    // A lease that cannot be extended is renewed too: only a renewal shows that the claim was taken away.
    this.renewAt = sentAt + Math.min(leftMs, leaseMs) / 3
    this.#maxEndsAt = sentAt + maxHoldMs
    this.#deadlineAt = Number.NEGATIVE_INFINITY
    this.extend(sentAt, leftMs)
  }

  /** Called once when the lease is lost. Returns the reason of `signal`. */
  protected abstract onLost(reason: LossReason): Error

  /** Fires when the lease is lost. Created when it is first used, because most work ends before anyone looks at its signal. */
  get signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = new AbortController()
      setMaxListeners(0, this.#controller.signal) // any number of calls may get the signal
      if (this.#abortReason !== undefined) this.#controller.abort(this.#abortReason)
    }
    return this.#controller.signal
  }

  /** The reason of `signal`. Undefined while it has not fired. */
  get abortReason(): unknown {
    return this.#abortReason
  }

  /** When the lease is over, unless it is renewed, by `performance.now()`. */
  get endsAt(): number {
    return Math.min(this.#deadlineAt, this.#maxEndsAt)
  }

  /** True while the holder records its end: a refused renewal may be due to that. */
  get isBeingEnded(): boolean {
    return false
  }

  /** How long a renewal that is sent now asks for. 0: not to be renewed now. */
  beginRenewal(now: number): number {
    // The database would extend a lease that has ended and that nobody has taken over, for a holder that no longer counts on it.
    if (now >= this.endsAt) return 0 // guard: lock.renew-ended
    this.#isRequested = true
    return Math.ceil(Math.min(this.leaseMs, this.#maxEndsAt - now)) // guard: lock.max-hold
  }

  /** The database has confirmed a renewal. Confirmations may come in another order than the renewals were sent. */
  confirmRenewal(sentAt: number, forMs: number): void {
    this.#isRequested = false
    this.renewAt = Math.max(this.renewAt, sentAt + this.leaseMs / 3)
    this.extend(sentAt, forMs)
  }

  /** The lease lasts for at least `ms` from `sentAt` on. */
  extend(sentAt: number, ms: number): void {
    const deadlineAt = sentAt + ms * DEADLINE_SHARE
    if (deadlineAt < this.#deadlineAt) return
    this.#deadlineAt = deadlineAt
    this.#isLast = sentAt + ms >= this.#maxEndsAt
  }

  /** A renewal has no result: the server may answer again before the lease is over. */
  retryLater(): void {
    this.renewAt = performance.now() + this.leaseMs / 30
  }

  /** Why the lease is over by this process's clock. Undefined while the lease lasts. */
  lossReasonAt(now: number): LossReason | undefined {
    if (now < this.endsAt) return undefined // guard: lock.deadline
    if (this.#isLast || now >= this.#maxEndsAt) return 'max hold'
    // This process was suspended if it did not even request a renewal, or notices the deadline late.
    return !this.#isRequested || now - this.#deadlineAt > this.leaseMs / 10 ? 'expired' : 'lost contact'
  }

  /** Counts the lease as lost if its deadline has passed. Timers may be late, because this process may have been suspended. */
  checkDeadline(): void {
    const reason = this.lossReasonAt(performance.now())
    if (reason) this.lose(reason)
  }

  /** Counts the lease as lost. Returns true if it was held until now. */
  lose(reason: LossReason): boolean {
    if (this.leaseState !== 'held') return false
    this.stopRenewal('lost')
    this.abort(this.onLost(reason))
    return true
  }

  /** The lease is not renewed any more. */
  stopRenewal(state: LeaseState = 'ended'): void {
    if (this.leaseState === 'held') this.leaseState = state
    this.renewer?.remove(this)
  }

  /** Fires `signal`. The first reason counts. */
  abort(reason: unknown): void {
    if (this.#abortReason !== undefined) return
    this.#abortReason = reason
    this.#controller?.abort(reason)
  }
}
