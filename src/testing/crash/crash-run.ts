import { type Failure, violationOf } from '../explore/search/failure.js'
import { callSite } from '../gate/call-site.js'
import { Child } from './child.js'
import type { Struck } from './driver.js'
import { encodeFault, type Fault } from './fault.js'
import { endsConnection, injectedError, isSilent } from './injected-errors.js'
import type { Instance } from './instance.js'
import { type LateWrite, LateWrites } from './late-writes.js'
import type { CrashHandle, CrashLoopOptions } from './options.js'
import type { CrashFailure, RunRecord } from './record.js'
import { type LeftBehind, Recovery } from './recovery.js'
import type { Scene } from './scene.js'
import type { CrashableServer } from './server-crash.js'
import { type StatementLine, type StoryLine, statementsOfRun } from './story.js'

/** Runs the program once, does something to it, lets it recover, and judges what is left. */
export class CrashRun {
  readonly #scene: Scene
  readonly #server: CrashableServer | undefined
  #child: Child | undefined
  /** The statement at which something was done. */
  #line: StatementLine | undefined
  #left: LeftBehind | undefined

  /** @param server for mode `server` */
  constructor(scene: Scene, server: CrashableServer | undefined) {
    this.#scene = scene
    this.#server = server
  }

  async run(): Promise<RunRecord> {
    const scene = this.#scene
    await scene.begin()
    const run = scene.startRun(scene.fault?.mode === 'process' ? this.#playChild : scene.options.run)
    try {
      await this.#go(run)
      // To tell harm that `run` does from harm that comes of running it again.
      const hasEnded = scene.told?.status === 'fulfilled'
      const isRightAlone = !scene.fault && hasEnded && !(await this.#wrong([]))
      const recovery = new Recovery(scene, this.#left)
      if (!scene.failure) await recovery.run()
      scene.stage.end()
      scene.failure ??= await this.#wrong(recovery.lateWrites)
      // Of what is left undone nobody has said that `run` should have done it.
      if (scene.failure && scene.failure.kind !== 'progress' && isRightAlone)
        scene.failure = afterwards(scene.failure, scene.options)
      return this.#record(run, recovery)
    } finally {
      await this.#child?.kill()
    }
  }

  /** What `recover` does where nothing was run before: to know it again. */
  async recoverAlone(): Promise<readonly StoryLine[]> {
    await this.#scene.begin()
    await new Recovery(this.#scene, undefined).once()
    this.#scene.stage.end()
    return this.#scene.story.lines
  }

  readonly #playChild = async (db: CrashHandle): Promise<void> => {
    const { child } = this.#scene.options
    this.#child = new Child(() => child?.(db.url))
    await this.#child.ended()
  }

  /** As far as it goes by itself; what is done to it is done on the way. */
  async #go(run: Instance): Promise<void> {
    const rest = await this.#scene.driver.drive([run])
    if (rest.kind === 'struck') await this.#strike(rest)
    else if (rest.kind === 'died') await this.#scene.bury(run)
    else if (rest.kind === 'ended') this.#scene.tellEnd(run)
    else
      this.#scene.fail(
        'stuck',
        this.#child
          ? 'run hangs: the child process has not ended, and sends nothing more.'
          : `run hangs: ${rest.message}`,
      )
  }

  async #strike(struck: Struck): Promise<void> {
    const { story, driver, stage } = this.#scene
    const { mode, signal } = this.#scene.fault as Fault
    const { instance } = struck
    this.#line = struck.line
    instance.target = undefined
    if (mode === 'zombie' || signal === 'SIGSTOP') return this.#fallAsleep(struck)
    if (mode === 'error') return this.#inject(struck)
    driver.forget(instance)
    switch (mode) {
      case 'half-open':
        story.tellFault('the process is gone, and the server has not noticed')
        instance.abandon()
        this.#left = { kind: 'ghost', instance }
        return
      case 'server':
        story.tellFault('the server is shut down at once, and comes back')
        await this.#server?.crash(stage)
        return this.#go(instance)
      default:
        story.tellFault('the process is killed')
        await this.#child?.kill()
        return this.#scene.kill(instance)
    }
  }

