import { BusyError, type InProgressError, InvalidInputError } from '../../errors.js'
import { checkFunction } from '../../options/check-function.js'
import type { Database } from '../../postgres/database.js'
import { runInCallerTransaction } from '../caller-transaction-run.js'
import { runInOwnTransaction } from '../own-transaction-run.js'
import { LeasedOnceCall } from './leased-once-call.js'
import { OnceCall } from './once-call.js'
import {
  type JoinedSpec,
  joinedSpec,
  type LeasedSpec,
  leasedSpec,
  type Once,
  type OnceAttempt,
  type OnceDetailed,
  type OnceResult,
  type OnceSpec,
  readMode,
  type TryOnce,
  toCallSpec,
} from './once-spec.js'

/** See `Dibs.once`. */
export function onceOn(database: Database): OnceDetailed {
  // The spec decides which of the three handles `fn` gets. The compiler cannot see that here.
  const run = async (spec: OnceSpec, fn: OnceFunction): Promise<OnceResult<unknown>> =>
    await prepare(database, spec, fn).run()
  return run as OnceDetailed
}

/** See `Dibs.tryOnce`. */
export function tryOnceOn(database: Database): TryOnce {
  const run = async (spec: OnceSpec, fn: OnceFunction): Promise<OnceAttempt<unknown>> =>
    await attemptOnce(prepare(database, spec, fn))
  return run as TryOnce
}

/** A call with checked arguments, and the function that starts it. */
export interface PreparedOnce<T> {
  readonly call: OnceCall
  readonly run: () => Promise<OnceResult<T>>
}

/** Runs a call. Returns a refusal as a result instead of an error. Errors of the function are thrown. */
export async function attemptOnce<T>({ call, run }: PreparedOnce<T>): Promise<OnceAttempt<T>> {
  try {
    return { ok: true, ...(await run()) }
  } catch (error) {
    // Compares the object, not the class: the function may throw an error of the same class.
    const { refusal } = call
    if (refusal === undefined || error !== refusal) throw error
    const { holder, leaseUntil, retryAfterMs } = refusal
    const { id } = (refusal instanceof BusyError ? refusal.cause : refusal) as InProgressError
    return {
      ok: false,
      ...(id === undefined ? {} : { id }),
      ...(holder === undefined ? {} : { holder }),
      ...(leaseUntil === undefined ? {} : { leaseUntil }),
      retryAfterMs,
    }
  }
}

/** Makes `once` from `onceDetailed`: it returns the value alone. */
export function withoutDetails(detailed: OnceDetailed): Once {
  const run = async (...args: Parameters<OnceDetailed>): Promise<unknown> => (await detailed(...args)).value
  return run as Once
}

type OnceFunction = (handle: unknown) => Promise<unknown>

function prepare(database: Database, options: OnceSpec, fn: OnceFunction): PreparedOnce<unknown> {
  const mode = readMode('spec', options)
  checkFunction('fn', fn)
  if (mode === 'leased') {
    const { leaseMs, maxAttempts, onAmbiguous, ...spec } = leasedSpec.read(options as LeasedSpec)
    const call = new LeasedOnceCall(database, { ...toCallSpec(spec), leaseMs, maxAttempts, onAmbiguous })
    return { call, run: () => call.run(fn) }
  }
  const { tx, deadlineMs, ...spec } = joinedSpec.read(options as JoinedSpec)
  checkDeadline(options as JoinedSpec)
  const call = new OnceCall(database, toCallSpec(spec))
  if (tx !== undefined) return { call, run: () => runInCallerTransaction(call, tx, () => fn(tx)) }
  return { call, run: () => runInOwnTransaction(call, deadlineMs, fn) }
}

/** Refuses a deadline for a transaction of the caller. */
export function checkDeadline({ tx, deadlineMs }: Pick<JoinedSpec, 'tx' | 'deadlineMs'>): void {
  if (tx !== undefined && deadlineMs !== undefined)
    throw new InvalidInputError('deadlineMs', 'must not be given with `tx`: your transaction has its own')
}
