import { BusyError, type DibsError } from '../../errors.js'
import { SHORT_RETRY_MS } from '../../postgres/or-busy.js'
import type { Ending } from '../claim-call.js'
import type { AcquireClaim, ClaimOf, ItemKind, OutcomeKind } from './acquire-claims.js'
import type { AcquireItem, ItemFields, ItemResult } from './acquire-result.js'

export type ItemClaim<K extends ItemKind = ItemKind> = ClaimOf<K>

type GrantOf<K extends ItemKind> = ClaimOf<K> extends AcquireClaim<infer Grant> ? Grant : never

/** A granted claim as sent to the SQL functions `acquire_end` and `acquire_renew`, which do something else for each kind. */
export interface EndItem {
  readonly kind: 'claim' | 'lock' | 'hold' | 'take' | 'rate'
  readonly [field: string]: unknown
}

/** The call that an item belongs to. */
export interface ItemContext {
  /** The time for which the slots of a cron expression are sent. */
  readonly nowMs: number
  readonly isLeased: boolean
  /** A random id. Each claim has its own, the same whenever the call is sent. */
  readonly id: string
}

/** The part of `acquire` that differs between the kinds of claims: one object for each kind. */
export interface AcquireKind<K extends ItemKind> {
  readonly type: abstract new (...args: never[]) => ItemClaim<K>
  /** The message for two claims with the same name in one list. */
  readonly duplicate: string
  /** True if the claim stores the outcome of the function. */
  readonly storesOutcome: K extends OutcomeKind ? true : false
  /** True if a fence shows whether the claim is still held. */
  readonly hasFence: boolean
  /** False if a request that is repeated after its answer was lost would be granted a second time. */
  readonly recognizesRepeat: boolean

  /** Distinguishes claims of this kind, and sorts them. */
  nameOf(claim: ItemClaim<K>): string
  /** Describes the claim for messages. */
  describe(claim: ItemClaim<K>): string
  /** True if the claim stays taken when the function fails. */
  keepsFailure(claim: ItemClaim<K>): boolean
  /** If the claim comes first, calls of this process with the same key run one after the other. Undefined: the call never waits for the claim. */
  queueKey(claim: ItemClaim<K>): string | undefined
  /** The lock whose waiters are notified when a leased call ends. */
  lockOf(claim: ItemClaim<K>): string | undefined

  /** The claim as sent to the SQL function `acquire_one`. */
  item(claim: ItemClaim<K>, context: ItemContext): ItemFields[K]
  /** The error for a claim that was refused. `item` may be that of an earlier call. */
  explain(item: AcquireItem<K>, result: ItemResult, waitedMs: number): DibsError
  /** The grant for the function. */
  grant(claim: ItemClaim<K>, result: ItemResult): GrantOf<K>
  /** The remaining time of the claim's lease, if the database has returned it. */
  leftMs(result: ItemResult): number | null | undefined
  /** How a claim in a transaction ends. Undefined: the end of the transaction suffices. */
  endJoined(claim: ItemClaim<K>, result: ItemResult, ending: Ending): EndItem | undefined
  /** How a claim under a lease ends. Undefined: there is nothing to end. */
  endLeased(claim: ItemClaim<K>, result: ItemResult, ending: Ending): EndItem | undefined
}

export const busyWith = (subject: string, waitedMs: number): BusyError =>
  new BusyError(subject, Math.max(1, waitedMs), SHORT_RETRY_MS)
