// The thread for heartbeats imports this file and must start fast, so this file imports no errors and no database.
import type { LossReason } from '../errors.js'
import type { Lease } from './lease.js'

/** `lost`: the claim was released, has expired, or was taken over. `locked`: another call has locked the row. Undefined: no answer. */
export type RenewalState = 'held' | 'lost' | 'locked' | undefined

/** A request to renew a lease. */
export interface Renewal<L extends Lease> {
  readonly lease: L
  readonly forMs: number
}

export interface LeaseRenewerOptions<L extends Lease> {
  /** Renews leases with one statement, whose answer is needed within `patienceMs`. Resolves to the state of each, in their order. */
  readonly renew: (renewals: readonly Renewal<L>[], patienceMs: number) => Promise<readonly RenewalState[]>
  /** Renews a lease whose row another call has locked: waits up to `waitMs` for the row. Default: the lease is retried later. */
  readonly renewLocked?: (renewal: Renewal<L>, waitMs: number) => Promise<RenewalState>
  /** How many leases share a statement. */
  readonly maxBatch: number
  /** How many statements may be in flight. */
  readonly maxInFlight: number
  /** Whether a held lease keeps this process alive. */
  readonly keepsProcessAlive: boolean
  /** A connection to retain while there is a lease. */
  readonly connection?: { retain(): void; release(): void }
  /** Called before deadlines are judged, to read results that have arrived. */
  readonly onBeforeCheck?: () => void
  /** Called when the renewer has found that a lease is lost. */
  readonly onLost?: (lease: L, reason: LossReason) => void
}

/** How many leases wait for their rows at a time, each with a statement of its own. */
const MAX_LOCKED = 3

/** Leases share a statement if none is more than this many times as long as another. The shortest lease that waits for a statement sets its patience. */
const MAX_RATIO = 8

/** How long to wait for an answer: a quarter of the shortest lease, so that there is time for two more tries, within these bounds. */
const MIN_PATIENCE_MS = 100
const MAX_PATIENCE_MS = 5_000

/**
 * Renews the leases of this process, each when a third of its time has passed. One statement renews all leases that are due, and those that soon are. A
 * renewal without an answer is tried again. A lease that could not be renewed in time counts as lost, before the database gives its claim to another holder.
 *
 * Locks, leased claims, loads of `singleFlight` and jobs use this class, each with statements of their own.
 */
export class LeaseRenewer<L extends Lease> {
  readonly #options: LeaseRenewerOptions<L>
  readonly #leases = new Set<L>()
  /** Leases that another thread renews. Only their deadlines are judged here. */
  readonly #watched = new Set<L>()
  /** Leases that wait for an answer, and until when. After that another statement renews them. */
  readonly #requested = new Map<L, number>()
  #timer: NodeJS.Timeout | undefined
  #nextAt = Number.POSITIVE_INFINITY
  #inFlight = 0
  #locked = 0
  /** `renewNow` was called while a statement was in flight. */
  #isRepeatWanted = false

  constructor(options: LeaseRenewerOptions<L>) {
    this.#options = options
  }

