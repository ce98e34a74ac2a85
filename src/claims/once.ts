import { DibsError, InProgressError, InvalidInputError } from '../errors.js'
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
  // Which of the three handles it is follows from the spec, which the compiler cannot see here.
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
    try {
      return { ok: true, ...(await start(call, spec, fn)) }
    } catch (error) {
      // Only a refusal of this very call: its function may throw an error of the same class.
      if (error !== call.refusal || !(error instanceof DibsError)) throw error
      const inProgress = error instanceof InProgressError ? error : error.cause
      const id = inProgress instanceof InProgressError ? inProgress.id : undefined
      return { ok: false, ...(id === undefined ? {} : { id }), retryAfterMs: error.retryAfterMs ?? 0 }
    }
  }
  return run as TryOnce
}

function prepare(database: Database, spec: OnceSpec, fn: unknown): OnceCall {
  const mode = readMode(spec)
  checkFunction('fn', fn)
  return new OnceCall(database, readSpec(spec, mode === 'joined'))
}

/** The same without what `onceDetailed` tells besides. */
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
