import { type AcquireFailure, AcquireRefusedError, DibsError, InvalidInputError } from '../errors.js'
import { hintWanted } from '../locks/hint-wanted.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkFunction } from '../postgres/check-function.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import type { Tx } from '../postgres/executor.js'
import type { Stored } from '../postgres/json.js'
import { showGiven } from '../postgres/name-given.js'
import type { Transaction } from '../postgres/transaction-types.js'
import { AcquireCall, type CalledAs } from './acquire-call.js'
import type { AcquireClaim, AnyClaim, Grants, LockClaim, QuotaClaim, RateClaim } from './acquire-claims.js'
import { acquireAlone, acquireInside } from './acquire-joined.js'
import { type AcquireLease, acquireLeased } from './acquire-leased.js'

type Claims = readonly AcquireClaim<unknown>[]

/** The result of `dibs.acquire`. With an idempotency key or a slot, the result is stored, and callers get it as JSON returns it. */
export type AcquireAnswer<C extends Claims, T> = C extends readonly (QuotaClaim | RateClaim | LockClaim)[]
  ? T
  : Stored<T>

interface Common {
  /**
   * How long to wait for other transactions that are about to decide about a claim. Default 500; 5,000 for a slot that comes first in a transaction. An
   * idempotency key has its own `waitMs`.
   */
  readonly waitMs?: number | undefined
}

/** For work that is entirely in this database: the claims and the writes of the function commit together. */
export interface JoinedAcquire extends Common {
  readonly mode?: 'joined' | undefined
  /** Your own transaction. Without one, `acquire` makes one. */
  readonly tx?: Tx | undefined
  /** The deadline of the transaction that `acquire` makes. Default 30,000. */
  readonly deadlineMs?: number | undefined
}

/** For work outside of this database: the claims commit first and are held by a lease. */
export interface LeasedAcquire extends Common {
  readonly mode: 'leased'
  /** A holder without a sign of life for this long counts as dead. The lease is renewed while the function runs. Default 30,000. */
  readonly leaseMs?: number | undefined
}

