import {
  AmbiguousOutcomeError,
  BusyError,
  InProgressError,
  InvalidInputError,
  NestedTransactionError,
  SingletonConflictError,
  type SlotBounds,
} from '../errors.js'
import { checkFunction } from '../postgres/check-function.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import type { Tx } from '../postgres/executor.js'
import type { Stored } from '../postgres/json.js'
import { addressOf, checkKey, nameScope, scopeOfSingleton } from '../postgres/key.js'
import { MarkedCall } from '../postgres/marked-call.js'
import { nameGiven } from '../postgres/name-given.js'
import { isInside } from '../postgres/open-transaction.js'
import { readHeld } from '../postgres/this-process.js'
import type { Transaction } from '../postgres/transaction-types.js'
import {
  attemptAcquire,
  checkModeOptions,
  type JoinedAcquire,
  type LeasedAcquire,
  prepareAcquire,
} from './acquire.js'
import type { CalledAs } from './acquire-call.js'
import { SingletonClaim, type SingletonClaimSpec, type Slot, singletonNames } from './acquire-claims.js'
import type { AcquireLease } from './acquire-leased.js'
import { voidSingleton } from './acquire-statements.js'
import { VOID } from './acquire-told.js'
import { readScope } from './once-spec.js'
import { readTold, type ToldClaim } from './told-claim.js'
import { withSavepoint } from './with-savepoint.js'

export interface SingletonWait {
  /**
   * How long to wait for another open transaction that claims the slot, then `BusyError`. Default: 5,000 joined, 500 leased. A slot that is held by a
   * lease throws `SingletonConflictError` at once.
   */
  readonly waitMs?: number | undefined
}

export type JoinedSingleton = SingletonClaimSpec &
  SingletonWait &
  Pick<JoinedAcquire, 'mode' | 'tx' | 'deadlineMs'>

export type LeasedSingleton = SingletonClaimSpec & SingletonWait & Pick<LeasedAcquire, 'mode' | 'leaseMs'>

/** The type of `dibs.singleton`, with an overload for each mode. */
export interface Singleton {
  /** Runs `fn` in a transaction of its own. */
  <T>(
    spec: JoinedSingleton & { readonly tx?: undefined },
    fn: (tx: Transaction, slot: Slot) => Promise<T>,
  ): Promise<Stored<T>>
  /** Runs `fn` in your transaction. */
  <T, X extends Tx>(
    spec: JoinedSingleton & { readonly tx: X },
    fn: (tx: X, slot: Slot) => Promise<T>,
  ): Promise<Stored<T>>
  /** Runs `fn` under a lease. */
  <T>(spec: LeasedSingleton, fn: (lease: AcquireLease, slot: Slot) => Promise<T>): Promise<Stored<T>>
}

/** Result of `dibs.trySingleton`. */
export type SingletonAttempt<T> = { readonly ok: true; readonly value: T } | SingletonRefusal

/** The result if another caller has done the work in this period, or is doing it. */
export interface SingletonRefusal {
  readonly ok: false
  /**
   * `pending`: the other caller is doing the work. `active`: done. `failed`: the work failed, and the slot is kept. `void`: the work was undone, and the
   * slot is kept.
   */
  readonly state: SingletonConflictError['state']
  /** The period. Missing while another open transaction is about to decide about it. */
  readonly slot?: SlotBounds
  /** The id of the claim that has the slot. */
  readonly id?: string
  /** The caller that has the slot, by its own option `holder`. */
  readonly holder?: string
  /** When that caller claimed the slot. */
  readonly since?: Date
  /** The result of that caller's function. */
  readonly result?: unknown
  /** When the lease of a pending holder ends, unless it is renewed. */
  readonly leaseUntil?: Date
  /** How long until the lease of a pending holder ends. */
  readonly retryAfterMs?: number
}

