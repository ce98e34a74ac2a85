import { ExplorationError } from '../../errors.js'
import { describeError } from '../explore/search/failure.js'
import type { TestSession } from '../explore/session/test-session.js'
import { type Actor, currentActor, type Outcome } from '../gate/actor.js'
import { patienceOf } from '../patience.js'
import type { Fault, Place } from './fault.js'
import type { CrashHandle, CrashInstance, CrashLoopOptions } from './options.js'
import { ProgramInstance } from './program-instance.js'
import type { CrashFailure } from './run-record.js'
import { StatementStepper } from './statement-stepper.js'
import { Story } from './story.js'

const DEFAULT_STATEMENTS = 500
/** Shorter than the default timeout of test runners. */
const DEFAULT_PATIENCE_MS = 3_000

type Program = (db: CrashHandle, instance: CrashInstance) => unknown

/** The state of one run: its instances, its story so far, and its failure. */
export class RunContext {
  readonly testSession: TestSession
  readonly options: CrashLoopOptions
  readonly fault: Fault | undefined
  readonly story = new Story()
  readonly stepper: StatementStepper
  readonly patienceMs: number
  /** The outcome of each recovery. */
  readonly recoveries: (Outcome | undefined)[] = []
  /** The outcome of `run`. Undefined if `run` was killed. */
  runOutcome: Outcome | undefined
  failure: CrashFailure | undefined

  constructor(testSession: TestSession, options: CrashLoopOptions, fault: Fault | undefined) {
    this.testSession = testSession
    this.options = options
    this.fault = fault
    this.patienceMs = patienceOf(options.patienceMs, DEFAULT_PATIENCE_MS)
    this.stepper = new StatementStepper({
      testSession,
      story: this.story,
      patienceMs: this.patienceMs,
      maxStatements: options.bound?.statements ?? DEFAULT_STATEMENTS,
    })
  }

  async begin(): Promise<void> {
    await this.testSession.beginRun()
    this.options.effects?.clear((what) => this.story.addEvent(`${this.#nameOf(currentActor())}: ${what}`))
  }

  actor(name: 'run' | 'recovery'): Actor {
    return this.testSession.actors.find((actor) => actor.name === name) as Actor
  }

  startRun(program: Program): ProgramInstance {
    return this.#start('run', { name: 'run', number: 1, program, target: this.fault })
  }

  startRecovery(target: Place | undefined): ProgramInstance {
    const number = this.recoveries.push(undefined)
    const { run, recover: program = run } = this.options
    return this.#start('recovery', { name: `recovery ${number}`, number: number + 1, program, target })
  }

  /** Ends an instance and its connections, which frees its locks. */
  async kill(instance: ProgramInstance): Promise<void> {
    this.stepper.forget(instance)
    await this.testSession.actorSet.kill(instance.actor)
  }

  /** Records that an instance has called `die()`. */
  async recordDeath(instance: ProgramInstance): Promise<void> {
    this.story.addEnd(instance.name, 'dies by itself')
    await this.kill(instance)
  }

  /** Records the outcome of an instance. */
  recordEnd({ name, outcome, actor }: ProgramInstance): void {
    if (actor.name === 'run') this.runOutcome = outcome
    if (outcome?.status !== 'rejected') return
    // The loop could not run the program, so the outcome says nothing about the program.
    if (outcome.reason instanceof ExplorationError) throw outcome.reason
    const { message } = describeError(outcome.reason)
    this.story.addEnd(name, `fails: ${message}`)
    if (this.fault === undefined && actor.name === 'run')
      this.fail('failed', `\`run\` failed with nothing done to it: ${message}`)
  }

  fail(kind: CrashFailure['kind'], message: string): void {
    this.failure = { kind, message }
  }

  #start(
    actorName: 'run' | 'recovery',
    { program, ...rest }: { name: string; number: number; program: Program; target: Place | undefined },
  ): ProgramInstance {
    const actor = this.actor(actorName)
    const instance = new ProgramInstance({
      ...rest,
      actor,
      pool: this.testSession.actorSet.poolOf(actor),
      fn: program,
      onChange: () => this.testSession.quiescence.noteActivity(),
    })
    instance.start()
    return instance
  }

  #nameOf(actor: Actor | undefined): string {
    return actor?.name === 'recovery' ? `recovery ${this.recoveries.length}` : (actor?.name ?? 'somebody')
  }
}