/** The type of `dibs.acquire`, with overloads for each mode. */
export interface Acquire {
  /** Runs `fn` in a transaction of its own. */
  <const C extends Claims, T>(
    claims: C,
    fn: (tx: Transaction, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireAnswer<C, T>>
  /** Runs `fn` in a transaction of its own. */
  <const C extends Claims, T>(
    claims: C,
    options: (JoinedAcquire & { readonly tx?: undefined }) | undefined,
    fn: (tx: Transaction, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireAnswer<C, T>>
  /** Runs `fn` in your transaction. */
  <const C extends Claims, T, X extends Tx>(
    claims: C,
    options: JoinedAcquire & { readonly tx: X },
    fn: (tx: X, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireAnswer<C, T>>
  /** Runs `fn` under a lease. */
  <const C extends Claims, T>(
    claims: C,
    options: LeasedAcquire,
    fn: (lease: AcquireLease, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireAnswer<C, T>>
}

/** Result of `dibs.tryAcquire`. */
export type AcquireAttempt<T> =
  | { readonly ok: true; readonly value: T }
  | {
      readonly ok: false
      /** Each claim that was refused, with the reason. */
      readonly failures: readonly AcquireFailure[]
      /** True if a repeated call would end the same way. With an idempotency key, the refusal is then its outcome. */
      readonly isFinal: boolean
      /** True if the refusal is the outcome of an earlier call with the same key. */
      readonly replayed: boolean
      /** How long until all claims may fit. Missing if one of them does not free itself. */
      readonly retryAfterMs?: number
    }

/** The type of `dibs.tryAcquire`, with overloads for each mode. */
export interface TryAcquire {
  /** Runs `fn` in a transaction of its own. */
  <const C extends Claims, T>(
    claims: C,
    fn: (tx: Transaction, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireAttempt<AcquireAnswer<C, T>>>
  /** Runs `fn` in a transaction of its own. */
  <const C extends Claims, T>(
    claims: C,
    options: (JoinedAcquire & { readonly tx?: undefined }) | undefined,
    fn: (tx: Transaction, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireAttempt<AcquireAnswer<C, T>>>
  /** Runs `fn` in your transaction. */
  <const C extends Claims, T, X extends Tx>(
    claims: C,
    options: JoinedAcquire & { readonly tx: X },
    fn: (tx: X, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireAttempt<AcquireAnswer<C, T>>>
  /** Runs `fn` under a lease. */
  <const C extends Claims, T>(
    claims: C,
    options: LeasedAcquire,
    fn: (lease: AcquireLease, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireAttempt<AcquireAnswer<C, T>>>
}

type AcquireFunction = (handle: never, grants: unknown[]) => Promise<unknown>

type Given = [AcquireFunction] | [JoinedAcquire | LeasedAcquire | undefined, AcquireFunction]

const readGiven = (given: Given): [JoinedAcquire | LeasedAcquire, AcquireFunction] =>
  given.length === 1 ? [{}, given[0]] : [given[0] === undefined ? {} : given[0], given[1]]

/** See `Dibs.acquire`. */
export function acquireOn(database: Database): Acquire {
  const run = async (claims: readonly AnyClaim[], ...given: Given): Promise<unknown> =>
    prepareAcquire(database, claims, ...readGiven(given), 'dibs.acquire').run()
  return run as Acquire
}

/** See `Dibs.tryAcquire`. */
export function tryAcquireOn(database: Database): TryAcquire {
  const run = async (claims: readonly AnyClaim[], ...given: Given): Promise<AcquireAttempt<unknown>> => {
    const prepared = prepareAcquire(database, claims, ...readGiven(given), 'dibs.tryAcquire')
    const attempt = await attemptAcquire(prepared)
    if (attempt.ok) return attempt
    const { refusal } = attempt
    if (refusal instanceof AcquireRefusedError) {
      const { failures, isFinal, replayed, retryAfterMs } = refusal
      return {
        ok: false,
        failures,
        isFinal,
        replayed,
        ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
      }
    }
    // Another caller works on the idempotency key, or on the slot that comes first.
    const { index, kind } = prepared.call.first
    const failures: AcquireFailure[] = [{ index, kind, error: refusal }]
    return { ok: false, failures, isFinal: false, replayed: false, retryAfterMs: refusal.retryAfterMs ?? 0 }
  }
  return run as TryAcquire
}

/** The options of each mode. */
const names = { joined: ['mode', 'waitMs', 'tx', 'deadlineMs'], leased: ['mode', 'waitMs', 'leaseMs'] }

/** Refuses options that do not belong to the given mode. `others` are the options of both modes. */
export function checkModeOptions(options: { readonly mode?: unknown }, others: readonly string[] = []): void {
  const mode: unknown = options?.mode ?? 'joined'
  if (mode !== 'joined' && mode !== 'leased')
    throw new InvalidInputError('mode', `must be 'joined' or 'leased', not ${showGiven(mode)}`)
  checkOptions(options, [...others, ...names[mode]])
}

/** A call with checked arguments, and the function that starts it. */
interface PreparedAcquire {
  readonly call: AcquireCall
  readonly run: () => Promise<unknown>
}

/** Runs a call. Returns a refusal as a result instead of an error. Errors of the function are thrown. */
export async function attemptAcquire({
  call,
  run,
}: PreparedAcquire): Promise<{ ok: true; value: unknown } | { ok: false; refusal: DibsError }> {
  try {
    return { ok: true, value: await run() }
  } catch (error) {
    if (error === call.refusal && error instanceof DibsError) return { ok: false, refusal: error }
    throw error
  }
}

/** Checks the arguments of one call. */
export function prepareAcquire(
  database: Database,
  claims: readonly AnyClaim[],
  options: JoinedAcquire | LeasedAcquire,
  fn: AcquireFunction,
  calledAs: CalledAs,
): PreparedAcquire {
  checkModeOptions(options)
  checkFunction('fn', fn)
  const { waitMs = 500 } = options
  checkDuration('waitMs', waitMs, 0, MAX_TIMER_MS)
  const work = fn as (handle: unknown, grants: unknown[]) => Promise<unknown>
  if (options.mode === 'leased') {
    const leaseMs = checkDuration('leaseMs', options.leaseMs ?? 30_000, 100, MAX_TIMER_MS)
    const firstWaitMs = options.waitMs ?? 0
    const call = new AcquireCall(database, claims, { waitMs, firstWaitMs, leaseMs, calledAs })
    return { call, run: () => tellWaiters(call, acquireLeased(call, leaseMs, work)) }
  }
  const { tx, deadlineMs } = options
  if (deadlineMs !== undefined && tx !== undefined)
    throw new InvalidInputError('deadlineMs', 'must not be given with `tx`: your transaction has its own')
  const firstWaitMs = options.waitMs ?? 5_000
  const call = new AcquireCall(database, claims, { waitMs, firstWaitMs, leaseMs: null, calledAs })
  if (tx !== undefined) return { call, run: () => acquireInside(call, tx, work) }
  const ms = deadlineMs === undefined ? 30_000 : checkDuration('deadlineMs', deadlineMs)
  return { call, run: () => acquireAlone(call, ms, work) }
}

/** Notifies callers that wait for one of the locks, so that they do not wait for their next poll. */
function tellWaiters(call: AcquireCall, answer: Promise<unknown>): Promise<unknown> {
  const { locks } = call
  return locks.length === 0 ? answer : answer.finally(() => hintWanted(call.database, locks))
}