/** The type of `dibs.trySingleton`, with an overload for each mode. */
export interface TrySingleton {
  /** Runs `fn` in a transaction of its own. */
  <T>(
    spec: JoinedSingleton & { readonly tx?: undefined },
    fn: (tx: Transaction, slot: Slot) => Promise<T>,
  ): Promise<SingletonAttempt<Stored<T>>>
  /** Runs `fn` in your transaction. */
  <T, X extends Tx>(
    spec: JoinedSingleton & { readonly tx: X },
    fn: (tx: X, slot: Slot) => Promise<T>,
  ): Promise<SingletonAttempt<Stored<T>>>
  /** Runs `fn` under a lease. */
  <T>(
    spec: LeasedSingleton,
    fn: (lease: AcquireLease, slot: Slot) => Promise<T>,
  ): Promise<SingletonAttempt<Stored<T>>>
}

/** The options of both modes. `checkModeOptions` refuses those of the other mode. */
type Loose = SingletonClaimSpec &
  SingletonWait & { mode?: unknown; tx?: unknown; deadlineMs?: unknown; leaseMs?: unknown }

/** See `Dibs.singleton`. */
export function singletonOn(database: Database): Singleton {
  const run = async (...given: Given): Promise<unknown> => prepare(database, 'dibs.singleton', ...given).run()
  return run as Singleton
}

/** See `Dibs.trySingleton`. */
export function trySingletonOn(database: Database): TrySingleton {
  const run = async (...given: Given): Promise<SingletonAttempt<unknown>> => {
    const attempt = await attemptAcquire(prepare(database, 'dibs.trySingleton', ...given))
    if (attempt.ok) return attempt
    const { refusal } = attempt
    if (refusal instanceof SingletonConflictError) {
      const { state, slot, id, holder, since, result, leaseUntil, retryAfterMs } = refusal
      const details = { slot, id, holder, since, result, leaseUntil, retryAfterMs }
      return { ok: false, state, ...withoutUndefined(details) }
    }
    if (refusal instanceof BusyError)
      return { ok: false, state: 'pending', retryAfterMs: refusal.retryAfterMs }
    // Somebody must find out what an earlier attempt has done.
    throw refusal
  }
  return run as TrySingleton
}

type Given = [JoinedSingleton | LeasedSingleton, (handle: never, slot: Slot) => Promise<unknown>]

function prepare(database: Database, calledAs: CalledAs, ...[spec, fn]: Given) {
  if (typeof spec !== 'object' || spec === null)
    throw new InvalidInputError('spec', `must be an object such as { scope, per }, not ${nameGiven(spec)}`)
  checkFunction('fn', fn)
  const { mode, waitMs, tx, deadlineMs, leaseMs, ...claim } = spec as Loose
  const options = withoutUndefined({ mode, tx, deadlineMs, leaseMs, waitMs })
  checkModeOptions({ ...claim, ...options, mode }, singletonNames)
  const work = (handle: never, grants: unknown[]) => fn(handle, grants[0] as Slot)
  return prepareAcquire(database, [new SingletonClaim(claim)], options as never, work, calledAs)
}

const withoutUndefined = <T extends object>(given: T): Partial<T> =>
  Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as Partial<T>

export interface VoidSlotSpec<X extends Tx | undefined = Tx | undefined> {
  readonly scope: string | readonly (string | number | bigint)[]
  /** The slot that the function got, or the `slot` and `id` of a `SingletonConflictError`. */
  readonly slot: { readonly key: string; readonly id: string }
  /** True (default): the slot can be claimed again in its period. False: the slot stays taken. */
  readonly frees?: boolean | undefined
  readonly tx?: X
}

/**
 * Result of `dibs.voidSlot`. If several callers void the same slot, one of them gets `ok: true`. `value` is missing if there was nothing to undo: the
 * function was not run.
 */
export type SlotVoided<T> = { readonly ok: true; readonly value?: T } | { readonly ok: false }

/**
 * Undoes the work of a slot. `result` is the result of the singleton's function. In state `failed` (under a lease) there is no result, and part of the
 * work may have happened.
 */
export type UndoSlot<X, T> = (tx: X, result: unknown, state: 'active' | 'failed') => Promise<T>

/** The type of `dibs.voidSlot`, with an overload for each kind of transaction. */
export interface VoidSlot {
  <T = undefined>(spec: VoidSlotSpec<undefined>, fn?: UndoSlot<Transaction, T>): Promise<SlotVoided<T>>
  <T = undefined, X extends Tx = Tx>(spec: VoidSlotSpec<X>, fn?: UndoSlot<X, T>): Promise<SlotVoided<T>>
}

