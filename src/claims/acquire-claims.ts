import { randomUUID } from 'node:crypto'
import { InvalidInputError } from '../errors.js'
import { checkDuration } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import { checkKey, scopeOfSingleton } from '../postgres/key.js'
import { showGiven } from '../postgres/name-given.js'
import { THIS_PROCESS } from '../postgres/this-process.js'
import { explainGivingUp } from './once-call.js'
import { type LeasedSpec, readLease, readScope } from './once-spec.js'
import {
  type CalendarUnit,
  type CronSlots,
  type PeriodAt,
  periodNames,
  type RequiredPeriod,
  readPeriod,
} from './period.js'
import type { QuotaUse } from './quota-told.js'

/** A claim that `dibs.acquire` can make together with others. The function gets a `Grant` for it. */
export interface AcquireClaim<Grant> {
  readonly kind: 'once' | 'singleton' | 'quota' | 'rate' | 'lock'
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
  /** The id for a refund. Present if one was given, or if the quota has a ledger. */
  readonly id?: string
}

export interface LockGrant {
  readonly name: string
  /** Grows with each holder. Store it with your writes, so that a late write of an older holder can be refused. */
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

export class OnceClaim implements AcquireClaim<OnceGrant> {
  readonly kind = 'once'
  declare readonly grant?: OnceGrant
  readonly spec: OnceClaimSpec

  constructor(spec: OnceClaimSpec) {
    checkOptions(spec, onceNames)
    const { maxAttempts, onAmbiguous } = spec
    readLease({ maxAttempts, onAmbiguous })
    if (typeof onAmbiguous === 'function')
      throw new InvalidInputError('onAmbiguous', "must be 'retry' or 'hold' where several things are claimed")
    this.spec = spec
  }
}

const onceNames = [
  'scope',
  'key',
  'fingerprint',
  'waitMs',
  'keepMs',
  'isTerminal',
  'requestId',
  'maxAttempts',
  'onAmbiguous',
]

/** The spec of `dibs.singleton` and `claim.singleton`. `per` or `perMs` is required. */
export type SingletonClaimSpec = RequiredPeriod<CalendarUnit | CronSlots> & SingletonFields

export interface SingletonFields {
  /** The name of the work that is done once in each period: `'daily-report'`, or parts: `['prayer', child]`. */
  readonly scope: string | readonly (string | number | bigint)[]
  /** The name of the caller, shown to callers that come too late. Default: this host and process. */
  readonly holder?: string | undefined
  /** The action if the function fails: `free` the slot for another try (default), or `keep` it. */
  readonly ifFailed?: 'free' | 'keep' | undefined
  /** How long a slot is kept after its period. Default 7 days. */
  readonly keepMs?: number | undefined
  /** Leased only: after this many attempts without a recorded outcome, the slot fails. Default 5. */
  readonly maxAttempts?: number | undefined
}

export const singletonNames = ['scope', ...periodNames, 'holder', 'ifFailed', 'keepMs', 'maxAttempts']
const WEEK_MS = 7 * 24 * 3_600_000

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
    checkOptions(spec, singletonNames)
    const { holder = THIS_PROCESS, ifFailed = 'free', keepMs = WEEK_MS, maxAttempts = 5 } = spec
    this.name = readScope(spec.scope)
    this.scope = scopeOfSingleton(this.name)
    const period = readPeriod(spec, { hasCron: true })
    if (!period) throw new InvalidInputError('per', 'must be given, or `perMs`')
    this.period = period
    this.holder = checkKey('holder', holder)
    if (ifFailed !== 'free' && ifFailed !== 'keep')
      throw new InvalidInputError('ifFailed', "must be 'free' or 'keep'")
    this.keeps = ifFailed === 'keep'
    this.keepMs = checkDuration('keepMs', keepMs)
    if (!(Number.isSafeInteger(maxAttempts) && maxAttempts >= 1 && maxAttempts <= 1_000))
      throw new InvalidInputError(
        'maxAttempts',
        `must be a whole number from 1 to 1000, not ${showGiven(maxAttempts)}`,
      )
    this.maxAttempts = maxAttempts
  }

  /** The claim as sent to the database. For a cron expression, it has the slots around `nowMs`. */
  item(nowMs: number): object {
    return {
      scope: this.scope,
      per: this.period(nowMs),
      id: randomUUID(),
      by: this.holder,
      keepMs: this.keepMs,
      // A slot that is kept after a failure is also kept when nobody knows whether the work failed.
      hold: this.keeps,
      maxLost: this.maxAttempts,
      gaveUp: JSON.parse(explainGivingUp(this.maxAttempts)),
    }
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

  item(): object {
    const { name, subject, limit, amount } = this
    const { ledger: _, ...fields } = this.fields
    return { name, subject, limit, amount, ...fields }
  }
}

