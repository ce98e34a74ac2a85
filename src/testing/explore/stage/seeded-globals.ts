import crypto from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'
import { type Actor, currentActor } from '../../gate/actor.js'
import { seededRandom } from '../../seeded-random.js'

/**
 * What actors draw at random, and what they read off the clock if one is given, is the same in every run of a schedule.
 * Only for code that runs as an actor: everybody else gets the real thing.
 */
export class SeededGlobals {
  readonly #seed: number
  readonly #startMs: number | undefined
  readonly #draws = new Map<Actor, () => number>()
  readonly #looks = new Map<Actor, number>()
  readonly #restore: (() => void)[] = []

  constructor(seed: number, clock: Date | undefined) {
    this.#seed = seed
    this.#startMs = clock?.getTime()
    this.#replace(Math, 'random', (original) => () => this.#draw() ?? original())
    this.#replace(crypto, 'randomUUID', (original) => (options) => this.#uuid() ?? original(options))
    this.#replace(
      globalThis.crypto,
      'randomUUID',
      (original) => () => this.#uuid() ?? original.call(globalThis.crypto),
    )
    syncBuiltinESMExports()
    if (clock) this.#replaceDate()
  }

  /** Before a new run. */
  begin(): void {
    this.#draws.clear()
    this.#looks.clear()
  }

  close(): void {
    for (const restore of this.#restore) restore()
    syncBuiltinESMExports()
  }

  #replace<T extends object, K extends keyof T>(target: T, name: K, make: (original: T[K]) => T[K]): void {
    const own = Object.getOwnPropertyDescriptor(target, name)
    const original = target[name]
    Object.defineProperty(target, name, { value: make(original), configurable: true, writable: true })
    this.#restore.push(() => {
      if (own) Object.defineProperty(target, name, own)
      else delete target[name]
    })
  }

  /** The next number of whoever is acting. */
  #draw(): number | undefined {
    const actor = currentActor()
    if (!actor) return undefined
    const salt = (): number =>
      [...actor.name].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) | 0, this.#seed)
    const draw = this.#draws.get(actor) ?? seededRandom(salt())
    this.#draws.set(actor, draw)
    return draw()
  }

  #uuid(): crypto.UUID | undefined {
    if (!currentActor()) return undefined
    const digit = (): number => Math.floor((this.#draw() ?? 0) * 16)
    return 'xxxxxxxx-xxxx-4xxx-8xxx-xxxxxxxxxxxx'.replace(/x/g, () => digit().toString(16)) as crypto.UUID
  }

  #nowMs(): number | undefined {
    const actor = currentActor()
    if (!actor || this.#startMs === undefined) return undefined
    const looks = this.#looks.get(actor) ?? 0
    this.#looks.set(actor, looks + 1)
    return this.#startMs + looks
  }

  #replaceDate(): void {
    const nowMs = (): number | undefined => this.#nowMs()
    this.#replace(globalThis, 'Date', (RealDate) => {
      const SeededDate = class extends RealDate {
        constructor(...parameters: unknown[]) {
          const now = parameters.length === 0 ? nowMs() : undefined
          super(...((now === undefined ? parameters : [now]) as []))
        }

        static override now(): number {
          return nowMs() ?? RealDate.now()
        }
      }
      // A date made before this is one too.
      Object.defineProperty(SeededDate, Symbol.hasInstance, {
        value: (it: unknown) => it instanceof RealDate,
      })
      // `Date()` without `new` is a string.
      return new Proxy(SeededDate, { apply: () => new SeededDate().toString() }) as unknown as typeof Date
    })
  }
}
