import crypto from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'
import { type Actor, currentActor } from '../../gate/actor.js'
import { seededRandom } from '../../seeded-random.js'

/**
 * Replaces the random functions, and `Date` if a start time is given, so that actors get the same values in every run of a
 * schedule. Code that runs as no actor gets the real values.
 */
export class SeededGlobals {
  readonly #seed: number
  readonly #startMs: number | undefined
  readonly #randoms = new Map<Actor, () => number>()
  /** How often each actor has read `Date`. */
  readonly #timeReads = new Map<Actor, number>()
  readonly #restore: (() => void)[] = []

  constructor(seed: number, clockStartsAt: Date | undefined) {
    this.#seed = seed
    this.#startMs = clockStartsAt?.getTime()
    this.#replace(Math, 'random', (original) => () => this.#nextRandom() ?? original())
    this.#replace(crypto, 'randomUUID', (original) => (options) => this.#uuid() ?? original(options))
    this.#replace(
      globalThis.crypto,
      'randomUUID',
      (original) => () => this.#uuid() ?? original.call(globalThis.crypto),
    )
    syncBuiltinESMExports()
    if (clockStartsAt) this.#replaceDate()
  }

  /** Called before each run. */
  begin(): void {
    this.#randoms.clear()
    this.#timeReads.clear()
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

  /** The next random number of the current actor; undefined outside actors. */
  #nextRandom(): number | undefined {
    const actor = currentActor()
    if (!actor) return undefined
    const seedOfActor = (): number =>
      [...actor.name].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) | 0, this.#seed)
    const next = this.#randoms.get(actor) ?? seededRandom(seedOfActor())
    this.#randoms.set(actor, next)
    return next()
  }

  #uuid(): crypto.UUID | undefined {
    if (!currentActor()) return undefined
    const digit = (): number => Math.floor((this.#nextRandom() ?? 0) * 16)
    return 'xxxxxxxx-xxxx-4xxx-8xxx-xxxxxxxxxxxx'.replace(/x/g, () => digit().toString(16)) as crypto.UUID
  }

  #nowMs(): number | undefined {
    const actor = currentActor()
    if (!actor || this.#startMs === undefined) return undefined
    const reads = this.#timeReads.get(actor) ?? 0
    this.#timeReads.set(actor, reads + 1)
    return this.#startMs + reads
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
      // A date that was made before the replacement must be an instance too.
      Object.defineProperty(SeededDate, Symbol.hasInstance, {
        value: (it: unknown) => it instanceof RealDate,
      })
      // `Date()` without `new` is a string.
      return new Proxy(SeededDate, { apply: () => new SeededDate().toString() }) as unknown as typeof Date
    })
  }
}