/** See `Dibs.voidSlot`. */
export function voidSlotOn(database: Database): VoidSlot {
  const run = async (spec: VoidSlotSpec, fn?: UndoSlot<Tx, unknown>): Promise<SlotVoided<unknown>> => {
    const read = readVoid(spec, fn)
    const { tx } = spec
    if (tx !== undefined) return await withSavepoint(database, tx, () => voidIn(database, tx, read, fn))
    if (isInside(database)) throw new NestedTransactionError('dibs.voidSlot')
    return await database.transaction((own) => voidIn(database, own, read, fn))
  }
  return run as VoidSlot
}

/** How long to wait for other callers that void or claim the slot. */
const WAIT_MS = '5000'

interface ReadVoid {
  readonly scope: string
  readonly key: string
  readonly id: string
  readonly frees: boolean
}

function readVoid(spec: VoidSlotSpec, fn: unknown): ReadVoid {
  checkOptions(spec, ['scope', 'slot', 'frees', 'tx'])
  const { slot, frees = true } = spec
  if (typeof slot !== 'object' || slot === null)
    throw new InvalidInputError('slot', `must be an object with key and id, not ${nameGiven(slot)}`)
  if (typeof frees !== 'boolean')
    throw new InvalidInputError('frees', `must be true or false, not ${nameGiven(frees)}`)
  if (fn !== undefined) checkFunction('fn', fn)
  return {
    scope: scopeOfSingleton(readScope(spec.scope)),
    key: checkKey('slot.key', slot.key),
    id: checkKey('slot.id', slot.id),
    frees,
  }
}

async function voidIn(
  database: Database,
  tx: Tx,
  { scope, key, id, frees }: ReadVoid,
  fn: UndoSlot<Tx, unknown> | undefined,
): Promise<SlotVoided<unknown>> {
  const subject = `slot ${key} ${nameScope(scope)}`
  const mark = JSON.stringify({ name: VOID, message: `${subject} was voided.` })
  const startedAt = performance.now()
  const marked = new MarkedCall(database, tx, `dibs.voidSlot of ${subject}`)
  const [row] = await marked.first(voidSingleton, [scope, key, id, String(frees), mark, WAIT_MS])
  const told = readTold(row)
  if (told.state === 'busy')
    throw new BusyError(
      `a transaction that works on ${subject}`,
      Math.round(performance.now() - startedAt),
      1_000,
    )
  if (told.state === 'in progress') throw explainPending(scope, subject, told)
  if (told.state !== 'voided') return { ok: false }
  const isFailed = told.status === 'failed'
  // The work of a transaction that failed was rolled back.
  const isUndone = !fn || (isFailed && told.holder.startsWith('tx:'))
  const result = told.hasOutcome && !isFailed ? told.outcome : undefined
  const value = isUndone ? undefined : await fn(tx, result, isFailed ? 'failed' : 'active')
  await marked.close()
  return isUndone ? { ok: true } : { ok: true, value }
}

/** The error if there is nothing to undo yet, or if nobody knows whether there is. */
function explainPending(scope: string, subject: string, told: ToldClaim): Error {
  const { key, id, attempt, holder, leftMs } = told
  if (leftMs !== null)
    return new InProgressError(subject, leftMs, id, {
      ...readHeld(told),
      message: `Another caller works on ${subject} just now, so there is nothing to undo yet. Call again in ${leftMs} ms.`,
    })
  if (holder.startsWith('tx:'))
    return new InProgressError(subject, 1_000, id, {
      message: `This very transaction works on ${subject}, so there is nothing to undo before that function has ended.`,
    })
  const address = JSON.stringify(addressOf(scope, key))
  return new AmbiguousOutcomeError(subject, id, attempt, {
    message: `The caller that worked on ${subject} has no recorded outcome (crash or expired lease), so nobody knows whether there is anything to undo. Find out, then say so: dibs.claims.resolve(${address}, { outcome }) if it was done, and void it then; dibs.claims.resolve(${address}, 'retry') if it was not.`,
  })
}
