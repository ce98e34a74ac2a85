// The thread for heartbeats imports this file and must start fast, so this file imports no errors.
import { MAX_TIMER_MS } from '../options/max-timer-ms.js'

// Only this file may use `Promise.race` and `Promise.any`; `npm run check` refuses them elsewhere. A promise keeps all
// its waiters. A race against a promise that lives as long as a connection keeps the result of every such race in
// memory until the connection ends. To end many waits early, use an AbortSignal, whose listeners can be removed.

/**
 * Waits at most `ms` for `promise`; after that, the result is what `onTimeout` returns or throws. Rejects with the
 * reason of `signal` when that fires. Leaves no timer and no listener behind.
 *
 * A promise that has settled by then wins over both, and `onTimeout` is not called. `ref: false`: the timer does not keep
 * the process alive.
 */
export function withTimeout<T, U>(
  promise: Promise<T>,
  ms: number,
  onTimeout: () => U | PromiseLike<U>,
  signal?: AbortSignal,
  { ref = true }: { readonly ref?: boolean } = {},
): Promise<T | U> {
  return new Promise((resolve, reject) => {
    let timer: NodeJS.Timeout | undefined
    let isSettled = false
    const settle = (how: () => void): void => {
      if (isSettled) return
      isSettled = true
      clearTimeout(timer)
      signal?.removeEventListener('abort', onAbort)
      how()
    }
    const onAbort = (): void => queueMicrotask(() => settle(() => reject(signal?.reason)))
    const expire = (): void =>
      settle(() => {
        try {
          resolve(onTimeout())
        } catch (error) {
          reject(error)
        }
      })
    promise.then(
      (value) => settle(() => resolve(value)),
      (error) => settle(() => reject(error)),
    )
    if (signal?.aborted) onAbort()
    else signal?.addEventListener('abort', onAbort)
    // Timers run before sockets are read: after the process was suspended, the answer may be there unread.
    if (ms < Number.POSITIVE_INFINITY)
      timer = setTimeout(() => setImmediate(expire), Math.min(ms, MAX_TIMER_MS))
    if (!ref) timer?.unref()
  })
}

/** Waits for `promise`. Rejects with the reason of `signal` when that fires. Leaves no listener behind. */
export function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise
  const never = (): never => {
    throw new RangeError('A wait without a time limit cannot time out.')
  }
  return withTimeout(promise, Number.POSITIVE_INFINITY, never, signal)
}

/** The value of the first promise that is fulfilled. Only for promises that all settle soon. */
export function firstFulfilled<T>(promises: readonly Promise<T>[]): Promise<T> {
  return Promise.any(promises)
}
