import { deferred } from '../deferred.js'

/** A load that ends when it is told to, and counts how often it was begun. */
export function heldLoad<T>(value: T) {
  const begun = deferred()
  const gate = deferred<() => T>()
  const held = {
    count: 0,
    signal: undefined as AbortSignal | undefined,
    /** Resolves when it has begun. */
    begun: begun.promise,
    load: async ({ signal }: { signal: AbortSignal }): Promise<T> => {
      held.count++
      held.signal = signal
      begun.resolve()
      return (await gate.promise)()
    },
    land: (): void => gate.resolve(() => value),
    fail: (error: unknown): void =>
      gate.resolve(() => {
        throw error
      }),
  }
  return held
}
