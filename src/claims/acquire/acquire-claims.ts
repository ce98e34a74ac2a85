import { type AcquireFailure, InvalidInputError } from '../../errors.js'
import { MAX_TIMER_MS } from '../../options/max-timer-ms.js'
import { duration } from '../../options/number-options.js'
import { checked, required, unchecked } from '../../options/option.js'
import { optionTable, type ReadOptions } from '../../options/option-table.js'
import { oneOf } from '../../options/value-options.js'
import { checkKey, scopeOfSingleton } from '../../postgres/key.js'
import { THIS_PROCESS } from '../../postgres/this-process.js'
import { commonFields, type LeasedSpec, leaseFields } from '../once/once-spec.js'
import {
  type CalendarUnit,
  type CronSlots,
  type PeriodAt,
  type PeriodOptions,
  type RequiredPeriod,
  readPeriod,
  slotFields,
} from '../period.js'
import type { QuotaUse } from '../quota/quota-result.js'
import { readScope, type Scope } from '../read-scope.js'

/** The kinds of claims that `dibs.acquire` can make. */
export type ClaimKind = AcquireFailure['kind']

/** A claim that `dibs.acquire` can make together with others. The function gets a `Grant` for it. */
export interface AcquireClaim<Grant> {
  readonly kind: ClaimKind
  /** For the compiler only. The field does not exist at run time. */
  readonly grant?: Grant
}

/** The grant of `claim.once`, as the function gets it. */
export interface OnceGrant {
  /** The id of the claim, the same in every attempt. */
  readonly id: string
  readonly fence: number
  readonly attempt: number
}

/** The period that was claimed. */
export interface Slot {
  /** The name of the period: `day:2026-11-16`. */
  readonly key: string
  readonly startsAt: Date
  readonly endsAt: Date
  /** The id of the claim. Identifies this use of the slot for `dibs.voidSlot`. */
  readonly id: string
  readonly fence: number
}

export interface QuotaGrant extends QuotaUse {
  /** True if the amount was taken before under the same id, and not again. */
  readonly replayed: boolean
  /** The id for a refund. Present if the caller has named one, or if the quota has a ledger. */
  readonly id?: string
}

export interface RateGrant {
  readonly remaining: number
  /** When the subject is as if it had never taken anything, by this process's clock. */
  readonly resetsAt: Date
}

export interface LockGrant {
  readonly name: string
  /** Grows with each holder. Store it with your writes, so that a late write of an older holder can be rejected. */
  readonly fence: number
}

/** The grants that the function gets, in the order of the claims. */
export type Grants<C extends readonly AcquireClaim<unknown>[]> = {
  -readonly [I in keyof C]: C[I] extends AcquireClaim<infer Grant> ? Grant : never
}

export type OnceClaimSpec = Omit<LeasedSpec, 'mode' | 'leaseMs' | 'onAmbiguous' | 'result'> & {
  /** The action when an earlier attempt has no recorded outcome. Only for leased claims. Default `retry`. */
  readonly onAmbiguous?: 'retry' | 'hold' | undefined
}

export const onceClaimSpec = optionTable<OnceClaimSpec>()('claim.once', {
  scope: required(unchecked<Scope>()), // by `readScope`
  key: required(checked<string>(checkKey)),
  fingerprint: unchecked<unknown>(), // by `fingerprintOf`
  waitMs: duration({ min: 0, max: MAX_TIMER_MS }),
  ...commonFields,
  maxAttempts: leaseFields.maxAttempts,
  onAmbiguous: oneOf(['retry', 'hold'], { default: 'retry' }),
})

export class OnceClaim implements AcquireClaim<OnceGrant> {
  readonly kind = 'once'
  declare readonly grant?: OnceGrant
  readonly spec: ReadOptions<OnceClaimSpec, typeof onceClaimSpec.fields>

  constructor(spec: OnceClaimSpec) {
    this.spec = onceClaimSpec.read(spec)
  }
}

/** The spec of `dibs.singleton` and `claim.singleton`. `per` or `perMs` is required. */
export type SingletonClaimSpec = RequiredPeriod<CalendarUnit | CronSlots> & SingletonFields

export interface SingletonFields {
  /** The name of the work that is done once in each period: `'daily-report'`, or parts: `['prayer', child]`. */
  readonly scope: Scope
  /** The name of the caller, shown to callers that come too late. Default: this host and process. */
  readonly holder?: string | undefined
  /** The action if the function fails: `free` the slot for another try (default), or `keep` it. */
  readonly ifFailed?: 'free' | 'keep' | undefined
  /** How long a slot is kept after its period. Default 7 days. */
  readonly keepMs?: number | undefined
  /** Leased only: after this many attempts without a recorded outcome, the slot fails. Default 5. */
  readonly maxAttempts?: number | undefined
}

