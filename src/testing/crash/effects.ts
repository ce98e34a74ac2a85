import { InvalidInputError } from '../../errors.js'
import { checkOptions } from '../../options/check-options.js'
import { NEVER, runsInFinishedRun } from '../gate/actor.js'

/** One effect outside the database, such as a payment or a mail. */
export interface Effect {
  /** The kind of the effect: `charge`. */
  readonly name: string
  /** The idempotency key of the call. */
  readonly key: string
  readonly input: unknown
  /** The result that the caller got. */
  readonly answer: unknown
}

export interface RecordEffectsOptions {
  /**
   * True: a repeated call with the same name and key has no effect and gets the first answer again, as with Stripe. False,
   * the default: each call has an effect, as with mail.
   */
  readonly dedupes?: boolean | undefined
  /** Makes the result for the caller. Default: `{ id: 'charge-1' }`, with a number for each effect. */
  readonly answer?: ((effect: Pick<Effect, 'name' | 'key' | 'input'>, number: number) => unknown) | undefined
}

/**
 * Records effects outside the database by idempotency key, so that a test can assert "charged once". Pass the record to the
 * crash loop as `effects`: a point fails if an effect takes place twice.
 *
 * @example
 * const effects = recordEffects()
 * await effects.perform('charge', 'order-7', { amount: 10 })
 * assert(effects.count('charge', 'order-7') === 1)
 */
export function recordEffects(options: RecordEffectsOptions = {}): RecordedEffects {
  checkOptions(options, ['dedupes', 'answer'])
  return new RecordedEffects(options)
}

export class RecordedEffects {
  readonly #options: RecordEffectsOptions
  readonly #performed: Effect[] = []
  #onEffect: (message: string) => void = () => {}

  constructor(options: RecordEffectsOptions) {
    this.#options = options
  }

  /** All effects, in order. */
  get performed(): readonly Effect[] {
    return this.#performed
  }

  /** The effects that took place more than once, each listed once. */
  get repeated(): readonly Pick<Effect, 'name' | 'key'>[] {
    const seen = new Map(this.#performed.map(({ name, key }) => [JSON.stringify([name, key]), { name, key }]))
    return [...seen.values()].filter(({ name, key }) => this.count(name, key) > 1)
  }

  /** Records an effect, and returns the answer for its caller. */
  async perform(name: string, key: string, input?: unknown): Promise<unknown> {
    if (typeof name !== 'string' || name === '') throw new InvalidInputError('name', 'must be a text')
    if (typeof key !== 'string' || key === '')
      throw new InvalidInputError('key', 'must be a text: what tells this effect from others of its name')
    // A killed process has no further effect.
    if (runsInFinishedRun()) return NEVER // guard: crash.effects
    const { dedupes = false, answer = numbered } = this.#options
    const known = dedupes && this.#performed.find((one) => one.name === name && one.key === key)
    this.#onEffect(`${name} for ${key}${known ? ', which is known: nothing happens' : ''}`)
    if (known) return known.answer
    const effect = { name, key, input }
    const result = answer(effect, this.#performed.length + 1)
    this.#performed.push({ ...effect, answer: result })
    return result
  }

  /** How many effects have this name and, if there is a `key`, this key. */
  count(name: string, key?: string): number {
    return this.#performed.filter((one) => one.name === name && (key === undefined || one.key === key)).length
  }

  /** Forgets all effects, and sets the listener. The crash loop calls this before each run. */
  clear(onEffect: (message: string) => void = () => {}): void {
    this.#performed.length = 0
    this.#onEffect = onEffect
  }
}

const numbered = ({ name }: Pick<Effect, 'name'>, number: number): unknown => ({ id: `${name}-${number}` })