  get leases(): readonly L[] {
    return [...this.#leases, ...this.#watched]
  }

  add(lease: L): void {
    this.#addTo(this.#leases, lease)
    this.#watched.delete(lease)
    if (lease.renewAt < this.#nextAt) this.#setTimer(lease.renewAt) // guard: once.lease-renewal
  }

  /** Judges the deadline of a lease that another thread renews, from now on. Its results come by `applyResult`. */
  watch(lease: L): void {
    this.#addTo(this.#watched, lease)
    this.#leases.delete(lease)
    this.#requested.delete(lease)
    if (lease.endsAt < this.#nextAt) this.#setTimer(lease.endsAt)
  }

  #addTo(leases: Set<L>, lease: L): void {
    if (this.#size === 0) this.#options.connection?.retain()
    leases.add(lease)
    lease.renewer = this
  }

  get #size(): number {
    return this.#leases.size + this.#watched.size
  }

  remove(lease: L): void {
    if (!this.#leases.delete(lease) && !this.#watched.delete(lease)) return
    this.#requested.delete(lease)
    if (this.#size > 0) return
    this.#setTimer(Number.POSITIVE_INFINITY)
    this.#options.connection?.release()
  }

  /** Renews all leases at once. */
  renewNow(): void {
    if (this.#inFlight > 0) {
      this.#isRepeatWanted = true
      return
    }
    const now = performance.now()
    for (const lease of this.#leases) lease.renewAt = Math.min(lease.renewAt, now)
    if (this.#leases.size > 0) this.#setTimer(now)
  }

  /** Applies the result of a renewal that was sent at `sentAt`. */
  applyResult(lease: L, state: RenewalState, sentAt: number, forMs: number): void {
    this.#requested.delete(lease)
    if (!this.#leases.has(lease) && !this.#watched.has(lease)) return
    if (state === 'held') lease.confirmRenewal(sentAt, forMs)
    // guard: once.lease-refused
    else if (state === 'lost' && !lease.isBeingEnded) this.lose(lease, 'stolen')
    else if (state === 'locked' && this.#options.renewLocked && this.#locked < MAX_LOCKED)
      void this.#renewLocked(this.#options.renewLocked, lease, forMs)
    else lease.retryLater()
  }

  lose(lease: L, reason: LossReason): void {
    if (lease.lose(reason)) this.#options.onLost?.(lease, reason)
  }

  #setTimer(at: number): void {
    clearTimeout(this.#timer)
    this.#nextAt = at
    if (at === Number.POSITIVE_INFINITY) return
    // Timers run before sockets are read: after this process was suspended, an unread answer may say that a lease was renewed.
    const check = (): unknown => setImmediate(() => this.#check())
    this.#timer = setTimeout(check, Math.ceil(Math.max(0, at - performance.now())))
    if (!this.#options.keepsProcessAlive) this.#timer.unref()
  }

  #check(): void {
    this.#options.onBeforeCheck?.()
    const now = performance.now()
    for (const lease of this.leases) {
      const reason = lease.isBeingEnded ? undefined : lease.lossReasonAt(now)
      if (reason) this.lose(lease, reason) // guard: once.lease-deadline
    }
    this.#renewDue()
  }

  #renewDue(): void {
    const now = performance.now()
    const isDue = (lease: L, earlyMs: number): boolean =>
      (this.#requested.get(lease) ?? lease.renewAt - earlyMs) <= now
    const leases = [...this.#leases]
    if (leases.some((lease) => isDue(lease, 0))) {
      // Leases that are due soon share the statement.
      const isGathered = (lease: L) => isDue(lease, this.#options.maxBatch > 1 ? lease.leaseMs / 6 : 0)
      let due = leases.filter(isGathered).sort((one, other) => one.endsAt - other.endsAt)
      while (due.length > 0 && this.#inFlight < this.#options.maxInFlight) {
        const batch = this.#selectBatch(due)
        due = due.filter((lease) => !batch.has(lease))
        void this.#renew([...batch])
      }
    }
    this.#schedule()
  }

  #selectBatch(due: readonly L[]): Set<L> {
    const shortest = shortestOf(due)
    const alike = due.filter(({ leaseMs }) => leaseMs <= MAX_RATIO * shortest)
    return new Set(alike.slice(0, this.#options.maxBatch))
  }

  async #renew(batch: readonly L[]): Promise<void> {
    const sentAt = performance.now()
    // Behind the last statement that may be in flight, all leases wait.
    const waiting = this.#inFlight + 1 < this.#options.maxInFlight ? batch : [...this.#leases]
    const patienceMs = Math.ceil(
      Math.min(MAX_PATIENCE_MS, Math.max(MIN_PATIENCE_MS, shortestOf(waiting) / 4)),
    )
    const renewals: Renewal<L>[] = []
    for (const lease of batch) {
      const forMs = lease.beginRenewal(sentAt)
      if (forMs > 0) {
        renewals.push({ lease, forMs })
        this.#requested.set(lease, sentAt + Math.max(patienceMs, lease.leaseMs / 4))
      } else lease.retryLater()
    }
    if (renewals.length === 0) return
    this.#inFlight++
    const states = await this.#options.renew(renewals, patienceMs).catch(() => [])
    this.#inFlight--
    for (const [n, { lease, forMs }] of renewals.entries()) this.applyResult(lease, states[n], sentAt, forMs)
    if (this.#isRepeatWanted && this.#inFlight === 0) {
      this.#isRepeatWanted = false
      this.renewNow()
    }
    this.#renewDue()
  }

  async #renewLocked(
    renewLocked: NonNullable<LeaseRenewerOptions<L>['renewLocked']>,
    lease: L,
    forMs: number,
  ): Promise<void> {
    const sentAt = performance.now()
    const waitMs = Math.ceil(lease.leaseMs / 3)
    this.#requested.set(lease, sentAt + 2 * waitMs)
    this.#locked++
    const state = await renewLocked({ lease, forMs }, waitMs).catch(() => undefined)
    this.#locked--
    this.applyResult(lease, state === 'locked' ? undefined : state, sentAt, forMs)
    this.#schedule()
  }

  #schedule(): void {
    let next = Number.POSITIVE_INFINITY
    for (const lease of this.leases) if (!lease.isBeingEnded) next = Math.min(next, lease.endsAt)
    // The end of a statement in flight starts the next one.
    if (this.#inFlight < this.#options.maxInFlight)
      for (const lease of this.#leases) next = Math.min(next, this.#requested.get(lease) ?? lease.renewAt)
    this.#setTimer(next)
  }
}

const shortestOf = (leases: readonly Lease[]): number =>
  leases.reduce((least, { leaseMs }) => Math.min(least, leaseMs), Number.POSITIVE_INFINITY)
