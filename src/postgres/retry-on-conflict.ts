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
  /** Ends the call: no further attempt starts, and a wait for the next attempt ends at once. */
  readonly signal?: AbortSignal | undefined
}

/** The argument that `retryOnConflict` passes to its function. */
export interface RetryContext {
  /** The number of this run: 1 for the first, one more after each conflict. */
  readonly attempt: number
  /** Fires when the caller's signal fires, or the deadline has passed. `retryOnConflict` waits for an attempt that ignores it. */
  readonly signal: AbortSignal
}

/**
 * Runs `fn` again from its start while it fails with a conflict: `ConflictError`, 40001 or 40P01, even if your library wraps them. For work that is not one
 * `dibs.transaction`, such as a read, a computation and a write with `where version = …`. `dibs.transaction` repeats itself.
 *
 * Do everything inside `fn`, including reads, because data that was read before a conflict is out of date. A `dibs.transaction` inside `fn` runs once per
 * attempt, unless you pass its own `maxAttempts`.
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
  // This function gets no instance, so it checks all of them: any open transaction would stay open through all attempts.
  if (isInsideAny()) throw new NestedRetryError('dibs.transaction')
  if (isRepeated()) throw new NestedRetryError('retryOnConflict')
  const { signal } = options
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new InvalidInputError('signal', `must be an AbortSignal, not ${nameGiven(signal)}`)
  return await repeatOnConflict(fn, readLimits(options), signal)
}

/** True if no surrounding code repeats the work, so that the call may repeat itself. */
export const mayRepeat = (): boolean => !isInsideAny() && !isRepeated()

/** Runs `fn` like `retryOnConflict`, without the check for surrounding code that repeats. */
export async function repeatOnConflict<T>(
  fn: (context: RetryContext) => Promise<T>,
  limits: RetryLimits = readLimits({}),
  given?: AbortSignal,
): Promise<T> {
  const ending = new AbortController()
  const { signal } = ending
  const end = (): void => ending.abort(given?.reason)
  const leftMs = limits.deadlineAt - performance.now()
  // A deadline beyond the longest timer is checked between attempts.
  const timer = leftMs <= MAX_TIMER_MS ? setTimeout(() => ending.abort(late()), Math.ceil(leftMs)) : undefined
  // Any number of calls may share one signal. Without this, Node.js would warn of a leak.
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
          given?.throwIfAborted() // the reason of the signal says more than "the timer was stopped"
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
