import { InvalidInputError } from '../../errors.js'
import { checkOptions } from '../../postgres/check-options.js'
import { isOfEarlierRun, NEVER } from '../gate/actor.js'

/** Something that was done to the world outside. */
export interface Effect {
  /** What kind: `charge`. */
  readonly name: string
  /** The idempotency key that came with it. */
  readonly key: string
  readonly input: unknown
  /** What the caller was told. */
  readonly answer: unknown
}

export interface RecordEffectsOptions {
  /**
   * True: a call with a known name and key has no effect and gets the first answer again, as with Stripe. False, the default:
   * each call has one, as with mail.
   */
  readonly dedupes?: boolean | undefined
  /** What callers are told. Default: `{ id: 'charge-1' }`, a number for each effect. */
  readonly answer?: ((effect: Pick<Effect, 'name' | 'key' | 'input'>, number: number) => unknown) | undefined
}

/**
 * A world outside that remembers what was done to it, by idempotency key, so that "charged twice" can be asserted. Give it to
 * the crash loop as `effects`, and none may take place twice.
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
  #tell: (what: string) => void = () => {}

  constructor(options: RecordEffectsOptions) {
    this.#options = options
  }

  /** In the order in which they took place. */
  get performed(): readonly Effect[] {
    return this.#performed
  }

  /** Those that took place more than once, each once. */
  get repeated(): readonly Pick<Effect, 'name' | 'key'>[] {
    const seen = new Map(this.#performed.map(({ name, key }) => [JSON.stringify([name, key]), { name, key }]))
    return [...seen.values()].filter(({ name, key }) => this.count(name, key) > 1)
  }

  /** Does it. */
  async perform(name: string, key: string, input?: unknown): Promise<unknown> {
    if (typeof name !== 'string' || name === '') throw new InvalidInputError('name', 'must be a text')
    if (typeof key !== 'string' || key === '')
      throw new InvalidInputError('key', 'must be a text: what tells this effect from others of its name')
    // A process that was killed does nothing any more.
    if (isOfEarlierRun()) return NEVER
    const { dedupes = false, answer = numbered } = this.#options
    const known = dedupes && this.#performed.find((one) => one.name === name && one.key === key)
    this.#tell(`${name} for ${key}${known ? ', which is known: nothing happens' : ''}`)
    if (known) return known.answer
    const effect = { name, key, input }
    const told = answer(effect, this.#performed.length + 1)
    this.#performed.push({ ...effect, answer: told })
    return told
  }

  /** How often it took place: with this name, and with this key if one is given. */
  count(name: string, key?: string): number {
    return this.#performed.filter((one) => one.name === name && (key === undefined || one.key === key)).length
  }

  /** Forgets all of it, and tells somebody else from now on. The crash loop does so before each run. */
  clear(tell: (what: string) => void = () => {}): void {
    this.#performed.length = 0
    this.#tell = tell
  }
}

const numbered = ({ name }: Pick<Effect, 'name'>, number: number): unknown => ({ id: `${name}-${number}` })
