import { BusyError, SingletonConflictError, type SlotBounds } from '../../errors.js'
import { checkFunction } from '../../options/check-function.js'
import { optionTable } from '../../options/option-table.js'
import type { Database } from '../../postgres/database.js'
import type { Tx } from '../../postgres/executor.js'
import type { Stored } from '../../postgres/json.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import {
  attemptAcquire,
  type JoinedAcquire,
  joinedAcquireOptions,
  type LeasedAcquire,
  leasedAcquireOptions,
  prepareAcquire,
} from '../acquire/acquire.js'
import type { CalledAs } from '../acquire/acquire-call.js'
import {
  SingletonClaim,
  type SingletonClaimSpec,
  type SingletonFields,
  type Slot,
  singletonClaimSpec,
} from '../acquire/acquire-claims.js'
import type { AcquireLease } from '../acquire/leased-acquire-call.js'
import { readMode } from '../once/once-spec.js'
import type { CalendarUnit, CronSlots, PeriodOptions } from '../period.js'

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

/** The result of a call of each form. */
interface SingletonForms<T> {
  readonly singleton: T
  readonly trySingleton: SingletonAttempt<T>
}

/** The overloads of one form, one for each mode. */
interface SingletonOverloads<F extends keyof SingletonForms<unknown>> {
  /** Runs `fn` in a transaction of its own. */
  <T>(
    spec: JoinedSingleton & { readonly tx?: undefined },
    fn: (tx: Transaction, slot: Slot) => Promise<T>,
  ): Promise<SingletonForms<Stored<T>>[F]>
  /** Runs `fn` in your transaction. */
  <T, X extends Tx>(
    spec: JoinedSingleton & { readonly tx: X },
    fn: (tx: X, slot: Slot) => Promise<T>,
  ): Promise<SingletonForms<Stored<T>>[F]>
  /** Runs `fn` under a lease. */
  <T>(
    spec: LeasedSingleton,
    fn: (lease: AcquireLease, slot: Slot) => Promise<T>,
  ): Promise<SingletonForms<Stored<T>>[F]>
}

/** The type of `dibs.singleton`. */
export type Singleton = SingletonOverloads<'singleton'>

/** The type of `dibs.trySingleton`. */
export type TrySingleton = SingletonOverloads<'trySingleton'>

type AnyPeriod = PeriodOptions<CalendarUnit | CronSlots>

export const joinedSingletonSpec = optionTable<
  AnyPeriod & SingletonFields & SingletonWait & Pick<JoinedAcquire, 'mode' | 'tx' | 'deadlineMs'>
>()('dibs.singleton, dibs.trySingleton', { ...singletonClaimSpec.fields, ...joinedAcquireOptions.fields })

export const leasedSingletonSpec = optionTable<
  AnyPeriod & SingletonFields & SingletonWait & Pick<LeasedAcquire, 'mode' | 'leaseMs'>
>()('dibs.singleton, dibs.trySingleton with mode leased', {
  ...singletonClaimSpec.fields,
  ...leasedAcquireOptions.fields,
})

/** See `Dibs.singleton`. */
export function singletonOn(database: Database): Singleton {
  const run = async (...args: SingletonArguments): Promise<unknown> =>
    prepare(database, 'dibs.singleton', ...args).run()
  return run as Singleton
}

/** See `Dibs.trySingleton`. */
export function trySingletonOn(database: Database): TrySingleton {
  const run = async (...args: SingletonArguments): Promise<SingletonAttempt<unknown>> => {
    const attempt = await attemptAcquire(prepare(database, 'dibs.trySingleton', ...args))
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

type SingletonArguments = [JoinedSingleton | LeasedSingleton, (handle: never, slot: Slot) => Promise<unknown>]

function prepare(database: Database, calledAs: CalledAs, ...[spec, fn]: SingletonArguments) {
  // Refuses the options of the other mode, too.
  if (readMode('spec', spec) === 'leased') leasedSingletonSpec.read(spec as LeasedSingleton)
  else joinedSingletonSpec.read(spec as JoinedSingleton)
  checkFunction('fn', fn)
  const { mode, waitMs, tx, deadlineMs, leaseMs, ...claim } = spec as Loose
  const options = withoutUndefined({ mode, tx, deadlineMs, leaseMs, waitMs })
  const work = (handle: never, grants: unknown[]) => fn(handle, grants[0] as Slot)
  return prepareAcquire(database, [new SingletonClaim(claim)], options as never, work, calledAs)
}

/** The options of both modes. */
type Loose = SingletonClaimSpec &
  SingletonWait & { mode?: unknown; tx?: unknown; deadlineMs?: unknown; leaseMs?: unknown }

const withoutUndefined = <T extends object>(args: T): Partial<T> =>
  Object.fromEntries(Object.entries(args).filter(([, value]) => value !== undefined)) as Partial<T>
