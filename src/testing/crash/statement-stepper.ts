import { ExplorationError } from '../../errors.js'
import { showStatement } from '../explore/report/printout.js'
import type { TestSession } from '../explore/session/test-session.js'
import { parseStatements } from '../explore/statements/parse-statements.js'
import type { GatedSession } from '../gate/gated-session.js'
import type { StepResult } from '../gate/result.js'
import type { SessionState } from '../gate/session-options.js'
import type { ProgramInstance } from './program-instance.js'
import type { StatementLine, Story } from './story.js'

/** Why the stepper has stopped. */
export type StopReason =
  /** All instances have ended. */
  | { readonly kind: 'ended' }
  /** An instance has called `die()`. */
  | { readonly kind: 'died'; readonly instance: ProgramInstance }
  | ReachedPoint
  /** An instance waits for a lock of sessions that are not driven. */
  | {
      readonly kind: 'blocked'
      readonly by: readonly GatedSession[]
      readonly message: string
    }
  /** No instance can go on, and no other session is the cause. */
  | { readonly kind: 'stuck'; readonly message: string }

/** An instance has reached the point of its fault. */
export interface ReachedPoint {
  readonly kind: 'at-point'
  readonly instance: ProgramInstance
  readonly session: GatedSession
  readonly line: StatementLine
}

export interface StepperOptions {
  readonly testSession: TestSession
  readonly story: Story
  readonly patienceMs: number
  readonly maxStatements: number
}

/** A statement without a complete response. */
interface OpenStatement {
  readonly instance: ProgramInstance
  readonly line: StatementLine
  /** Compared by identity with the session's current request. */
  readonly request: unknown
}

const UNDER_WAY: ReadonlySet<SessionState> = new Set(['gated', 'running', 'answered'])

/** Runs instances one statement at a time, until one of them reaches the point of its fault. */
export class StatementStepper {
  readonly #options: StepperOptions
  readonly #testSession: TestSession
  readonly #open = new Map<GatedSession, OpenStatement>()
  /** The result of a statement whose COMMIT, a step of its own, is still to come. */
  readonly #resultsBeforeCommit = new Map<GatedSession, StepResult>()

  constructor(options: StepperOptions) {
    this.#options = options
    this.#testSession = options.testSession
  }

  /** Drives the instances until one of them stops. Earlier ones in the list go first. */
  async drive(instances: readonly ProgramInstance[]): Promise<StopReason> {
    for (;;) {
      const stalled = await this.#settle()
      this.#updateLines()
      this.#refuseHiddenWrites(instances)
      const died = instances.find(({ hasDied }) => hasDied)
      if (died) return { kind: 'died', instance: died }
      const afterExecution = this.#findAnswered(instances)
      if (afterExecution) return afterExecution
      if (stalled !== undefined) return { kind: 'stuck', message: stalled }
      const next = this.#findNext(instances)
      if (next) {
        const reached = await this.#step(...next)
        if (reached) return reached
      } else if (instances.every(({ outcome }) => outcome !== undefined)) return { kind: 'ended' }
      else if (!(await this.#testSession.quiescence.timesOutWithin(this.#options.patienceMs)))
        return this.#explainBlock(instances)
    }
  }

  /** Releases the statement at which an instance has stopped, or its response. */
  async resume({ instance, session, line }: ReachedPoint): Promise<void> {
    if (session.state === 'answered') return session.deliverResponse()
    if (session.state !== 'gated') return // its connection was lost meanwhile
    // The story shows the statement again, at the place where it is executed.
    const repeatedLine: StatementLine = { ...line }
    this.#options.story.lines.push(repeatedLine)
    this.#open.set(session, { instance, line: repeatedLine, request: session.request })
    await this.#testSession.beforeStep(session)
    session.release()
  }

  /** Stops recording the statements of an instance. */
  forget(instance: ProgramInstance): void {
    for (const [session, open] of this.#open) if (open.instance === instance) this.#open.delete(session)
  }

  /** Refuses a procedure that commits by itself: the loop cannot undo its writes. */
  #refuseHiddenWrites(instances: readonly ProgramInstance[]): void {
    for (const { actor, name } of instances)
      for (const { selfCommitted } of actor.sessions)
        if (selfCommitted) this.#testSession.refuseHiddenWrites(name, selfCommitted)
  }

  async #settle(): Promise<string | undefined> {
    const { patienceMs } = this.#options
    const isSettled = await this.#testSession.quiescence.settle(patienceMs)
    this.#testSession.checkBypass()
    return isSettled ? undefined : (await this.#testSession.explainStall(patienceMs)).message
  }

  /** Finds a statement whose response is held, since its fault comes after the execution. */
  #findAnswered(instances: readonly ProgramInstance[]): StopReason | undefined {
    for (const instance of instances) {
      const session = instance.actor.inOrder.find(({ state }) => state === 'answered')
      const line = session && this.#open.get(session)?.line
      if (line) return { kind: 'at-point', instance, session, line }
    }
    return undefined
  }

  #findNext(instances: readonly ProgramInstance[]): [ProgramInstance, GatedSession] | undefined {
    for (const instance of instances) {
      const session = instance.actor.inOrder.find((one) => one.state === 'gated' || this.#isAtYieldPoint(one))
      if (session) return [instance, session]
    }
    return undefined
  }

  #isAtYieldPoint(session: GatedSession): boolean {
    return this.#testSession.quiescence.waits.get(session)?.by.includes(this.#testSession.controlPid) === true
  }

