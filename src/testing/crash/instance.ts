import { type Actor, markEnded, NEVER, type Outcome, runAs } from '../gate/actor.js'
import type { ActorPool } from '../gate/actor-pool.js'
import type { Place } from './fault.js'
import type { CrashInstance } from './options.js'

export interface InstanceOptions {
  readonly actor: Actor
  readonly pool: ActorPool
  /** For the reader: `run`, `recovery 2`. */
  readonly name: string
  readonly number: number
  readonly fn: (db: ActorPool, instance: CrashInstance) => unknown
  /** Where something is to be done to it. */
  readonly target?: Place | undefined
  readonly onChange: () => void
}

/** One start of the program under test. */
export class Instance {
  readonly actor: Actor
  readonly name: string
  /** How many of its statements have come to the gate. */
  statements = 0
  target: Place | undefined
  /** It ended itself, without an answer. */
  hasDied = false
  readonly #options: InstanceOptions

  constructor(options: InstanceOptions) {
    this.#options = options
    this.actor = options.actor
    this.name = options.name
    this.target = options.target
  }

  get outcome(): Outcome | undefined {
    return this.actor.outcome
  }

  start(): void {
    this.actor.begin()
    this.actor.hasStarted = true
    void this.#play(this.actor.run)
  }

  /** Its code stands still from now on, for ever: what waits is never answered, timers do not fire. */
  abandon(): void {
    this.actor.begin()
  }

  /** Its timers stand still until it goes on; what it asked for is not let go meanwhile. */
  freeze(): void {
    this.actor.frozen = []
  }

  /** It goes on where it stood still: what its timers would have done comes first. */
  thaw(): void {
    const { frozen } = this.actor
    this.actor.frozen = undefined
    for (const fire of frozen ?? []) fire()
  }

  async #play(run: number): Promise<void> {
    const { actor, onChange } = this.#options
    let outcome: Outcome
    try {
      outcome = { status: 'fulfilled', value: await runAs(actor, () => this.#call()) }
    } catch (reason) {
      outcome = { status: 'rejected', reason }
    }
    if (actor.run !== run) return // it was dead by then
    actor.outcome = outcome
    onChange()
  }

  async #call(): Promise<unknown> {
    const { fn, pool, number } = this.#options
    try {
      return await fn(pool, { number, die: () => this.#die() })
    } finally {
      markEnded()
    }
  }

  #die(): Promise<never> {
    this.hasDied = true
    this.abandon()
    this.#options.onChange()
    return NEVER
  }
}
