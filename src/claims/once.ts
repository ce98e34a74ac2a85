import { InvalidInputError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import { nameGiven } from '../postgres/name-given.js'
import { checkDuration } from './check-duration.js'
import { OnceCall, type OnceResult } from './once-call.js'
import { onceAlone, onceInside } from './once-joined.js'
import { onceLeased } from './once-leased.js'
import {
  type AnswerOf,
  type HandleOf,
  type LeasedSpec,
  type OnceSpec,
  readLease,
  readMode,
  readSpec,
} from './once-spec.js'

/** See `Dibs.once`. */
export async function once<const S extends OnceSpec, T>(
  database: Database,
  spec: S,
  fn: (handle: HandleOf<S>) => Promise<T>,
): Promise<OnceResult<AnswerOf<S, T>>> {
  const mode = readMode(spec)
  if (typeof fn !== 'function') throw new InvalidInputError('fn', `must be a function, not ${nameGiven(fn)}`)
  // Which of the three handles it is follows from the spec, which the compiler cannot see here.
  const run = fn as (handle: unknown) => Promise<unknown>
  const call = new OnceCall(database, readSpec(spec, mode === 'joined'))
  return (await start(call, spec, run)) as OnceResult<AnswerOf<S, T>>
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
