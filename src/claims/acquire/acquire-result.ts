import type { ClaimResult } from '../claim-result.js'
import type { QuotaRow, TakeResult } from '../quota/quota-result.js'
import type { ItemKind } from './acquire-claims.js'

/** The result of the SQL function `acquire`. */
export interface AcquireResult {
  /** `once`: the idempotency key has its outcome, or another caller works on it. The database has tried no other claim. */
  readonly state: 'once' | 'refused' | 'granted'
  readonly isFinal: boolean
  readonly once: ClaimResult | null
  /** In the order of the items in the request. */
  readonly results: readonly ItemResult[]
  readonly tookMs: number
}

/** The result of one claim. Each kind uses some of the fields. */
export interface ItemResult {
  readonly granted: boolean
  readonly isBusy: boolean
  readonly isFinal: boolean
  readonly state: string
  /** The time of the database, if the slots of a cron expression do not reach it. */
  readonly now?: number
  readonly claim?: ClaimResult
  readonly slot?: { readonly key: string; readonly startsAt: number; readonly endsAt: number }
  readonly keepMs?: number
  readonly by?: string | null
  readonly since?: number | null
  readonly id?: string | null
  readonly row?: QuotaRow
  readonly take?: TakeResult & RateResult
  readonly lock?: {
    readonly holder?: string
    readonly fence: number
    readonly leftMs: number | null
    readonly leaseUntil?: number | null
  }
}

interface RateResult {
  readonly remaining: number
  readonly retryAfterUs?: number
  readonly resetUs: number
}

/** The fields of an item from which a refusal is explained, by kind. */
export interface ItemFields {
  readonly singleton: { readonly scope: string }
  readonly quota: Use & { readonly amount: number }
  readonly rate: Use & { readonly cost: number }
  readonly lock: { readonly name: string }
}

interface Use {
  readonly name: string
  readonly subject: string
  readonly limit: number
}

/** A requested claim, as sent to the database and as stored with a refusal. */
export type AcquireItem<K extends ItemKind = ItemKind> = {
  readonly kind: K
  /** The index of the claim in the caller's list. */
  readonly index: number
} & ItemFields[K]
