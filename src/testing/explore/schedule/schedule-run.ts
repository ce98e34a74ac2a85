import { ExplorationError } from '../../../errors.js'
import { type Actor, markReturned, type Outcome, runAs } from '../../gate/actor.js'
import type { GatedSession } from '../../gate/gated-session.js'
import { valuesOf } from '../../gate/plan.js'
import type { TestSession } from '../session/test-session.js'
import { parseStatements, type Statement } from '../statements/parse-statements.js'
import type { BlockedBackend } from './blocking-probe.js'
import { DeadlockTimeouts } from './deadlock-timeouts.js'
import { explainStuck } from './explain-stuck.js'
import { findIdleLoop } from './idle-loop.js'
import { type PendingStep, readPendingStep } from './pending-step.js'
import { defaultChoice, type Effect, type StepContext, type Trace, type TraceStep } from './trace.js'

/** The input of a choice: everything that is known when a unit must be chosen. */
export interface ChoicePoint {
  /** The contexts of the steps so far. */
  readonly contexts: readonly StepContext[]
  /** By the unit: the step that it would take next. */
  readonly pending: ReadonlyMap<string, PendingStep>
}

/** Chooses the unit that takes the next step: one of `options`, or undefined for the default choice. */
export type ChooseUnit = (
  options: readonly string[],
  steps: readonly TraceStep[],
  choicePoint: ChoicePoint,
) => string | undefined

interface ScheduleRunOptions {
  readonly testSession: TestSession
  readonly choose: ChooseUnit
  /** The most steps in the schedule. An actor that needs more counts as endless. */
  readonly maxSteps: number
  readonly patienceMs: number
  /** True: describe what units wait for. Costs a query for each wait. */
  readonly describesWaits?: boolean | undefined
}

/** Runs one schedule: starts all actors, then releases one step at a time, as `choose` says, and records the trace. */
export class ScheduleRun {
  readonly #options: ScheduleRunOptions
  readonly #testSession: TestSession
  readonly #deadlockTimeouts = new DeadlockTimeouts()
  readonly #steps: TraceStep[] = []
  readonly #contexts: StepContext[] = []

  constructor(options: ScheduleRunOptions) {
    this.#options = options
    this.#testSession = options.testSession
  }