  async #step(instance: ProgramInstance, session: GatedSession): Promise<StopReason | undefined> {
    // A yield point within a function is no point for a fault: the server goes on even if the client is gone.
    if (this.#isAtYieldPoint(session)) {
      await this.#testSession.yieldPoints.release(session.pid)
      return undefined
    }
    if (session.isFirstStep) {
      const line = this.#addLine(instance, session)
      const { target } = instance
      const isTarget = target?.statement === instance.statements
      if (isTarget && target?.side === 'before') return { kind: 'at-point', instance, session, line }
      session.holdsAnswer = isTarget
    }
    await this.#testSession.beforeStep(session)
    session.release()
    return undefined
  }

  #addLine(instance: ProgramInstance, session: GatedSession): StatementLine {
    instance.statements++
    if (instance.statements > this.#options.maxStatements)
      throw new ExplorationError(
        `${instance.name} does not end: ${this.#options.maxStatements} statements so far, the next one ${JSON.stringify(session.step?.text)}. Bound its loop (retries, polling), or raise bound.statements.`,
        'endless',
        instance.name,
      )
    const { request, precedingTexts } = session
    const kinds = (request?.texts ?? []).flatMap(parseStatements).map(({ kind }) => kind)
    const before = precedingTexts.flatMap(parseStatements).filter(({ kind }) => kind !== 'setting')
    const line: StatementLine = {
      kind: 'statement',
      who: instance.actor.labelOf(session).replace(instance.actor.name, instance.name),
      number: instance.statements,
      text: [...before.map(({ text }) => text), request?.text ?? ''].join('; '),
      values: request?.values ?? [],
      commits: kinds.includes('commit') || session.isSplit,
      rollsBack: kinds.includes('rollback') || kinds.includes('rollback-to'),
      effect: { kind: 'not sent' },
    }
    this.#options.story.lines.push(line)
    this.#open.set(session, { instance, line, request })
    return line
  }

  /** Updates the effects of the open statements in the story. */
  #updateLines(): void {
    for (const [session, { line, request }] of this.#open) {
      const wait = this.#testSession.quiescence.waits.get(session)
      if (wait && !this.#isAtYieldPoint(session)) {
        line.waitedFor = wait.by.map((pid) => this.#testSession.actorSet.nameOf(pid))
        line.effect = { kind: 'waits', for: line.waitedFor }
      }
      const isUnderWay = session.request === request && UNDER_WAY.has(session.state)
      const result = this.#resultOf(session)
      if (isUnderWay && session.state === 'answered' && result) line.effect = { kind: 'unseen', result }
      if (isUnderWay && session.state === 'gated' && !session.isFirstStep && result)
        this.#resultsBeforeCommit.set(session, result)
      if (isUnderWay) continue
      if (line.effect.kind !== 'unseen') line.effect = result ? { kind: 'done', result } : { kind: 'lost' }
      this.#open.delete(session)
      this.#resultsBeforeCommit.delete(session)
    }
  }

  /** The result of the statement, also where the gate has sent a COMMIT after it. */
  #resultOf(session: GatedSession): StepResult | undefined {
    const { result } = session
    return result?.tag === 'COMMIT' && !result.error
      ? (this.#resultsBeforeCommit.get(session) ?? result)
      : result
  }

  #explainBlock(instances: readonly ProgramInstance[]): StopReason {
    const { waits } = this.#testSession.quiescence
    const { actorSet } = this.#testSession
    const own = new Set(instances.flatMap(({ actor }) => [...actor.sessions]))
    const others = actorSet.actors.flatMap(({ sessions }) => [...sessions]).filter((one) => !own.has(one))
    const waiting = instances.flatMap(({ actor, name }) => [
      ...[...actor.poolWaits].map(({ what }) => ({ name, for: what, by: [] as readonly number[] })),
      ...actor.inOrder.flatMap((session) => {
        const wait = waits.get(session)
        const holders = wait?.by.map((pid) => actorSet.nameOf(pid)).join(' and ')
        return wait
          ? [{ name, for: `${holders} in: ${showStatement(session.step?.text ?? '', [])}`, by: wait.by }]
          : []
      }),
    ])
    const message = waiting.map((one) => `${one.name} waits for ${one.for}`).join('\n')
    const by = others.filter(({ pid }) => waiting.some((one) => one.by.includes(pid)))
    return by.length > 0 ? { kind: 'blocked', by, message } : { kind: 'stuck', message }
  }
}
