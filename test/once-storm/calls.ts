import { LEFT_OVER } from './plans.js'
import type { Call } from './storm-child.js'

/** Calls for a key whose holder was struck, so that somebody is there to take over. */
const URGENT = 3
/** Keys that were called first just now: half of the calls go to these. */
const RECENT = 12

export interface CallsOptions {
  readonly calls: number
  readonly keys: number
  /** Over how long the calls are spread, at least. */
  readonly seconds: number
}

/** Chooses the next call. */
export class Calls {
  readonly #options: CallsOptions
  readonly #random: () => number
  readonly #startedAt = performance.now()
  readonly #lost: Call[] = []
  readonly #urgent: number[] = []
  #made = 0
  #opened = 0

  constructor(options: CallsOptions, random: () => number) {
    this.#options = options
    this.#random = random
  }

  /** Undefined: none is due. */
  next(): Call | undefined {
    const { calls, seconds } = this.#options
    const lost = this.#lost.shift()
    if (lost) return lost
    if (this.#made >= calls) return undefined
    const urgent = this.#urgent.shift()
    const due = ((performance.now() - this.#startedAt) / 1_000 / seconds) * calls
    if (urgent === undefined && this.#made >= due) return undefined
    const call = this.#made++
    return { call, number: urgent ?? this.#draw(call) }
  }

  /** Repeats the calls of a killed process in another process. */
  repeat(calls: Iterable<Call>): void {
    this.#lost.push(...calls)
  }

  hurry(number: number): void {
    for (let n = 0; n < URGENT; n++) this.#urgent.push(number)
  }

  /** New keys come evenly over the run, so that there is live work to strike to its end. */
  #draw(call: number): number {
    const { calls, keys } = this.#options
    if (this.#opened < keys - LEFT_OVER && this.#opened <= ((call + 1) * keys) / calls) return this.#opened++
    const back = Math.min(this.#opened, this.#random() < 0.5 ? RECENT : this.#opened)
    return this.#opened - 1 - Math.floor(this.#random() * back)
  }
}
