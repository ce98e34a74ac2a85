import { FingerprintMismatchError, type QuotaEntryState } from '../errors.js'
import { dateFromMicros } from '../postgres/text-values.js'

/** How full the window of a subject is. */
export interface QuotaUse {
  readonly limit: number
  readonly used: number
  /** Reserved, and neither settled nor given back yet. */
  readonly held: number
  /** What would fit. */
  readonly remaining: number
  /** Of the window; a stock has neither. */
  readonly startsAt?: Date
  readonly resetsAt?: Date
}

/** What was taken. */
export interface QuotaTake extends QuotaUse {
  /** To refund it by: the id that was given, or one that the ledger has made. */
  readonly id?: string
  /** It was taken before, under the same id, and not again. */
  readonly replayed: boolean
}

/** What did not fit. Nothing was taken. */
export interface QuotaRefusal extends QuotaUse {
  readonly ok: false
  readonly requested: number
  /** How long until this amount fits, if nobody else takes from the quota. Missing if no wait helps: the amount is above the limit, or a stock is sold out. */
  readonly retryAfterMs?: number
}

/** What `quota.tryTake` returns. */
export type QuotaAttempt = (QuotaTake & { readonly ok: true }) | QuotaRefusal

export interface QuotaRefund {
  /** An earlier call has refunded it, and this one did nothing. */
  readonly replayed: boolean
}

/** Which subjects `quota.verify` checks. */
export interface QuotaFilter {
  /** Only this subject. Default: all. */
  readonly subject?: string | undefined
}

/** A counter that does not agree with its entries. */
export interface QuotaDrift {
  readonly subject: string
  readonly used: number
  readonly held: number
  /** What of `used` should have an entry, and what the entries say. */
  readonly listed: number
  readonly entriesTaken: number
  readonly entriesHeld: number
}

/** See `quota_told`. Times in microseconds since 1970. */
export interface ToldRow {
  readonly used: number
  readonly held: number
  readonly startsAt: number | null
  readonly endsAt: number | null
}

export interface ToldTake {
  readonly state: 'taken' | 'known' | 'refused' | 'mismatch'
  readonly used: number
  readonly held: number
  readonly freeInUs: number | null
  readonly entry: QuotaEntryState | null
  readonly expiresAt: number | null
}

/** See `quota_take`. */
export interface ToldTakes {
  readonly state: 'done' | 'busy'
  readonly row: ToldRow
  readonly takes: readonly ToldTake[]
}

/** See `quota_resolve`. */
export interface ToldResolution {
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
  readonly asked: number
  readonly amount: number
  readonly row: ToldRow | null
  readonly freeInUs: number | null
}

export function readUse(row: ToldRow | null, limit: number): QuotaUse {
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

/** An id that belongs to something else. */
export function quotaMismatch(quota: string, id: string): FingerprintMismatchError {
  const message = `"${id}" of quota "${quota}" was used before in another way: for another amount or subject, or as another of these: a take, a reservation, a claim under a lease. Nothing was taken. Use a new id.`
  return new FingerprintMismatchError(`"${id}" of quota "${quota}"`, id, { message })
}
