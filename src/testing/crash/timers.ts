import { syncBuiltinESMExports } from 'node:module'
import timers from 'node:timers'
import timersPromises from 'node:timers/promises'
import { type Appearance, currentAppearance, isDead, NEVER } from '../gate/actor.js'

type Callback = (...parameters: unknown[]) => void

/**
 * Timers of a process that is gone never fire, and those of one that stands still fire when it goes on. Only for code
 * that runs as an instance: everybody else's are as ever.
 */
export class InstanceTimers {
  readonly #restore: (() => void)[] = []

  constructor() {
    for (const name of ['setTimeout', 'setInterval', 'setImmediate'] as const) {
      const original = globalThis[name] as (
        callback: Callback,
        ...rest: unknown[]
      ) => { [Symbol.dispose](): void }
      const replaced = (callback: Callback, ...rest: unknown[]): unknown => {
        const owner = currentAppearance()
        if (!owner || typeof callback !== 'function') return original(callback, ...rest)
        const timer = original(
          (...values) => {
            if (isDead(owner)) timer[Symbol.dispose]()
            else whenAwake(owner, () => callback(...values))
          },
          ...rest,
        )
        return timer
      }
      // util.promisify asks for it.
      Object.defineProperties(replaced, Object.getOwnPropertyDescriptors(original))
      this.#replace(globalThis, name, replaced)
      this.#replace(timers, name, replaced)
      const waits = timersPromises[name] as (...parameters: unknown[]) => Promise<unknown>
      if (name !== 'setInterval')
        this.#replace(timersPromises, name, (...given: unknown[]) => untilAwake(waits(...given)))
    }
    syncBuiltinESMExports()
  }

  close(): void {
    for (const restore of this.#restore) restore()
    syncBuiltinESMExports()
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