  async #fallAsleep(struck: Struck): Promise<void> {
    const { story, stage } = this.#scene
    story.tellFault('the process stands still')
    this.#child?.stop()
    struck.instance.freeze()
    // Whoever has claimed nothing yet is not late, only slow to start.
    const hasClaimed = statementsOfRun(story.lines).some(hasCommitted)
    const late = hasClaimed || struck.session.holdsLocks ? await LateWrites.watch(stage) : undefined
    this.#left = { kind: 'sleeper', instance: struck.instance, struck, late, child: this.#child }
  }

  async #inject({ instance, session, line }: Struck): Promise<void> {
    const { story, driver, fault } = this.#scene
    const { code = '', side } = fault as Fault
    const error = injectedError(code, encodeFault(fault))
    driver.forget(instance)
    if (side === 'before') line.effect = { kind: 'injected', ...error }
    story.tellFault(
      side === 'before'
        ? `the statement fails with ${code}`
        : `the connection ends with ${code} before the answer is seen`,
    )
    if (endsConnection(code)) session.cut(error, !isSilent(code))
    else session.refuse(error)
    return this.#go(instance)
  }

  /** What is wrong now. */
  async #wrong(lateWrites: readonly LateWrite[]): Promise<CrashFailure | undefined> {
    const { stage, options, told, recoveries } = this.#scene
    const { invariant, effects } = options
    const fault = this.#line && this.#scene.fault
    const violation =
      invariant && (await violationOf(stage, (db) => invariant(db, { run: told, recoveries, fault })))
    const [effect] = effects?.repeated ?? []
    const found: CrashFailure[] = [
      ...(effect
        ? [
            {
              kind: 'repeated effect' as const,
              message: `${effect.name} took place ${effects?.count(effect.name, effect.key)} times for ${effect.key}.`,
            },
          ]
        : []),
      ...(violation ? [{ kind: 'invariant' as const, message: sayViolation(violation) }] : []),
      ...lateWrites.slice(0, 1).map(({ table, row }) => ({
        kind: 'late write' as const,
        message: `After it woke up, run has written over what another had written meanwhile: ${table} ${JSON.stringify(row)}.`,
      })),
    ]
    const [first] = found
    return first && { ...first, message: found.map(({ message }) => message).join('\n') }
  }

  #record(run: Instance, { isCrashed, waited, lateWrites }: Recovery): RunRecord {
    const { fault, story, told, failure, recoveries, options } = this.#scene
    const hangs = failure?.kind === 'stuck' && recoveries.length === 0 && !run.hasDied
    return {
      fault,
      isReached: this.#line !== undefined,
      isReachedAgain: isCrashed,
      line: this.#line,
      story: story.lines,
      run: told?.status ?? (hangs ? 'hangs' : 'died'),
      recoveries: recoveries.length,
      waited: failure?.kind === 'progress' ? undefined : waited,
      lateWrites,
      repeated: (options.effects?.repeated ?? []).map(({ name, key }) => `${name} ${key}`),
      failure,
    }
  }
}

/** Of a mistake in the invariant itself, where it is. */
function sayViolation({ name, message, cause }: Failure): string {
  if (!/^(?:Type|Reference|Syntax|Range)Error$/.test(name)) return message
  const at = callSite(cause as Error)
  return `the invariant threw ${name}: ${message}${at ? `, at ${at}` : ''}`
}

function afterwards(failure: CrashFailure, { recover }: CrashLoopOptions): CrashFailure {
  const what = recover
    ? '`run` alone is right. `recover` after it is not.'
    : '`run` alone is right. Run again, as somebody does who got no answer, it is not. If nobody does that, give a `recover`.'
  return { ...failure, message: `${failure.message}\n${what}` }
}

const hasCommitted = ({ commits, effect }: StatementLine): boolean =>
  commits && (effect.kind === 'done' || effect.kind === 'unseen') && !effect.result.error
