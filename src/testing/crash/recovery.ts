import { ExplorationError } from '../../errors.js'
import { withTimeout } from '../../postgres/with-timeout.js'
import { count } from '../count.js'
import { describeError, isReadOnlyViolation } from '../explore/search/failure.js'
import type { Actor } from '../gate/actor.js'
import type { ChildProgram } from './child-program.js'
import type { LateWrite, LateWrites } from './late-writes.js'
import type { CrashLoopOptions } from './options.js'
import type { ProgramInstance } from './program-instance.js'
import type { RunContext } from './run-context.js'
import { findIdleTimeout, haveLocks } from './session-locks.js'
import type { ReachedPoint, StopReason } from './statement-stepper.js'

/** The instance that a fault has left behind. */
export type LeftBehind =
  /** The process is killed, and the server has not noticed. */
  | { readonly kind: 'half-open'; readonly instance: ProgramInstance }
  /** The process is paused. */
  | {
      readonly kind: 'zombie'
      readonly instance: ProgramInstance
      readonly reached: ReachedPoint
      readonly late: LateWrites | undefined
      readonly child: ChildProgram | undefined
    }

type Zombie = Extract<LeftBehind, { kind: 'zombie' }>
type Blocked = Extract<StopReason, { kind: 'blocked' }>

const DEFAULT_RECOVERIES = 3
/** How often to check whether `advance` waits for a lock of the instance that was left behind. */
const POLL_MS = 100

/** Runs fresh instances, one after the other, until all is done. Resumes or ends the instance that was left behind. */
export class Recovery {
  /** True once the second crash has happened. */
  isCrashed = false
  /** Describes the first wait for the instance that was left behind. */
  waited: string | undefined
  /** The rows that the zombie has overwritten after it woke up. */
  lateWrites: readonly LateWrite[] = []
  readonly #context: RunContext
  #leftBehind: LeftBehind | undefined
  /** True if no idle timeout of the server would have ended the wait. */
  #isUnbounded = false
  /** The statements of all recoveries so far. */
  #statements = 0

  constructor(context: RunContext, left: LeftBehind | undefined) {
    this.#context = context
    this.#leftBehind = left
  }

