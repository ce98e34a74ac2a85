import { syncBuiltinESMExports } from 'node:module'
import timers from 'node:timers'
import timersPromises from 'node:timers/promises'
import { type Appearance, currentAppearance, isDead, NEVER } from '../gate/actor.js'

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
      const waits = timersPromises[name] as (...parameters: unknown[]) => Promise<unknown>
      if (name !== 'setInterval')
        this.#replace(timersPromises, name, (...given: unknown[]) => untilAwake(waits(...given)))
    }
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
      const timer = original(
        (...values) => {
          if (name !== 'setInterval') this.#set.delete(timer)
          if (!isDead(owner)) whenAwake(owner, () => callback(...values))
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
    const own = Object.getOwnPropertyDescriptor(target, name) as PropertyDescriptor
    Object.defineProperty(target, name, { ...own, value })
    this.#restore.push(() => Object.defineProperty(target, name, own))
  }
}

function whenAwake({ actor }: Appearance, fn: () => void): void {
  if (actor.frozen) actor.frozen.push(fn)
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
