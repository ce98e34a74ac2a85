import { ExplorationError } from '../../errors.js'
import { errorOf } from '../explore/search/failure.js'
import type { Stage } from '../explore/stage/stage.js'
import { type Actor, currentActor, type Outcome } from '../gate/actor.js'
import { patienceOf } from '../patience.js'
import { Driver } from './driver.js'
import type { Fault, Place } from './fault.js'
import { Instance } from './instance.js'
import type { CrashHandle, CrashInstance, CrashLoopOptions } from './options.js'
import type { CrashFailure } from './record.js'
import { Story } from './story.js'

const DEFAULT_STATEMENTS = 500
/** Less than test runners have. */
const USUAL_PATIENCE_MS = 3_000

type Program = (db: CrashHandle, instance: CrashInstance) => unknown

/** One run: who plays in it, what happened so far, and what went wrong. */
export class Scene {
  readonly stage: Stage
  readonly options: CrashLoopOptions
  readonly fault: Fault | undefined
  readonly story = new Story()
  readonly driver: Driver
  readonly patienceMs: number
  /** What each recovery ended with. */
  readonly recoveries: (Outcome | undefined)[] = []
  /** What `run` ended with; undefined if it died. */
  told: Outcome | undefined
  failure: CrashFailure | undefined

  constructor(stage: Stage, options: CrashLoopOptions, fault: Fault | undefined) {
    this.stage = stage
    this.options = options
    this.fault = fault
    this.patienceMs = patienceOf(options.patienceMs, USUAL_PATIENCE_MS)
    this.driver = new Driver({
      stage,
      story: this.story,
      patienceMs: this.patienceMs,
      maxStatements: options.bound?.statements ?? DEFAULT_STATEMENTS,
    })
  }

  async begin(): Promise<void> {
    await this.stage.begin()
    this.options.effects?.clear((what) => this.story.tell(`${this.#nameOf(currentActor())}: ${what}`))
  }

  actor(name: 'run' | 'recovery'): Actor {
    return this.stage.actors.find((actor) => actor.name === name) as Actor
  }

  startRun(program: Program): Instance {
    return this.#start('run', { name: 'run', number: 1, program, target: this.fault })
  }

  startRecovery(target: Place | undefined): Instance {
    const number = this.recoveries.push(undefined)
    const { run, recover: program = run } = this.options
    return this.#start('recovery', { name: `recovery ${number}`, number: number + 1, program, target })
  }

  /** Its process is gone, with all that it held. */
  async kill(instance: Instance): Promise<void> {
    this.driver.forget(instance)
    await this.stage.cast.kill(instance.actor)
  }

  /** It ended itself. */
  async bury(instance: Instance): Promise<void> {
    this.story.tellEnd(instance.name, 'dies by itself')
    await this.kill(instance)
  }

  /** It has come to its end. */
  tellEnd({ name, outcome, actor }: Instance): void {
    if (actor.name === 'run') this.told = outcome
    if (outcome?.status !== 'rejected') return
    // What could not be carried out says nothing about the code.
    if (outcome.reason instanceof ExplorationError) throw outcome.reason
    const { message } = errorOf(outcome.reason)
    this.story.tellEnd(name, `fails: ${message}`)
    if (this.fault === undefined && actor.name === 'run')
      this.fail('failed', `\`run\` failed with nothing done to it: ${message}`)
  }

  fail(kind: CrashFailure['kind'], message: string): void {
    this.failure = { kind, message }
  }

  #start(
    actorName: 'run' | 'recovery',
    { program, ...rest }: { name: string; number: number; program: Program; target: Place | undefined },
  ): Instance {
    const actor = this.actor(actorName)
    const instance = new Instance({
      ...rest,
      actor,
      pool: this.stage.cast.poolOf(actor),
      fn: program,
      onChange: () => this.stage.quiescence.touch(),
    })
    instance.start()
    return instance
  }

  #nameOf(actor: Actor | undefined): string {
    return actor?.name === 'recovery' ? `recovery ${this.recoveries.length}` : (actor?.name ?? 'somebody')
  }
}
