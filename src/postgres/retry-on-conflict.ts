import { setMaxListeners } from 'node:events'
import { InvalidInputError, NestedRetryError, StatementTimeoutError } from '../errors.js'
import { MAX_TIMER_MS } from './check-duration.js'
import { checkFunction } from './check-function.js'
import { checkOptions } from './check-options.js'
import { backOff, type RetryLimits, type RetryOptions, readLimits } from './conflict-retry.js'
import { isConflict } from './fault.js'
import { nameGiven } from './name-given.js'
import { isInsideAny } from './open-transaction.js'
import { asRepeated, isRepeated } from './retry-scope.js'

export interface RetryOnConflictOptions extends RetryOptions {
  /** Ends it: no further attempt starts, and the wait for one is over at once. */
  readonly signal?: AbortSignal | undefined
}

/** What `retryOnConflict` hands to its function. */
export interface RetryContext {
  /** 1 for the first run, one more for each repetition after a conflict. */
  readonly attempt: number
  /** Fires when the caller's own does, or the deadline has passed. An attempt that does not listen is waited for. */
  readonly signal: AbortSignal
}

/**
 * Runs `fn` again from its start while it fails with a conflict: `ConflictError`, 40001 or 40P01, also as your library wraps them. For work that is not
 * one `dibs.transaction`, which does the same by itself: a read, a computation and a write with `where version = …`.
 *
 * Everything belongs into `fn`, reading included: what was read before a conflict is out of date. A `dibs.transaction` inside it runs once each
 * time, unless it is given `maxAttempts` of its own.
 *
 * @example
 * await retryOnConflict(async () => {
 *   const seen = await dibs.kv.get<{ visits: number }>(key)
 *   if (!seen) return
 *   const swap = await dibs.kv.compareAndSet(key, seen.version, { visits: seen.value.visits + 1 })
 *   if (!swap.ok) throw new ConflictError({ subject: key, expected: seen.version, current: swap.current?.version })
 * })
 */
export async function retryOnConflict<T>(
  fn: (context: RetryContext) => Promise<T>,
  options: RetryOnConflictOptions = {},
): Promise<T> {
  checkFunction('fn', fn)
  checkOptions(options, ['deadlineMs', 'maxAttempts', 'signal'])
  // No instance is given here, and none is asked for: whatever is open would stay so through all attempts.
  if (isInsideAny()) throw new NestedRetryError('dibs.transaction')
  if (isRepeated()) throw new NestedRetryError('retryOnConflict')
  const { signal } = options
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new InvalidInputError('signal', `must be an AbortSignal, not ${nameGiven(signal)}`)
  return await repeatOnConflict(fn, readLimits(options), signal)
}

/** Nobody around would run it again: what is called may do so by itself. */
export const mayRepeat = (): boolean => !isInsideAny() && !isRepeated()

/** The same without a look at what surrounds it. */
export async function repeatOnConflict<T>(
  fn: (context: RetryContext) => Promise<T>,
  limits: RetryLimits = readLimits({}),
  given?: AbortSignal,
): Promise<T> {
  const ending = new AbortController()
  const { signal } = ending
  const end = (): void => ending.abort(given?.reason)
  const leftMs = limits.deadlineAt - performance.now()
  // One that is longer than a timer can be set to is looked at between attempts.
  const timer = leftMs <= MAX_TIMER_MS ? setTimeout(() => ending.abort(late()), Math.ceil(leftMs)) : undefined
  // Any number of calls may share one; Node.js would warn of a leak.
  if (given) setMaxListeners(0, given)
  if (given?.aborted) end()
  given?.addEventListener('abort', end)
  try {
    for (let attempt = 1; ; attempt++) {
      given?.throwIfAborted()
      try {
        return await asRepeated(async () => fn({ attempt, signal }))
      } catch (error) {
        if (!isConflict(error)) throw error
        given?.throwIfAborted()
        await backOff(limits, attempt, error, given ? { signal: given } : {}).catch((thrown) => {
          given?.throwIfAborted() // its own reason says more than that a timer was stopped
          throw thrown
        })
      }
    }
  } finally {
    clearTimeout(timer)
    given?.removeEventListener('abort', end)
  }
}

const late = (): StatementTimeoutError =>
  new StatementTimeoutError('The deadline of this retryOnConflict has passed.')
