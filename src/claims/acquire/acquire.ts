import { type AcquireFailure, AcquireRefusedError, DibsError } from '../../errors.js'
import { notifyLockWaiters } from '../../locks/lock-notifications.js'
import { checkFunction } from '../../options/check-function.js'
import { MAX_TIMER_MS } from '../../options/max-timer-ms.js'
import { duration } from '../../options/number-options.js'
import { required, unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { oneOf } from '../../options/value-options.js'
import type { Database } from '../../postgres/database.js'
import type { Tx } from '../../postgres/executor.js'
import type { Stored } from '../../postgres/json.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import { runInCallerTransaction } from '../caller-transaction-run.js'
import { checkDeadline } from '../once/once.js'
import { leaseFields, readMode } from '../once/once-spec.js'
import { runInOwnTransaction } from '../own-transaction-run.js'
import { AcquireCall, type CalledAs } from './acquire-call.js'
import type { AcquireClaim, AnyClaim, ClaimKind, Grants, OutcomeKind } from './acquire-claims.js'
import type { AcquireResult } from './acquire-result.js'
import { type AcquireLease, LeasedAcquireCall } from './leased-acquire-call.js'

type Claims = readonly AcquireClaim<unknown>[]

/** The result of `dibs.acquire`. With an idempotency key or a slot, the result is stored, and callers get it as JSON returns it. */
export type AcquireAnswer<C extends Claims, T> = C extends readonly {
  readonly kind: Exclude<ClaimKind, OutcomeKind>
}[]
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

/** The result of a call of each form. */
interface AcquireForms<T> {
  readonly acquire: T
  readonly tryAcquire: AcquireAttempt<T>
}

/** The overloads of one form, one for each mode. */
interface AcquireOverloads<F extends keyof AcquireForms<unknown>> {
  /** Runs `fn` in a transaction of its own. */
  <const C extends Claims, T>(
    claims: C,
    fn: (tx: Transaction, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireForms<AcquireAnswer<C, T>>[F]>
  /** Runs `fn` in a transaction of its own. */
  <const C extends Claims, T>(
    claims: C,
    options: (JoinedAcquire & { readonly tx?: undefined }) | undefined,
    fn: (tx: Transaction, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireForms<AcquireAnswer<C, T>>[F]>
  /** Runs `fn` in your transaction. */
  <const C extends Claims, T, X extends Tx>(
    claims: C,
    options: JoinedAcquire & { readonly tx: X },
    fn: (tx: X, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireForms<AcquireAnswer<C, T>>[F]>
  /** Runs `fn` under a lease. */
  <const C extends Claims, T>(
    claims: C,
    options: LeasedAcquire,
    fn: (lease: AcquireLease, grants: Grants<C>) => Promise<T>,
  ): Promise<AcquireForms<AcquireAnswer<C, T>>[F]>
}

/** The type of `dibs.acquire`. */
export type Acquire = AcquireOverloads<'acquire'>

/** The type of `dibs.tryAcquire`. */
export type TryAcquire = AcquireOverloads<'tryAcquire'>

const waitMs = duration({ min: 0, max: MAX_TIMER_MS })

export const joinedAcquireOptions = optionTable<JoinedAcquire>()('dibs.acquire, dibs.tryAcquire', {
  mode: oneOf(['joined']),
  waitMs,
  tx: unchecked(),
  deadlineMs: duration({ default: 30_000 }),
})

export const leasedAcquireOptions = optionTable<LeasedAcquire>()(
  'dibs.acquire, dibs.tryAcquire with mode leased',
  { mode: required(oneOf(['leased'])), waitMs, leaseMs: leaseFields.leaseMs },
)

type AcquireFunction = (handle: never, grants: unknown[]) => Promise<unknown>

type AcquireArguments = [AcquireFunction] | [JoinedAcquire | LeasedAcquire | undefined, AcquireFunction]

const readArguments = (args: AcquireArguments): [JoinedAcquire | LeasedAcquire, AcquireFunction] =>
  args.length === 1 ? [{}, args[0]] : [args[0] === undefined ? {} : args[0], args[1]]

/** See `Dibs.acquire`. */
export function acquireOn(database: Database): Acquire {
  const run = async (claims: readonly AnyClaim[], ...args: AcquireArguments): Promise<unknown> =>
    prepareAcquire(database, claims, ...readArguments(args), 'dibs.acquire').run()
  return run as Acquire
}

/** See `Dibs.tryAcquire`. */
export function tryAcquireOn(database: Database): TryAcquire {
  const run = async (
    claims: readonly AnyClaim[],
    ...args: AcquireArguments
  ): Promise<AcquireAttempt<unknown>> => {
    const prepared = prepareAcquire(database, claims, ...readArguments(args), 'dibs.tryAcquire')
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
    const { index, kind } = prepared.call.request.firstClaim
    const failures: AcquireFailure[] = [{ index, kind, error: refusal }]
    return { ok: false, failures, isFinal: false, replayed: false, retryAfterMs: refusal.retryAfterMs ?? 0 }
  }
  return run as TryAcquire
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
  const mode = readMode('options', options)
  checkFunction('fn', fn)
  const work = fn as (handle: unknown, grants: unknown[]) => Promise<unknown>
  if (mode === 'leased') {
    const { waitMs = 500, leaseMs } = leasedAcquireOptions.read(options as LeasedAcquire)
    const firstWaitMs = options.waitMs ?? 0
    const call = new LeasedAcquireCall(database, claims, { waitMs, firstWaitMs, leaseMs, calledAs })
    return { call, run: () => notifyWaiters(call, call.run(work)) }
  }
  const { waitMs = 500, tx, deadlineMs } = joinedAcquireOptions.read(options as JoinedAcquire)
  checkDeadline(options as JoinedAcquire)
  const firstWaitMs = options.waitMs ?? 5_000
  const call = new AcquireCall(database, claims, { waitMs, firstWaitMs, leaseMs: null, calledAs })
  const fnWithGrants = (handle: unknown, granted: AcquireResult) => work(handle, call.request.grants(granted))
  if (tx !== undefined)
    return { call, run: () => runInCallerTransaction(call, tx, (granted) => fnWithGrants(tx, granted)) }
  return { call, run: () => runInOwnTransaction(call, deadlineMs, fnWithGrants) }
}

/** Notifies callers that wait for one of the locks, so that they do not wait for their next poll. */
function notifyWaiters(call: AcquireCall, answer: Promise<unknown>): Promise<unknown> {
  const { locks } = call.request
  return locks.length === 0 ? answer : answer.finally(() => notifyLockWaiters(call.database, locks))
}
