import { FingerprintMismatchError, type QuotaEntryState } from '../../errors.js'
import { dateFromMicros } from '../../postgres/text-values.js'

/** How much of a subject's window is used. */
export interface QuotaUse {
  readonly limit: number
  readonly used: number
  /** The reserved amount that is neither settled nor given back yet. */
  readonly held: number
  /** The amount that would still fit. */
  readonly remaining: number
  /** The start of the window. Missing for a stock, as is `resetsAt`. */
  readonly startsAt?: Date
  readonly resetsAt?: Date
}

/** The result of a take. */
export interface QuotaTake extends QuotaUse {
  /** The id for a refund: the id that was given, or one that the ledger has made. */
  readonly id?: string
  /** True if the amount was taken before under the same id, and not again. */
  readonly replayed: boolean
}

/** The result if an amount does not fit. Nothing was taken. */
export interface QuotaRefusal extends QuotaUse {
  readonly ok: false
  readonly requested: number
  /**
   * How long until this amount fits, if no other caller takes from the quota. Missing if no wait helps: the amount is above the
   * limit, or a stock is sold out.
   */
  readonly retryAfterMs?: number
}

/** Result of `quota.tryTake`. */
export type QuotaAttempt = (QuotaTake & { readonly ok: true }) | QuotaRefusal

export interface QuotaRefund {
  /** True if an earlier call has refunded the amount, and this call did nothing. */
  readonly replayed: boolean
}

/** A counter that differs from its entries. */
export interface QuotaDrift {
  readonly subject: string
  readonly used: number
  readonly held: number
  /** The part of `used` that should have entries. `entriesTaken` and `entriesHeld` are the sums of the entries. */
  readonly listed: number
  readonly entriesTaken: number
  readonly entriesHeld: number
}

/** The result of the SQL function `quota_row_result`. Times are in microseconds since 1970. */
export interface QuotaRow {
  readonly used: number
  readonly held: number
  readonly startsAt: number | null
  readonly endsAt: number | null
}

export interface TakeResult {
  readonly state: 'taken' | 'known' | 'refused' | 'mismatch'
  readonly used: number
  readonly held: number
  readonly freeInUs: number | null
  readonly entry: QuotaEntryState | null
  readonly expiresAt: number | null
}

/** The result of the SQL function `quota_take`. */
export interface BatchResult {
  readonly state: 'done' | 'busy'
  readonly row: QuotaRow
  readonly takes: readonly TakeResult[]
}

/** The result of the SQL function `quota_resolve`. */
export interface ResolveResult {
  readonly state:
    | 'settled'
    | 'void'
    | 'refunded'
    | 'already'
    | 'over'
    | 'too much'
    | 'exceeded'
    | 'absent'
    | 'leased'
    | 'busy'
  readonly was: QuotaEntryState
  readonly subject: string
  readonly requested: number
  readonly amount: number
  readonly row: QuotaRow | null
  readonly freeInUs: number | null
}

export function readUse(row: QuotaRow | null, limit: number): QuotaUse {
  const { used = 0, held = 0, startsAt = null, endsAt = null } = row ?? {}
  return {
    limit,
    used,
    held,
    remaining: Math.max(0, limit - used - held),
    ...(startsAt === null ? {} : { startsAt: dateFromMicros(String(startsAt)) }),
    ...(endsAt === null ? {} : { resetsAt: dateFromMicros(String(endsAt)) }),
  }
}

/** The error for an id that was used before in another way. */
export function quotaMismatch(quota: string, id: string): FingerprintMismatchError {
  const message = `"${id}" of quota "${quota}" was used before in another way: for another amount or subject, or as another of these: a take, a reservation, a claim under a lease. Nothing was taken. Use a new id.`
  return new FingerprintMismatchError(`"${id}" of quota "${quota}"`, id, { message })
}
