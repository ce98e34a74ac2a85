import { syncBuiltinESMExports } from 'node:module'
import { join } from 'node:path'
import timers from 'node:timers/promises'

/** The compiled form of `src/`, which tests load. */
const source = `${join(import.meta.dirname, '../build')}/`

/** Timers set by the code under test that have neither fired nor been cleared, with the line that set them. */
const pending = new Map<unknown, string>()

export const pendingTimers = (): string[] => [...pending.values()]

let isWatching = false

/** Watches timers from the first call on. Timers of tests and libraries do not count. */
export function watchTimers(): void {
  if (isWatching) return
  isWatching = true
  const { setTimeout: timeout, setInterval: interval, clearTimeout, clearInterval } = globalThis
  replace(timeout, (run, ms, ...args) => {
    const timer = timeout(() => {
      pending.delete(timer)
      run(...args)
    }, ms)
    note(timer)
    return timer
  })
  replace(interval, (run, ms, ...args) => {
    const timer = interval(run, ms, ...args)
    note(timer)
    return timer
  })
  for (const clear of [clearTimeout, clearInterval]) {
    replace(clear, (timer) => {
      pending.delete(timer)
      clear(timer)
    })
  }
  const { setTimeout: sleep } = timers
  const watched: typeof sleep = (...args) => {
    const sleeping = sleep(...args)
    note(sleeping)
    const done = (): boolean => pending.delete(sleeping)
    sleeping.then(done, done)
    return sleeping
  }
  timers.setTimeout = watched
  syncBuiltinESMExports()
}

// biome-ignore lint/suspicious/noExplicitAny: the signatures of four functions at once
type Anything = any

function replace(original: Anything, replacement: (...args: Anything[]) => unknown): void {
  Object.defineProperties(replacement, Object.getOwnPropertyDescriptors(original))
  Reflect.set(globalThis, original.name, replacement)
}

function note(timer: unknown): void {
  const caller = new Error().stack?.split('\n')[3]?.trim() ?? ''
  if (caller.includes(source)) pending.set(timer, caller)
}
