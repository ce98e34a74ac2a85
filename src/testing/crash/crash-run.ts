import { type Failure, findViolation } from '../explore/search/failure.js'
import { callSite } from '../gate/call-site.js'
import { ChildProgram } from './child-program.js'
import type { CrashableServer } from './crashable-server.js'
import { encodeFault, type Fault } from './fault.js'
import { endsConnection, injectedError, isSilent } from './injected-errors.js'
import { type LateWrite, LateWrites } from './late-writes.js'
import type { CrashHandle, CrashLoopOptions } from './options.js'
import type { ProgramInstance } from './program-instance.js'
import { type LeftBehind, Recovery } from './recovery.js'
import type { RunContext } from './run-context.js'
import type { CrashFailure, RunRecord } from './run-record.js'
import type { ReachedPoint } from './statement-stepper.js'
import { type StatementLine, type StoryLine, statementsOfRun } from './story.js'

/** Runs the program once with a fault, lets it recover, and checks the result. */
export class CrashRun {
  readonly #context: RunContext
  readonly #server: CrashableServer | undefined
  #child: ChildProgram | undefined
  /** The statement at which the fault was injected. */
  #line: StatementLine | undefined
  #leftBehind: LeftBehind | undefined

  /** @param server for mode `server` */
  constructor(context: RunContext, server: CrashableServer | undefined) {
    this.#context = context
    this.#server = server
  }

  async run(): Promise<RunRecord> {
    const context = this.#context
    await context.begin()
    const run = context.startRun(context.fault?.mode === 'process' ? this.#playChild : context.options.run)
    try {
      await this.#drive(run)
      // Checked before the recovery, to separate a bug of `run` from a bug of running it again.
      const hasFulfilled = context.runOutcome?.status === 'fulfilled'
      const isRightAlone = !context.fault && hasFulfilled && !(await this.#check([]))
      const recovery = new Recovery(context, this.#leftBehind)
      if (!context.failure) await recovery.run()
      context.testSession.endRun()
      context.failure ??= await this.#check(recovery.lateWrites)
      // A `progress` failure says nothing about `run` alone: `progress` was not called before the recovery.
      if (context.failure && context.failure.kind !== 'progress' && isRightAlone)
        context.failure = blameRecovery(context.failure, context.options)
      return this.#record(run, recovery)
    } finally {
      await this.#child?.kill()
    }
  }

  /** Runs `recover` on fresh data, to recognize the same statements in a later recovery. */
  async recoverAlone(): Promise<readonly StoryLine[]> {
    await this.#context.begin()
    await new Recovery(this.#context, undefined).runOnce()
    this.#context.testSession.endRun()
    return this.#context.story.lines
  }

  readonly #playChild = async (db: CrashHandle): Promise<void> => {
    const { child } = this.#context.options
    this.#child = new ChildProgram(() => child?.(db.url))
    await this.#child.ended()
  }

  /** Lets the instance run to its end, and injects the fault at its point. */
  async #drive(run: ProgramInstance): Promise<void> {
    const stop = await this.#context.stepper.drive([run])
    if (stop.kind === 'at-point') await this.#applyFault(stop)
    else if (stop.kind === 'died') await this.#context.recordDeath(run)
    else if (stop.kind === 'ended') this.#context.recordEnd(run)
    else
      this.#context.fail(
        'stuck',
        this.#child
          ? 'run hangs: the child process has not ended, and sends nothing more.'
          : `run hangs: ${stop.message}`,
      )
  }

  async #applyFault(reached: ReachedPoint): Promise<void> {
    const { story, stepper, testSession } = this.#context
    const { mode, signal } = this.#context.fault as Fault
    const { instance } = reached
    this.#line = reached.line
    instance.target = undefined
    if (mode === 'zombie' || signal === 'SIGSTOP') return this.#suspend(reached)
    if (mode === 'error') return this.#inject(reached)
    stepper.forget(instance)
    switch (mode) {
      case 'half-open':
        story.addFault('the process is gone, and the server has not noticed')
        instance.abandon()
        this.#leftBehind = { kind: 'half-open', instance }
        return
      case 'server':
        story.addFault('the server is shut down at once, and comes back')
        await this.#server?.crash(testSession)
        return this.#drive(instance)
      default:
        story.addFault('the process is killed')
        await this.#child?.kill()
        return this.#context.kill(instance)
    }
  }

