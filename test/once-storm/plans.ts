import { hashKey, scopeOfOperation } from '../../src/postgres/key.js'
// @ts-expect-error: plain JavaScript, since processes of their own run it too
import * as work from '../children/once-work.mjs'

/** Keys that are first called at the very end, by processes that then die: maintenance must finish them. */
export const LEFT_OVER = 16

/** The work under one key. */
export interface Plan {
  readonly key: string
  readonly kind: 'leased' | 'joined' | 'operation'
  readonly hasSteps: boolean
}

/** The keys of a storm, by their numbers. */
export class Plans {
  readonly #byNumber: ReadonlyMap<number, Plan>
  readonly #numbers: ReadonlyMap<string, number>
  readonly leftOver: readonly number[]

  constructor(keys: number, seed: number) {
    // Every third number is of an operation.
    this.leftOver = Array.from({ length: LEFT_OVER }, (_, n) => 3 * (keys + n) + 2)
    const numbers = [...Array(keys - LEFT_OVER).keys(), ...this.leftOver]
    this.#byNumber = new Map(numbers.map((number) => [number, work.planOf(number, seed)]))
    this.#numbers = new Map([...this.#byNumber].map(([number, { key }]) => [key, number]))
  }

  get all(): Iterable<Plan> {
    return this.#byNumber.values()
  }

  keyOf(number: number): string {
    return this.#byNumber.get(number)?.key ?? `unknown ${number}`
  }

  numberOf(key: string): number {
    return this.#numbers.get(key) ?? -1
  }

  /** The hash of the key, as events have it. */
  hashOf(key: string): string {
    const isOperation = this.#byNumber.get(this.numberOf(key))?.kind === 'operation'
    return hashKey(`${isOperation ? scopeOfOperation(work.OPERATION) : work.SCOPE}\n${key}`)
  }
}

/** The effects outside the database that a key must have, each once. Work within the database has none. */
export function effectsOf({ key, kind, hasSteps }: Plan): string[] {
  if (kind === 'joined') return []
  return kind === 'operation' && hasSteps ? [`${key}/pay`, `${key}/mail`] : [key]
}
