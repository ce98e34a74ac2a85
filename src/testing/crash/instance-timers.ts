import { syncBuiltinESMExports } from 'node:module'
import timers from 'node:timers'
import timersPromises from 'node:timers/promises'
import { type ActorContext, bindToActor, currentContext, isOfFinishedRun, NEVER } from '../gate/actor.js'

type Callback = (...parameters: unknown[]) => void
type SetTimer = (callback: Callback, ...rest: unknown[]) => object

const CLEARS = {
  setTimeout: 'clearTimeout',
  setInterval: 'clearInterval',
  setImmediate: 'clearImmediate',
} as const

/**
 * Replaces the timers of Node for the code of instances. The timers of a killed instance never fire. Those of a frozen
 * instance fire when the instance goes on. Timers of other code are unchanged.
 */
export class InstanceTimers {
  readonly #restore: (() => void)[] = []
  /** The timers that may still fire, each with its owner. */
  readonly #pending = new Map<object, { readonly owner: ActorContext; readonly clear: () => void }>()

  constructor() {
    for (const name of Object.keys(CLEARS) as (keyof typeof CLEARS)[]) {
      const replaced = this.#owned(name, globalThis[name] as SetTimer)
      this.#replace(globalThis, name, replaced)
      this.#replace(timers, name, replaced)
    }
    for (const name of ['setTimeout', 'setImmediate'] as const) {
      const waits = timersPromises[name] as (...parameters: unknown[]) => Promise<unknown>
      this.#replace(timersPromises, name, (...parameters: unknown[]) => untilAwake(waits(...parameters)))
    }
    const { setInterval } = timersPromises
    this.#replace(timersPromises, 'setInterval', async function* <T>(...parameters: [number?, T?, object?]) {
      for await (const value of setInterval(...parameters)) yield await untilAwake(Promise.resolve(value))
    })
    const { scheduler } = timersPromises
    const wait = scheduler.wait.bind(scheduler)
    this.#replace(scheduler, 'wait', (...parameters: Parameters<typeof wait>) =>
      untilAwake(wait(...parameters)),
    )
    syncBuiltinESMExports()
  }

  /** Clears the timers of killed instances, which would keep this process alive. */
  sweep(): void {
    for (const [timer, { owner, clear }] of this.#pending) {
      if (!isOfFinishedRun(owner)) continue
      clear()
      this.#pending.delete(timer)
    }
  }

  close(): void {
    this.sweep()
    for (const restore of this.#restore) restore()
    syncBuiltinESMExports()
  }

  #owned(name: keyof typeof CLEARS, original: SetTimer): SetTimer {
    const clear = globalThis[CLEARS[name]] as (timer: object) => void
    const owned: SetTimer = (callback, ...rest) => {
      const owner = currentContext()
      if (!owner || typeof callback !== 'function') return original(callback, ...rest)
      let isDue = false
      const timer = original(
        (...values) => {
          if (name !== 'setInterval') this.#pending.delete(timer)
          // An interval that came due several times during a freeze fires once.
          if (isOfFinishedRun(owner) || isDue) return // guard: crash.timers
          isDue = true
          whenAwake(owner, () => {
            isDue = false
            callback(...values)
          })
        },
        ...rest,
      )
      this.#pending.set(timer, { owner, clear: () => clear(timer) })
      return timer
    }
    // `util.promisify` reads a symbol property of the timer function.
    return Object.defineProperties(owned, Object.getOwnPropertyDescriptors(original)) as SetTimer
  }

  #replace(target: object, name: string, value: unknown): void {
    const own = Object.getOwnPropertyDescriptor(target, name)
    Object.defineProperty(target, name, { configurable: true, writable: true, ...own, value })
    this.#restore.push(() => {
      if (own) Object.defineProperty(target, name, own)
      else Reflect.deleteProperty(target, name) // the prototype has the original
    })
  }
}

/** Calls `fn` now, or when its frozen owner goes on. `fn` stays bound to the owner. */
function whenAwake({ actor }: ActorContext, fn: () => void): void {
  if (actor.frozen) actor.frozen.push(bindToActor(fn))
  else fn()
}

async function untilAwake(waits: Promise<unknown>): Promise<unknown> {
  const owner = currentContext()
  const value = await waits
  if (!owner) return value
  if (isOfFinishedRun(owner)) return NEVER
  await new Promise<void>((resolve) => whenAwake(owner, resolve))
  return value
}
