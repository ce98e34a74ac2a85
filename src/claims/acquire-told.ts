import {
  type AcquireFailure,
  AcquireRefusedError,
  AmbiguousOutcomeError,
  BusyError,
  type DibsError,
  FingerprintMismatchError,
  HoldEndedError,
  LockHeldError,
  NeverFitsError,
  QuotaExceededError,
  RateLimitedError,
  SingletonConflictError,
} from '../errors.js'
import { addressOf, nameScope, singletonOf } from '../postgres/key.js'
import { restoreFailure } from '../postgres/stored-failure.js'
import { dateFromMicros } from '../postgres/text-values.js'
import { readHeld } from '../postgres/this-process.js'
import { quotaMismatch, readUse, type ToldRow, type ToldTake } from './quota-told.js'
import { resetsAtOf } from './rate-spec.js'
import type { ToldClaim } from './told-claim.js'

/** The result of the SQL function `acquire`. */
export interface ToldAcquire {
  /** `once`: the idempotency key has its outcome, or another caller works on it. No other claim was looked at. */
  readonly state: 'once' | 'refused' | 'granted'
  readonly isFinal: boolean
  readonly once: ToldClaim | null
  /** In the order of the items in the request. */
  readonly results: readonly ToldOne[]
  readonly tookMs: number
}

/** The result of one claim. Each kind uses some of the fields. */
export interface ToldOne {
  readonly granted: boolean
  readonly isBusy: boolean
  readonly isFinal: boolean
  readonly state: string
  /** The time of the database, if the slots of a cron expression do not reach it. */
  readonly now?: number
  readonly claim?: ToldClaim
  readonly slot?: { readonly key: string; readonly startsAt: number; readonly endsAt: number }
  readonly keepMs?: number
  readonly by?: string | null
  readonly since?: number | null
  readonly id?: string | null
  readonly row?: ToldRow
  readonly take?: ToldTake & ToldRate
  readonly lock?: {
    readonly holder?: string
    readonly fence: number
    readonly leftMs: number | null
    readonly leaseUntil?: number | null
  }
}

interface ToldRate {
  readonly remaining: number
  readonly retryAfterUs?: number
  readonly resetUs: number
}

/** A requested claim, as sent to the database and as stored with a refusal. */
export interface AcquireItem {
  readonly kind: 'singleton' | 'quota' | 'rate' | 'lock'
  readonly index: number
  readonly scope?: string
  readonly name?: string
  readonly subject?: string
  readonly limit?: number
  readonly amount?: number
  readonly cost?: number
}

/** The stored error name of a slot that was undone and is still kept. */
export const VOID = 'SlotVoided'

/** Suggested retry delay while another transaction is about to decide. */
const RETRY_MS = 100

/** The errors that an unchanged call would get again. */
const mistakes = [FingerprintMismatchError, NeverFitsError, HoldEndedError]

/** Collects the reason of each refused claim in one error. */
export function readRefusal(
  items: readonly AcquireItem[],
  told: Pick<ToldAcquire, 'results' | 'isFinal'>,
  waitedMs: number,
  replayed: boolean,
): AcquireRefusedError {
  const failures = items.flatMap((item, n): AcquireFailure[] => {
    const one = told.results[n]
    if (!one || one.granted) return []
    return [{ index: item.index, kind: item.kind, error: explain(item, one, waitedMs) }]
  })
  const isFinal = told.isFinal || failures.some(({ error }) => mistakes.some((type) => error instanceof type))
  return new AcquireRefusedError(
    failures.sort((a, b) => a.index - b.index),
    isFinal,
    replayed,
  )
}

function explain(item: AcquireItem, one: ToldOne, waitedMs: number): DibsError {
  const { name = '', subject = '', limit = 0, amount = 0, cost = 0 } = item
  if (item.kind === 'singleton') return explainSlot(`${item.scope}`, one, waitedMs)
  if (item.kind === 'lock') return explainLock(name, one.lock)
  if (one.isBusy)
    return new BusyError(
      `a turn at ${item.kind === 'quota' ? 'quota' : 'rate limit'} "${name}" of "${subject}"`,
      Math.max(1, waitedMs),
      RETRY_MS,
    )
  if (item.kind === 'rate')
    return new RateLimitedError({
      rateLimit: name,
      subject,
      limit,
      cost,
      remaining: Number(one.take?.remaining),
      retryAfterMs: Math.max(1, Math.ceil(Number(one.take?.retryAfterUs) / 1_000)),
      resetsAt: resetsAtOf(Number(one.take?.resetUs)),
    })
  if (one.state === 'mismatch') return quotaMismatch(name, `${one.id}`)
  if (one.state === 'ended')
    return new HoldEndedError(name, `${one.id}`, one.take?.entry ?? 'unknown', 'taken again')
  if (amount > limit) return new NeverFitsError(`quota "${name}" of "${subject}"`, amount, limit)
  const freeInUs = one.take?.freeInUs ?? null
  return new QuotaExceededError({
    ...readUse(one.row ?? null, limit),
    quota: name,
    subject,
    requested: amount,
    retryAfterMs: freeInUs === null ? undefined : Math.max(1, Math.ceil(freeInUs / 1_000)),
  })
}

const explainLock = (name: string, lock: ToldOne['lock']): LockHeldError =>
  new LockHeldError(name, lock?.leftMs ?? RETRY_MS, readHeld(lock ?? {}))

function explainSlot(scope: string, one: ToldOne, waitedMs: number): DibsError {
  const { claim, slot, by, since } = one
  const subject = `slot ${slot?.key} ${nameScope(scope)}`
  if (one.isBusy || !claim || !slot)
    return new BusyError(`another transaction that claims ${subject}`, Math.max(1, waitedMs), RETRY_MS)
  if (one.state === 'ambiguous')
    return new AmbiguousOutcomeError(subject, claim.id, claim.attempt, {
      address: addressOf(scope, slot.key),
    })
  const isActive = claim.status === 'active'
  const failure = claim.status === 'failed' ? (claim.outcome as { readonly name?: string }) : undefined
  return new SingletonConflictError({
    scope: singletonOf(scope) ?? scope,
    slot: {
      key: slot.key,
      startsAt: dateFromMicros(String(slot.startsAt)),
      endsAt: dateFromMicros(String(slot.endsAt)),
    },
    id: claim.id,
    holder: by ?? undefined,
    since: since ? dateFromMicros(String(since)) : undefined,
    state: failure?.name === VOID ? 'void' : claim.status,
    result: isActive && claim.hasOutcome ? claim.outcome : undefined,
    leaseUntil: readHeld(claim).leaseUntil,
    retryAfterMs: claim.leftMs ?? undefined,
    cause: failure && failure.name !== VOID ? restoreFailure(failure) : undefined,
  })
}

/** Restores a refusal that was stored as the outcome of an idempotency key. Returns undefined if the outcome is another. */
export function readStoredRefusal({ status, outcome }: ToldClaim): AcquireRefusedError | undefined {
  const stored = outcome as
    | { readonly name?: string; readonly fields?: { items?: AcquireItem[]; results?: ToldOne[] } }
    | undefined
  // An error of this name that a function threw has no items.
  const { items, results } = stored?.fields ?? {}
  if (status !== 'failed' || stored?.name !== 'AcquireRefusedError' || !items || !results) return undefined
  return readRefusal(items, { results, isFinal: true }, 0, true)
}
