import { BusyError, type InProgressError, InvalidInputError } from '../errors.js'
import { checkDuration } from '../postgres/check-duration.js'
import { checkFunction } from '../postgres/check-function.js'
import type { Database } from '../postgres/database.js'
import { OnceCall } from './once-call.js'
import { onceAlone, onceInside } from './once-joined.js'
import { onceLeased } from './once-leased.js'
import {
  type LeasedSpec,
  type Once,
  type OnceAttempt,
  type OnceDetailed,
  type OnceResult,
  type OnceSpec,
  readLease,
  readMode,
  readSpec,
  type TryOnce,
} from './once-spec.js'

/** See `Dibs.once`. */
export function onceOn(database: Database): OnceDetailed {
  // The spec decides which of the three handles `fn` gets. The compiler cannot see that here.
  const run = async (
    spec: OnceSpec,
    fn: (handle: unknown) => Promise<unknown>,
  ): Promise<OnceResult<unknown>> => {
    return await start(prepare(database, spec, fn), spec, fn)
  }
  return run as OnceDetailed
}

/** See `Dibs.tryOnce`. */
export function tryOnceOn(database: Database): TryOnce {
  const run = async (
    spec: OnceSpec,
    fn: (handle: unknown) => Promise<unknown>,
  ): Promise<OnceAttempt<unknown>> => {
    const call = prepare(database, spec, fn)
    return await attemptOnce(call, () => start(call, spec, fn))
  }
  return run as TryOnce
}

/** Runs a call. Returns a refusal as a result instead of an error. Errors of the function are thrown. */
export async function attemptOnce<T>(
  call: OnceCall,
  run: () => Promise<OnceResult<T>>,
): Promise<OnceAttempt<T>> {
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

function prepare(database: Database, spec: OnceSpec, fn: unknown): OnceCall {
  const mode = readMode(spec)
  checkFunction('fn', fn)
  return new OnceCall(database, readSpec(spec, mode === 'joined'))
}

/** Makes `once` from `onceDetailed`: it returns the value alone. */
export function withoutDetails(detailed: OnceDetailed): Once {
  const run = async (...given: Parameters<OnceDetailed>): Promise<unknown> => (await detailed(...given)).value
  return run as Once
}

function start(
  call: OnceCall,
  spec: OnceSpec,
  run: (handle: unknown) => Promise<unknown>,
): Promise<OnceResult<unknown>> {
  if (isLeased(spec)) return onceLeased(call, { ...call.spec, ...readLease(spec) }, run)
  const { tx, deadlineMs } = spec
  if (deadlineMs !== undefined && tx !== undefined)
    throw new InvalidInputError(
      'deadlineMs',
      'is of the transaction that `once` makes, and you gave your own',
    )
  if (tx !== undefined) return onceInside(call, tx, run)
  if (deadlineMs !== undefined) checkDuration('deadlineMs', deadlineMs)
  return onceAlone(call, deadlineMs, run)
}

const isLeased = (spec: OnceSpec): spec is LeasedSpec => spec.mode === 'leased'
