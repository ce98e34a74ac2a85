import { syncBuiltinESMExports } from 'node:module'
import timers from 'node:timers'
import timersPromises from 'node:timers/promises'
import { type Appearance, bindToActor, currentAppearance, isDead, NEVER } from '../gate/actor.js'

type Callback = (...parameters: unknown[]) => void
type SetTimer = (callback: Callback, ...rest: unknown[]) => object

const CLEARS = {
  setTimeout: 'clearTimeout',
  setInterval: 'clearInterval',
  setImmediate: 'clearImmediate',
} as const

/**
 * Timers of a process that is gone never fire, and those of one that stands still fire when it goes on. Only for code
 * that runs as an instance: everybody else's are as ever.
 */
export class InstanceTimers {
  readonly #restore: (() => void)[] = []
  /** Those that were set and may not have fired yet, with what clears them. */
  readonly #set = new Map<object, { readonly owner: Appearance; readonly clear: () => void }>()

  constructor() {
    for (const name of Object.keys(CLEARS) as (keyof typeof CLEARS)[]) {
      const replaced = this.#owned(name, globalThis[name] as SetTimer)
      this.#replace(globalThis, name, replaced)
      this.#replace(timers, name, replaced)
    }
    for (const name of ['setTimeout', 'setImmediate'] as const) {
      const waits = timersPromises[name] as (...parameters: unknown[]) => Promise<unknown>
      this.#replace(timersPromises, name, (...given: unknown[]) => untilAwake(waits(...given)))
    }
    const { setInterval } = timersPromises
    this.#replace(timersPromises, 'setInterval', async function* <T>(...given: [number?, T?, object?]) {
      for await (const value of setInterval(...given)) yield await untilAwake(Promise.resolve(value))
    })
    const { scheduler } = timersPromises
    const wait = scheduler.wait.bind(scheduler)
    this.#replace(scheduler, 'wait', (...given: Parameters<typeof wait>) => untilAwake(wait(...given)))
    syncBuiltinESMExports()
  }

  /** Clears what processes have left that are gone: it would keep this one alive. */
  sweep(): void {
    for (const [timer, { owner, clear }] of this.#set) {
      if (!isDead(owner)) continue
      clear()
      this.#set.delete(timer)
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
      const owner = currentAppearance()
      if (!owner || typeof callback !== 'function') return original(callback, ...rest)
      let isDue = false
      const timer = original(
        (...values) => {
          if (name !== 'setInterval') this.#set.delete(timer)
          // An interval that was missed several times fires once.
          if (isDead(owner) || isDue) return
          isDue = true
          whenAwake(owner, () => {
            isDue = false
            callback(...values)
          })
        },
        ...rest,
      )
      this.#set.set(timer, { owner, clear: () => clear(timer) })
      return timer
    }
    // `util.promisify` asks for more than the function.
    return Object.defineProperties(owned, Object.getOwnPropertyDescriptors(original)) as SetTimer
  }

  #replace(target: object, name: string, value: unknown): void {
    const own = Object.getOwnPropertyDescriptor(target, name)
    Object.defineProperty(target, name, { configurable: true, writable: true, ...own, value })
    this.#restore.push(() => {
      if (own) Object.defineProperty(target, name, own)
      else Reflect.deleteProperty(target, name) // it was its prototype's
    })
  }
}

/** What is done then is still its owner's doing. */
function whenAwake({ actor }: Appearance, fn: () => void): void {
  if (actor.frozen) actor.frozen.push(bindToActor(fn))
  else fn()
}

async function untilAwake(waits: Promise<unknown>): Promise<unknown> {
  const owner = currentAppearance()
  const value = await waits
  if (!owner) return value
  if (isDead(owner)) return NEVER
  await new Promise<void>((resolve) => whenAwake(owner, resolve))
  return value
}
