import { OutcomeNotStoredError } from '../../errors.js'
import type { Database } from '../../postgres/database.js'
import { emit } from '../../postgres/events.js'
import { retry } from '../../postgres/retry.js'
import type { TextRow } from '../../postgres/text-values.js'
import type { ClaimRequest, Ending, EndResult, LeasedCall } from '../claim-call.js'
import { runLeased } from '../leased-run.js'
import { AcquireCall, type AcquireSettings } from './acquire-call.js'
import type { AnyClaim } from './acquire-claims.js'
import type { AcquireResult } from './acquire-result.js'
import { endHold, renewAcquired } from './acquire-statements.js'

/** The handle of leased claims, which the function gets with the grants. */
export interface AcquireLease {
  /**
   * Pass this key on to the service that does the work, so that the service recognizes a repetition. With `claim.once`, the key is the same in every
   * attempt.
   */
  readonly idempotencyKey: string
  /** The number of the attempt, from 1. Above 1, an earlier attempt has no recorded outcome. */
  readonly attempt: number
  /** Fires when one of the claims is lost. Stop then. Pass the signal to `fetch` and similar functions. */
  readonly signal: AbortSignal
}

/** How long to keep trying to charge reservations that were not charged in the statement that stored the outcome. */
const SETTLE_MS = 5_000

interface UnsettledHold {
  readonly name: string
  readonly id: string
}

/** Some reservations are not settled yet. */
class UnsettledError extends Error {}

/** A call of `acquire` or `singleton` under a lease. */
export class LeasedAcquireCall extends AcquireCall implements LeasedCall<AcquireResult, unknown> {
  readonly leaseMs: number

  get holdsAmbiguous(): boolean {
    return this.request.holdsAmbiguous
  }

  constructor(
    database: Database,
    claims: readonly AnyClaim[],
    settings: AcquireSettings & { readonly leaseMs: number },
  ) {
    super(database, claims, settings)
    this.leaseMs = settings.leaseMs
  }

  run(fn: (lease: AcquireLease, grants: unknown[]) => Promise<unknown>): Promise<unknown> {
    return runLeased(this, ({ signal }, granted) => {
      const [claim] = this.claimsOf(granted)
      const { id: idempotencyKey = this.request.holder, attempt = 1 } = claim ?? {}
      return { run: () => fn({ idempotencyKey, attempt, signal }, this.request.grants(granted)) }
    })
  }

  /** The start of the oldest of the leases. `leftMs` counts from the end of the statement. */
  leaseStart(granted: AcquireResult, sentAt: number, waitedMs: number): number {
    const ages = this.request.leftMs(granted).map((leftMs) => this.leaseMs - (leftMs ?? this.leaseMs))
    return sentAt + Math.max(0, waitedMs - 1 - granted.tookMs) - Math.max(0, ...ages) // guard: acquire.leased-age
  }

  renewal(granted: AcquireResult, waitMs: number): ClaimRequest {
    const claims = this.request.heldGrants(granted, { kind: 'released', json: null })
    const values = [claims, this.request.holder, String(this.leaseMs), String(waitMs)]
    return { statement: renewAcquired, values }
  }

  override async readEnd(row: TextRow | undefined): Promise<EndResult> {
    const { state, completedAt, unsettled = [] } = JSON.parse(`${row?.result}`)
    const isSettled = unsettled.length === 0 || (await this.#settle(unsettled))
    return { isRecorded: state !== 'lost' && isSettled, completedAt }
  }

  /** After an error of the function, the caller gets that error alone. The leases run out by themselves. */
  explainUnrecorded({ once }: AcquireResult, { kind }: Ending, error: unknown): Error | undefined {
    if (kind === 'released' || kind === 'failed') return undefined
    this.request.once?.emit('dibs:once.not-stored', { error })
    emit('dibs:acquire.not-stored', { ...this.database.origin, kinds: this.request.kinds, error })
    return new OutcomeNotStoredError(this.subject, once?.id ?? this.request.holder, { cause: error })
  }

  /**
   * Charges reservations that ran out before the outcome was stored, and whose rows other callers have locked. The work is done, so it must be charged.
   * Returns false if a reservation belongs to another call by now, and no other claim has a fence.
   */
  async #settle(holds: readonly UnsettledHold[]): Promise<boolean> {
    const deadlineAt = performance.now() + SETTLE_MS
    let unsettled = holds
    let isLost = false
    const settle = async (): Promise<void> => {
      const still: UnsettledHold[] = []
      for (const hold of unsettled) {
        const leftMs = deadlineAt - performance.now()
        const state = leftMs > 0 ? await this.#settleOne(hold, leftMs / (unsettled.length + 1)) : undefined
        if (state === undefined) still.push(hold)
        isLost ||= state === 'lost'
      }
      unsettled = still
      if (still.length > 0) throw new UnsettledError()
    }
    const isRetryable = (error: unknown): boolean => error instanceof UnsettledError
    await retry(settle, { isRetryable, baseMs: 20, maxMs: 200, deadlineAt }).catch((error) => {
      if (!isRetryable(error)) throw error
    })
    const { origin } = this.database
    for (const { name, id } of unsettled) emit('dibs:acquire.unsettled', { ...origin, quota: name, id })
    return !isLost || this.request.hasFence
  }

  async #settleOne(hold: UnsettledHold, waitMs: number): Promise<string | null | undefined> {
    const boundMs = this.database.boundWait(Math.ceil(Math.max(10, waitMs)))
    const values = [JSON.stringify(hold), this.request.holder, String(boundMs)]
    const [row] = await this.database.send(endHold, values, { duringClose: true }).catch(() => [])
    return row?.state
  }
}