  async #suspend(reached: ReachedPoint): Promise<void> {
    const { story, testSession } = this.#context
    story.addFault('the process stands still')
    this.#child?.stop()
    reached.instance.freeze()
    // An instance that has committed nothing and holds no lock is only slow to start. It has no claim to lose.
    const hasClaimed = statementsOfRun(story.lines).some(hasCommitted)
    const late = hasClaimed || reached.session.holdsLocks ? await LateWrites.watch(testSession) : undefined
    this.#leftBehind = { kind: 'zombie', instance: reached.instance, reached, late, child: this.#child }
  }

  async #inject({ instance, session, line }: ReachedPoint): Promise<void> {
    const { story, stepper, fault } = this.#context
    const { code = '', side } = fault as Fault
    const error = injectedError(code, encodeFault(fault))
    stepper.forget(instance)
    if (side === 'before') line.effect = { kind: 'injected', ...error }
    story.addFault(
      side === 'before'
        ? `the statement fails with ${code}`
        : `the connection ends with ${code} before the answer is seen`,
    )
    if (endsConnection(code)) session.cut(error, !isSilent(code))
    else session.refuse(error)
    return this.#drive(instance)
  }

  /** Returns what is wrong in the end. */
  async #check(lateWrites: readonly LateWrite[]): Promise<CrashFailure | undefined> {
    const { testSession, options, runOutcome, recoveries } = this.#context
    const { invariant, effects } = options
    const fault = this.#line && this.#context.fault
    const violation =
      invariant &&
      (await findViolation(testSession, (db) => invariant(db, { run: runOutcome, recoveries, fault })))
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
      ...(violation ? [{ kind: 'invariant' as const, message: describeViolation(violation) }] : []),
      ...lateWrites.slice(0, 1).map(({ table, row }) => ({
        kind: 'late write' as const,
        message: `After it woke up, run has written over what another had written meanwhile: ${table} ${JSON.stringify(row)}.`,
      })),
    ]
    const [first] = found
    return first && { ...first, message: found.map(({ message }) => message).join('\n') }
  }

  #record(run: ProgramInstance, { isCrashed, waited, lateWrites }: Recovery): RunRecord {
    const { fault, story, runOutcome, failure, recoveries, options } = this.#context
    const hangs = failure?.kind === 'stuck' && recoveries.length === 0 && !run.hasDied
    return {
      fault,
      isReached: this.#line !== undefined,
      isReachedAgain: isCrashed,
      line: this.#line,
      story: story.lines,
      run: runOutcome?.status ?? (hangs ? 'hangs' : 'died'),
      recoveries: recoveries.length,
      waited: failure?.kind === 'progress' ? undefined : waited,
      lateWrites,
      repeated: (options.effects?.repeated ?? []).map(({ name, key }) => `${name} ${key}`),
      failure,
    }
  }
}

/** Adds the call site if the invariant itself has a bug. */
function describeViolation({ name, message, cause }: Failure): string {
  if (!/^(?:Type|Reference|Syntax|Range)Error$/.test(name)) return message
  const at = callSite(cause as Error)
  return `the invariant threw ${name}: ${message}${at ? `, at ${at}` : ''}`
}

/** Adds that `run` alone is right, so the recovery is wrong. */
function blameRecovery(failure: CrashFailure, { recover }: CrashLoopOptions): CrashFailure {
  const what = recover
    ? '`run` alone is right. `recover` after it is not.'
    : '`run` alone is right. Run again, as somebody does who got no answer, it is not. If nobody does that, give a `recover`.'
  return { ...failure, message: `${failure.message}\n${what}` }
}

const hasCommitted = ({ commits, effect }: StatementLine): boolean =>
  commits && (effect.kind === 'done' || effect.kind === 'unseen') && !effect.result.error
