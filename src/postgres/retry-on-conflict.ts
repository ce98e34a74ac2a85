import { AsyncLocalStorage } from 'node:async_hooks'
import { setMaxListeners } from 'node:events'
import { NestedRetryError, StatementTimeoutError } from '../errors.js'
import { MAX_TIMER_MS } from '../options/check-duration.js'
import { checkFunction } from '../options/check-function.js'
import { optionTable } from '../options/option-table.js'
import { abortSignal } from '../options/value-options.js'
import {
  conflictPolicy,
  limitsOf,
  type RetryLimits,
  type RetryOptions,
  retryOptions,
} from './conflict-policy.js'
import { retry } from './retry.js'
import { isInsideAny } from './transaction-scope.js'

export interface RetryOnConflictOptions extends RetryOptions {
  /** Ends the call: no further attempt starts, and a wait for the next attempt ends at once. */
  readonly signal?: AbortSignal | undefined
}

export const retryOnConflictOptions = optionTable<RetryOnConflictOptions>()('retryOnConflict', {
  ...retryOptions,
  signal: abortSignal(),
})

/** The argument that `retryOnConflict` passes to its function. */
export interface RetryContext {
  /** The number of this run: 1 for the first, one more after each conflict. */
  readonly attempt: number
  /** Fires when the caller's signal fires, or the deadline has passed. `retryOnConflict` waits for an attempt that ignores it. */
  readonly signal: AbortSignal
}

/**
 * Runs `fn` again from its start while it fails with a conflict: `ConflictError`, 40001 or 40P01, even if your library
 * wraps them. For work that is not one `dibs.transaction`, such as a read, a computation and a write with `where
 * version = …`. `dibs.transaction` repeats itself.
 *
 * Do everything inside `fn`, including reads, because data that was read before a conflict is out of date. A
 * `dibs.transaction` inside `fn` runs once per attempt, unless you pass `maxAttempts` to it.
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
  options?: RetryOnConflictOptions,
): Promise<T> {
  checkFunction('fn', fn)
  const { signal, ...limits } = retryOnConflictOptions.read(options)
  // This function gets no instance, so it checks all of them: any open transaction would stay open through all
  // attempts.
  // guard: transaction.retry-nested
  if (isInsideAny()) throw new NestedRetryError('dibs.transaction')
  if (isRepeated()) throw new NestedRetryError('retryOnConflict')
  return await repeatOnConflict(fn, limitsOf(limits), signal)
}

/** Closed when the attempt ends: later work is not repeated. */
const surrounding = new AsyncLocalStorage<{ isOpen: boolean }>()

/** True inside an attempt of `retryOnConflict`, where a conflict makes everything run again. */
export const isRepeated = (): boolean => surrounding.getStore()?.isOpen === true

/** True if no surrounding code repeats the work, so that the call may repeat itself. */
export const mayRepeat = (): boolean => !isInsideAny() && !isRepeated()

/** Runs `fn` like `retryOnConflict`, without the check for surrounding code that repeats. */
export async function repeatOnConflict<T>(
  fn: (context: RetryContext) => Promise<T>,
  limits: RetryLimits = limitsOf({}),
  callerSignal?: AbortSignal,
): Promise<T> {
  const ending = new AbortController()
  const { signal } = ending
  const end = (): void => ending.abort(callerSignal?.reason)
  const leftMs = limits.deadlineAt - performance.now()
  // A deadline beyond the longest timer is checked between attempts.
  const timer =
    leftMs <= MAX_TIMER_MS ? setTimeout(() => ending.abort(deadlineError()), Math.ceil(leftMs)) : undefined
  // Any number of calls may share one signal. Without this, Node.js would warn of a leak.
  if (callerSignal) setMaxListeners(0, callerSignal)
  if (callerSignal?.aborted) end()
  callerSignal?.addEventListener('abort', end)
  try {
    const run = async (attempt: number): Promise<T> => {
      callerSignal?.throwIfAborted()
      const scope = { isOpen: true }
      try {
        return await surrounding.run(scope, async () => fn({ attempt, signal }))
      } finally {
        scope.isOpen = false
      }
    }
    return await retry(run, conflictPolicy(limits, { signal: callerSignal }))
  } finally {
    clearTimeout(timer)
    callerSignal?.removeEventListener('abort', end)
  }
}

const deadlineError = (): StatementTimeoutError =>
  new StatementTimeoutError('The deadline of this retryOnConflict has passed.')