  async run(): Promise<Trace> {
    for (const actor of this.#testSession.actors) {
      void this.#start(actor)
      await this.#settle()
    }
    for (;;) {
      const ready = this.#readyUnits()
      if (ready.size > 0) await this.#chooseStep(ready)
      else if (!(await this.#awaitTimeout())) break
    }
    return {
      steps: this.#steps,
      contexts: this.#contexts,
      outcomes: this.#outcomes(),
      stuck: explainStuck(this.#testSession),
    }
  }

  async #chooseStep(ready: ReadonlyMap<string, GatedSession>): Promise<void> {
    if (this.#steps.length >= this.#options.maxSteps) throw this.#endlessError()
    const nextOf = (unit: string): string => ready.get(unit)?.step?.text ?? ''
    const loops = findIdleLoop([...ready.keys()], this.#steps, nextOf)
    const options = [...ready.keys()].filter((unit) => unit !== loops)
    const pending = this.#pendingSteps(options, ready)
    const wanted = this.#options.choose(options, this.#steps, { contexts: this.#contexts, pending })
    const choice = wanted ?? defaultChoice(options, this.#steps.at(-1)?.unit)
    await this.#takeStep(choice, ready.get(choice) as GatedSession, { options, loops })
    this.#contexts.push({ pending, openUnits: this.#openUnits() })
  }

  /** Waits for a timeout that an actor has set, which may end a wait although no unit can take a step. */
  async #awaitTimeout(): Promise<boolean> {
    if (!(await this.#testSession.quiescence.timesOutWithin(this.#options.patienceMs))) return false
    await this.#settle()
    return true
  }

  async #start(actor: Actor): Promise<void> {
    let outcome: Outcome
    actor.hasStarted = true
    try {
      outcome = { status: 'fulfilled', value: await runAs(actor, () => this.#runActor(actor)) }
    } catch (reason) {
      outcome = { status: 'rejected', reason }
    }
    actor.outcome = outcome
    this.#testSession.quiescence.noteActivity()
  }

  async #runActor(actor: Actor): Promise<unknown> {
    try {
      return await this.#testSession.runActor(actor)
    } finally {
      markReturned()
    }
  }

  /** The units that can take a step now, in the order of the actors. */
  #readyUnits(): Map<string, GatedSession> {
    const ready = new Map<string, GatedSession>()
    for (const actor of this.#testSession.actors)
      for (const session of actor.inOrder)
        if (session.state === 'gated' || this.#isAtYieldPoint(session))
          ready.set(actor.labelOf(session), session)
    return ready
  }

  #pendingSteps(
    options: readonly string[],
    ready: ReadonlyMap<string, GatedSession>,
  ): ReadonlyMap<string, PendingStep> {
    const stepOf = (session: GatedSession): PendingStep =>
      readPendingStep(session, this.#isAtYieldPoint(session))
    return new Map(options.map((unit) => [unit, stepOf(ready.get(unit) as GatedSession)]))
  }

  /** The units with an open transaction that may hold locks. */
  #openUnits(): ReadonlySet<string> {
    const units = this.#testSession.actors.flatMap((actor) =>
      actor.inOrder.filter(({ holdsLocks }) => holdsLocks).map((session) => actor.labelOf(session)),
    )
    return new Set(units)
  }

  #isAtYieldPoint(session: GatedSession): boolean {
    return this.#testSession.quiescence.waits.get(session)?.by.includes(this.#testSession.controlPid) === true
  }

  async #takeStep(
    unit: string,
    session: GatedSession,
    choice: Pick<TraceStep, 'options' | 'loops'>,
  ): Promise<void> {
    const { quiescence, actors } = this.#testSession
    const waits = new Map(quiescence.waits)
    waits.delete(session)
    // Read now: a connection that is lost during the step has no label afterwards.
    const labels = new Map([...waits.keys()].map((other) => [other, this.#testSession.labelOf(other)]))
    const wasAtPoint = this.#isAtYieldPoint(session)
    const statement = wasAtPoint ? `… goes on from '${session.point}'` : (session.step?.text ?? '')
    const { step, request } = session
    const before = wasAtPoint ? [] : session.precedingTexts.flatMap(parseStatements)
    if (wasAtPoint) await this.#testSession.yieldPoints.release(session.pid)
    else await this.#release(session)
    await this.#settle()
    if (this.#deadlockTimeouts.checksEarly(session) && quiescence.waits.has(session) && actors.length > 2) {
      await this.#deadlockTimeouts.awaitCheck()
      await this.#settle()
    }
    if (session.selfCommitted) this.#testSession.refuseHiddenWrites(unit, session.selfCommitted)
    const resumed = [...waits].filter(([other, { by }]) => this.#waitHasChanged(other, by))
    this.#steps.push({
      unit,
      text: [...before.filter(isPrinted).map(({ text }) => text), statement].join('; '),
      statement,
      settings: before.filter((one) => !isPrinted(one)).map(({ text }) => text),
      values: valuesOf(step, request),
      effect: await this.#effectOf(session),
      resumed: await Promise.all(
        resumed.map(async ([other]) => ({
          unit: labels.get(other) as string,
          effect: await this.#effectOf(other),
        })),
      ),
      waiters: countWaiters(session.pid, waits),
      ...choice,
      poolWaits: this.#poolWaits(),
    })
  }

  async #release(session: GatedSession): Promise<void> {
    const { quiescence, setsDeadlockTimeout } = this.#testSession
    const isWaitedFor = [...quiescence.waits.values()].some(({ by }) => by.includes(session.pid))
    const prelude = setsDeadlockTimeout ? this.#deadlockTimeouts.settingFor(session, isWaitedFor) : []
    await this.#testSession.beforeStep(session)
    session.release(prelude)
  }

  /** True if a session no longer waits, or waits for other backends than before. */
  #waitHasChanged(session: GatedSession, before: readonly number[]): boolean {
    const now = this.#testSession.quiescence.waits.get(session)
    return !now || now.by.length !== before.length || now.by.some((pid) => !before.includes(pid))
  }

  async #effectOf(session: GatedSession): Promise<Effect> {
    const { quiescence, actorSet, probe } = this.#testSession
    const wait = quiescence.waits.get(session)
    if (this.#isAtYieldPoint(session)) return { kind: 'point', name: session.point ?? '' }
    if (wait)
      return {
        kind: 'waits',
        for: wait.by.map((pid) => actorSet.nameOf(pid)).toSorted(),
        ...(this.#options.describesWaits ? { what: await probe.describe(session.pid) } : {}),
      }
    return session.result ? { kind: 'done', result: session.result } : { kind: 'lost' }
  }

  async #settle(): Promise<void> {
    const { patienceMs } = this.#options
    const hasSettled = await this.#testSession.quiescence.settle(patienceMs)
    this.#testSession.checkBypass()
    if (!hasSettled) throw await this.#testSession.explainStall(patienceMs)
  }

  #poolWaits(): Record<string, string> {
    const waits = this.#testSession.actors.flatMap(({ name, poolWaits }) =>
      [...poolWaits].map(({ what }) => [name, what]),
    )
    return Object.fromEntries(waits)
  }

  #outcomes(): Record<string, Outcome> {
    return Object.fromEntries(
      this.#testSession.actors.flatMap(({ name, outcome }) => (outcome ? [[name, outcome]] : [])),
    )
  }

  #endlessError(): ExplorationError {
    const last = this.#steps.at(-1)
    return new ExplorationError(
      `${last?.unit} does not end: ${this.#steps.length} steps in one schedule, the last one ${JSON.stringify(last?.text)}. ` +
        'Bound its loop (retries, polling), or raise bound.steps.',
      'endless',
      last?.unit,
    )
  }
}

/** True for BEGIN, its isolation level and savepoints. Settings such as `work_mem` are left out of a printout. */
const isPrinted = ({ kind, text }: Statement): boolean =>
  kind !== 'setting' || /^set\s+(local\s+|session\s+characteristics\s+as\s+)?transaction/i.test(text)

/** The number of sessions that wait for a backend, directly or through other waiting sessions. */
function countWaiters(pid: number, waits: ReadonlyMap<GatedSession, BlockedBackend>): number {
  const reached = new Set([pid])
  for (let before = 0; before !== reached.size; ) {
    before = reached.size
    for (const wait of waits.values()) if (wait.by.some((other) => reached.has(other))) reached.add(wait.pid)
  }
  return reached.size - 1
}