const WEEK_MS = 7 * 24 * 3_600_000

export const singletonClaimSpec = optionTable<PeriodOptions<CalendarUnit | CronSlots> & SingletonFields>()(
  'claim.singleton',
  {
    scope: required(unchecked<Scope>()), // by `readScope`
    ...slotFields,
    holder: checked(checkKey, { default: THIS_PROCESS }),
    ifFailed: oneOf(['free', 'keep'], { default: 'free' }),
    keepMs: duration({ default: WEEK_MS }),
    maxAttempts: leaseFields.maxAttempts,
  },
)

export class SingletonClaim implements AcquireClaim<Slot> {
  readonly kind = 'singleton'
  declare readonly grant?: Slot
  /** The scope as the caller named it. */
  readonly name: string
  readonly scope: string
  readonly holder: string
  readonly keeps: boolean
  readonly keepMs: number
  readonly maxAttempts: number
  readonly period: PeriodAt

  constructor(spec: SingletonClaimSpec) {
    const { scope, holder, ifFailed, keepMs, maxAttempts, ...period } = singletonClaimSpec.read(spec)
    this.name = readScope(scope)
    this.scope = scopeOfSingleton(this.name)
    const periodAt = readPeriod(period)
    if (!periodAt) throw new InvalidInputError('per', 'must be given, or `perMs`')
    this.period = periodAt
    this.holder = holder
    this.keeps = ifFailed === 'keep'
    this.keepMs = keepMs
    this.maxAttempts = maxAttempts
  }
}

/** A claim on a quota. Made by `quota.claim`. */
export class QuotaClaim implements AcquireClaim<QuotaGrant> {
  readonly kind = 'quota'
  declare readonly grant?: QuotaGrant

  constructor(
    readonly name: string,
    readonly subject: string,
    readonly limit: number,
    readonly amount: number,
    readonly fields: {
      readonly per?: unknown
      readonly id?: string | undefined
      /** True: each call that takes the claim gives it an id of its own. */
      readonly ledger: boolean
      readonly keepMs: number | null
    },
  ) {}
}

/** A claim on a rate limit. Made by `rateLimit.claim`. */
export class RateClaim implements AcquireClaim<RateGrant> {
  readonly kind = 'rate'
  declare readonly grant?: RateGrant

  constructor(
    readonly name: string,
    readonly subject: string,
    readonly limit: number,
    readonly cost: number,
    readonly fields: {
      readonly rule: string
      readonly algorithm: string
      readonly perUs: number
      readonly burst: number
    },
  ) {}
}

export class LockClaim implements AcquireClaim<LockGrant> {
  readonly kind = 'lock'
  declare readonly grant?: LockGrant
  readonly name: string

  constructor(name: string) {
    this.name = checkKey('name', name)
  }
}

/**
 * Makes the claims for `dibs.acquire`. Quotas and rate limits make their own: `points.claim(child, 10)`.
 *
 * @example
 * await dibs.acquire(
 *   [claim.once({ scope: 'orders', key }), claim.singleton({ scope: ['order', tenant], per: 'day' }), claim.lock('till-7')],
 *   async (tx, [order, slot, till]) => {
 *     await tx.query('insert into orders (id, day, fence) values ($1, $2, $3)', [order.id, slot.key, till.fence])
 *   },
 * )
 */
export const claim = {
  /** An idempotency key: see `dibs.once`. At most one in a list. If the key has its outcome, the other claims are not made. */
  once: (spec: OnceClaimSpec): OnceClaim => new OnceClaim(spec),
  /** A slot, taken by one caller in each period: see `dibs.singleton`. */
  singleton: (spec: SingletonClaimSpec): SingletonClaim => new SingletonClaim(spec),
  /** A lock, held until the transaction ends, or under the lease. The call never waits: if another caller holds the lock, `acquire` fails. */
  lock: (name: string): LockClaim => new LockClaim(name),
} as const

/** The classes of the claims, by kind. `acquire-kinds.ts` has what `acquire` does with each kind. */
interface ClaimClasses {
  readonly once: OnceClaim
  readonly singleton: SingletonClaim
  readonly quota: QuotaClaim
  readonly rate: RateClaim
  readonly lock: LockClaim
}

export type ClaimOf<K extends ClaimKind> = ClaimClasses[K]

export type AnyClaim = ClaimOf<ClaimKind>

/** Every kind except the idempotency key, of which a call has at most one, and which the database claims first. */
export type ItemKind = Exclude<ClaimKind, 'once'>

/** The kinds whose claims store the outcome of the function. */
export type OutcomeKind = 'once' | 'singleton'
