import { type Actor, markReturned, NEVER, type Outcome, runAs } from '../gate/actor.js'
import type { ActorPool } from '../gate/actor-pool.js'
import type { Place } from './fault.js'
import type { CrashInstance } from './options.js'

export interface InstanceOptions {
  readonly actor: Actor
  readonly pool: ActorPool
  /** The name in reports: `run`, `recovery 2`. */
  readonly name: string
  readonly number: number
  readonly fn: (db: ActorPool, instance: CrashInstance) => unknown
  /** The point of the fault. */
  readonly target?: Place | undefined
  readonly onChange: () => void
}

/** One start of the program under test. */
export class ProgramInstance {
  readonly actor: Actor
  readonly name: string
  /** How many statements have reached the gate. */
  statements = 0
  target: Place | undefined
  /** True once the instance has called `die()`. */
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

  /** Stops the instance's code for ever. Its promises do not settle, and its timers do not fire. */
  abandon(): void {
    this.actor.begin()
  }

  /** Delays the instance's timers until `thaw()`. The caller releases none of its statements meanwhile. */
  freeze(): void {
    this.actor.frozen = []
  }

  /** Lets the instance go on, and fires the timers that came due meanwhile. */
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
    if (actor.run !== run) return // the instance was killed meanwhile
    actor.outcome = outcome
    onChange()
  }

  async #call(): Promise<unknown> {
    const { fn, pool, number } = this.#options
    try {
      return await fn(pool, { number, die: () => this.#die() })
    } finally {
      markReturned()
    }
  }

  #die(): Promise<never> {
    this.hasDied = true
    this.abandon()
    this.#options.onChange()
    return NEVER
  }
}