export class LockClaim implements AcquireClaim<LockGrant> {
  readonly kind = 'lock'
  declare readonly grant?: LockGrant
  readonly name: string

  constructor(name: string) {
    this.name = checkKey('name', name)
  }

  item(): object {
    return { name: this.name }
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
  /** An idempotency key: see `dibs.once`. At most one in a list. If the key has its outcome, no other claim is looked at. */
  once: (spec: OnceClaimSpec): OnceClaim => new OnceClaim(spec),
  /** A slot, taken by one caller in each period: see `dibs.singleton`. */
  singleton: (spec: SingletonClaimSpec): SingletonClaim => new SingletonClaim(spec),
  /** A lock, held until the transaction ends, or under the lease. A lock that is held elsewhere is refused. The call never waits for it. */
  lock: (name: string): LockClaim => new LockClaim(name),
} as const

export type AnyClaim = OnceClaim | SingletonClaim | QuotaClaim | RateClaim | LockClaim

export interface RateGrant {
  readonly remaining: number
  /** When the subject is as if it had never taken anything, by this process's clock. */
  readonly resetsAt: Date
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

  item(): object {
    const { name, subject, limit, cost, fields } = this
    return { name, subject, limit, cost, ...fields }
  }
}

/** The name that distinguishes claims of one kind. */
function nameOf(claim: AnyClaim): string {
  if (claim.kind === 'once') return ''
  if (claim.kind === 'singleton') return claim.scope
  return claim.kind === 'lock' ? claim.name : JSON.stringify([claim.name, claim.subject])
}

function explainTwice({ kind }: AnyClaim): string {
  if (kind === 'once') return 'is a second idempotency key; there can be one'
  return kind === 'quota' || kind === 'rate'
    ? 'is in the list already: claim the sum'
    : 'is in the list already'
}

/** Sorts claims by kind and then by name, in one order for all callers. */
export function sortClaims(
  given: readonly AnyClaim[],
): { readonly claim: AnyClaim; readonly index: number }[] {
  const order = ['once', 'singleton', 'quota', 'rate', 'lock']
  return given
    .map((claim, index) => ({ claim, index }))
    .sort(
      (a, b) =>
        order.indexOf(a.claim.kind) - order.indexOf(b.claim.kind) ||
        Buffer.compare(Buffer.from(nameOf(a.claim)), Buffer.from(nameOf(b.claim))) ||
        a.index - b.index,
    )
}

/** Refuses claims that cannot be made together. */
export function checkClaims(given: readonly AnyClaim[]): void {
  if (!Array.isArray(given) || given.length === 0 || given.length > MAX_CLAIMS)
    throw new InvalidInputError('claims', `must be an array of 1 to ${MAX_CLAIMS} claims`)
  const seen = new Set<string>()
  for (const [index, claim] of given.entries()) {
    if (!isClaim(claim))
      throw new InvalidInputError(
        `claims[${index}]`,
        'must be made by claim.once, claim.singleton, claim.lock, quota.claim or rateLimit.claim',
      )
    const name = JSON.stringify([claim.kind, nameOf(claim)])
    if (seen.has(name)) throw new InvalidInputError(`claims[${index}]`, explainTwice(claim))
    seen.add(name)
  }
}

const MAX_CLAIMS = 50

const isClaim = (claim: unknown): boolean =>
  [OnceClaim, SingletonClaim, QuotaClaim, RateClaim, LockClaim].some((type) => claim instanceof type)