  async run(): Promise<void> {
    const { options, story, fault } = this.#context
    const { bound, advance } = options
    const maxRecoveries = (bound?.recoveries ?? DEFAULT_RECOVERIES) + (fault?.again ? 1 : 0)
    for (let n = 1; n <= maxRecoveries; n++) {
      if (n > 1 && advance) {
        story.addEvent('time moves past the leases')
        await this.#advance(advance)
        if (this.#context.failure) return
      }
      await this.runOnce()
      // Once time is past the leases, another instance could have taken over.
      const isPastLeases = n > 1 || !advance || n === maxRecoveries
      const isDone = !this.#context.failure && (await this.#isDone(isPastLeases))
      if (this.#context.failure || (isDone && this.#leftBehind === undefined)) return
    }
    const last = this.#context.recoveries.at(-1)
    const why =
      last?.status === 'rejected' ? ` The last one failed: ${describeError(last.reason).message}.` : ''
    const hint = advance ? '' : ' Time stood still meanwhile: there is no `advance`.'
    this.#context.fail('progress', `Not all is done after ${count(maxRecoveries, 'recovery')}.${why}${hint}`)
  }

  /** Runs one fresh instance. */
  async runOnce(): Promise<void> {
    const { testSession, stepper, recoveries } = this.#context
    const again = this.isCrashed ? undefined : this.#context.fault?.again // guard: crash.second-crash
    await testSession.actorSet.kill(this.#context.actor('recovery'))
    const instance = this.#context.startRecovery(
      again && { side: again.side, statement: again.statement - this.#statements },
    )
    await this.#afterStop(await stepper.drive([instance]), instance)
    this.#statements += instance.statements
    recoveries[recoveries.length - 1] = instance.outcome
  }

  /** Runs `advance`. If it waits for a lock of the instance that was left behind, that instance is ended or resumed. */
  async #advance(advance: NonNullable<CrashLoopOptions['advance']>): Promise<void> {
    const { testSession, story } = this.#context
    let isOver = false
    const advancing = testSession.advance(advance).finally(() => {
      isOver = true
    })
    advancing.catch(() => {}) // awaited below
    const until = performance.now() + this.#context.patienceMs
    while (!isOver) {
      await withTimeout(advancing, POLL_MS, () => {})
      if (isOver) break
      if (!(await this.#isBlockedByLeftBehind(testSession.actorSet.setup.actor))) {
        if (performance.now() > until) throw this.#stalled()
        continue
      }
      this.waited ??= '`advance` waits for run'
      story.addEvent('`advance` waits for run')
      if (this.#leftBehind?.kind === 'zombie') await this.#wake(this.#leftBehind, undefined)
      else if (this.#leftBehind) await this.#closeHalfOpen(this.#leftBehind.instance, true)
    }
    await advancing
  }

  #stalled(): ExplorationError {
    return new ExplorationError(
      `\`advance\` has not come to its end in ${this.#context.patienceMs} ms. Does somebody hold a lock that it wants? Raise patienceMs if it only takes its time.`,
      'advance',
    )
  }

  async #isBlockedByLeftBehind({ sessions }: Actor): Promise<boolean> {
    const leftPids = [...(this.#leftBehind?.instance.actor.sessions ?? [])].map(({ pid }) => pid)
    const waits = await this.#context.testSession.probe.findBlocked(
      [...sessions].map(({ pid }) => pid),
      leftPids,
    )
    return [...waits.values()].some(({ by }) => by.some((pid) => leftPids.includes(pid)))
  }

  /** Reacts to the stop of a recovering instance. */
  async #afterStop(stop: StopReason, instance: ProgramInstance): Promise<void> {
    switch (stop.kind) {
      case 'ended':
        return this.#context.recordEnd(instance)
      case 'died':
        return this.#context.recordDeath(instance)
      case 'at-point':
        this.isCrashed = true
        this.#context.story.addFault('the process is killed')
        return this.#context.kill(instance)
      case 'blocked':
        if (this.#leftBehind) return this.#resolveBlock(stop, instance, this.#leftBehind)
    }
    const ended = stop.kind === 'blocked' ? '\n`run` has ended and left its transaction open.' : ''
    this.#context.fail('stuck', `${instance.name} hangs: ${stop.message}${ended}`)
  }

  /** Returns whether all is done. Past the leases, first resumes the zombie or ends the half-open connection. */
  async #isDone(isPastLeases: boolean): Promise<boolean> {
    if (this.#leftBehind?.kind === 'zombie' && isPastLeases) await this.#wake(this.#leftBehind, undefined)
    if (this.#context.failure) return false
    const isDone = await this.#hasProgressed()
    if (this.#leftBehind?.kind === 'half-open' && isPastLeases) {
      const hadLocks = await this.#closeHalfOpen(this.#leftBehind.instance, isDone)
      // The recovery may have skipped locked rows, and no `progress` tells whether work is left. One more instance runs.
      if (hadLocks && !this.#context.options.progress) return false
    }
    if (isDone && this.#isUnbounded && this.#context.options.mayWait === false)
      this.#context.fail('waited', `${this.waited}.`)
    return isDone
  }

  /** Called when `instance` waits for the instance that was left behind. Ends or resumes the latter. */
  async #resolveBlock({ by, message }: Blocked, instance: ProgramInstance, left: LeftBehind): Promise<void> {
    const limit = await findIdleTimeout(by)
    this.waited ??= message
    const isGone = left.kind === 'half-open'
    if (this.#context.options.mayWait === false && limit === undefined) {
      const who = isGone ? 'which is gone; the server may take hours to notice' : 'which stands still'
      return this.#context.fail('waited', `${message}\nIt waits for \`run\`, ${who}.`)
    }
    if (left.kind === 'zombie') return this.#wake(left, instance)
    this.#leftBehind = undefined
    this.#context.story.addEvent(
      limit ? `the server ends the transaction after ${limit}` : 'the server notices that run is gone',
    )
    await this.#context.kill(left.instance)
    await this.#afterStop(await this.#context.stepper.drive([instance]), instance)
  }

  /** Ends a half-open connection that no instance has waited for. Returns true if it held locks. */
  async #closeHalfOpen(halfOpen: ProgramInstance, isDone: boolean): Promise<boolean> {
    this.#leftBehind = undefined
    this.#context.story.addEvent('the server notices that run is gone')
    const sessions = [...halfOpen.actor.sessions]
    const hadLocks = await haveLocks(this.#context.testSession, sessions)
    if (!isDone && hadLocks) {
      this.waited = 'recovery could not finish before the server noticed that run was gone'
      this.#isUnbounded = (await findIdleTimeout(sessions)) === undefined
    }
    await this.#context.kill(halfOpen)
    return hadLocks
  }

  /** Resumes the zombie, and then the instance that waits for it. */
  async #wake(zombie: Zombie, waiting: ProgramInstance | undefined): Promise<void> {
    const { stepper, story, options } = this.#context
    const { instance, reached, late, child } = zombie
    this.#leftBehind = undefined
    await late?.note()
    story.addEvent('run wakes up and goes on')
    child?.resume()
    instance.thaw()
    await stepper.resume(reached)
    const stop = await stepper.drive([instance])
    if (stop.kind === 'blocked' && waiting) return this.#resumeAll([instance, waiting])
    await this.#afterStopOfRun(stop, instance)
    if (this.#context.failure) return
    const writes = (await late?.overwritten()) ?? []
    this.lateWrites = writes.filter((write) => !options.mayWriteLate?.(write))
    if (waiting) await this.#afterStop(await stepper.drive([waiting]), waiting)
  }

  /**
   * Drives instances that wait for each other. The server ends the deadlock. Late writes are not checked here, since the
   * order of the writes is unknown.
   */
  async #resumeAll(instances: readonly ProgramInstance[]): Promise<void> {
    for (let left = instances; left.length > 0; ) {
      const stop = await this.#context.stepper.drive(left)
      if (stop.kind === 'ended') return left.forEach((one) => void this.#context.recordEnd(one))
      if (stop.kind !== 'died' && stop.kind !== 'at-point')
        return this.#context.fail(
          'stuck',
          `${left.map(({ name }) => name).join(' and ')} hang: ${stop.message}`,
        )
      const { instance } = stop
      left = left.filter((one) => one !== instance)
      if (instance.actor.name === 'run') await this.#afterStopOfRun(stop, instance)
      else await this.#afterStop(stop, instance)
    }
  }

  async #afterStopOfRun(stop: StopReason, run: ProgramInstance): Promise<void> {
    if (stop.kind === 'ended') return this.#context.recordEnd(run)
    if (stop.kind === 'died') return this.#context.recordDeath(run)
    if (stop.kind !== 'at-point') this.#context.fail('stuck', `run hangs: ${stop.message}`)
  }

  async #hasProgressed(): Promise<boolean> {
    const { testSession, recoveries, options } = this.#context
    const { progress } = options
    if (!progress) return recoveries.at(-1)?.status === 'fulfilled'
    try {
      return Boolean(await testSession.runReadOnly((db) => progress(db), 'progress'))
    } catch (error) {
      if (error instanceof ExplorationError) throw error
      if (isReadOnlyViolation(error))
        throw new ExplorationError(
          `\`progress\` tried to change data: ${describeError(error).message}. It may only look.`,
          'progress',
          undefined,
          { cause: error },
        )
      return false // an assertion that does not hold yet
    }
  }
}
