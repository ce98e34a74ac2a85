import { ExplorationError } from '../../../errors.js'
import { type Actor, markEnded, type Outcome, runAs } from '../../gate/actor.js'
import type { GatedSession } from '../../gate/gated-session.js'
import { valuesOf } from '../../gate/plan.js'
import { LATE_MS } from '../stage/session-settings.js'
import type { Stage } from '../stage/stage.js'
import { parseStatements, type Statement } from '../statements/parse-statements.js'
import type { Blocked } from './blocking-probe.js'
import { findIdleLoop } from './idle-loop.js'
import { type PendingStep, pendingStepOf } from './pending-step.js'
import { type Effect, easyChoice, type Moment, type Trace, type TraceStep } from './trace.js'

/** What is known where somebody must be chosen. */
export interface Crossing {
  readonly moments: readonly Moment[]
  /** What each of the options would do. */
  readonly pending: ReadonlyMap<string, PendingStep>
}

/** Who goes next: one of `options`, or nobody in particular. */
export type Choose = (
  options: readonly string[],
  steps: readonly TraceStep[],
  crossing: Crossing,
) => string | undefined

export interface ScheduleRunOptions {
  readonly stage: Stage
  readonly choose: Choose
  /** Statements in one schedule before it counts as endless. */
  readonly maxSteps: number
  readonly patienceMs: number
  /** Find words for what waits want; costs a query each. */
  readonly describes?: boolean | undefined
}

/** Whoever may close a circle of waits is the one to find it, and soon. */
const SOON_MS = 5

/**
 * An actor that has taken on another role may have no right to; that must not fail its transaction. Else plainly, since DO
 * takes a snapshot.
 */
const setDeadlockTimeout = (ms: number, { hasOtherRole }: GatedSession): string =>
  !hasOtherRole
    ? `set deadlock_timeout = ${ms}`
    : `do $dibs$ begin perform pg_catalog.set_config('deadlock_timeout', '${ms}', false);
   exception when insufficient_privilege then null; end $dibs$`

/** Runs the actors once, in one order. */
export class ScheduleRun {
  readonly #options: ScheduleRunOptions
  readonly #stage: Stage
  readonly #steps: TraceStep[] = []
  readonly #moments: Moment[] = []
  /** Sessions whose deadlock check may come soon. */
  readonly #hasty = new Set<GatedSession>()

  constructor(options: ScheduleRunOptions) {
    this.#options = options
    this.#stage = options.stage
  }

  async run(): Promise<Trace> {
    const { actors } = this.#stage
    for (const actor of actors) {
      void this.#start(actor)
      await this.#settle()
    }
    for (;;) {
      const ready = this.#ready()
      if (ready.size === 0) {
        if (await this.#timesOut()) continue
        break
      }
      if (this.#steps.length >= this.#options.maxSteps) throw this.#endless()
      const nextOf = (unit: string): string => ready.get(unit)?.step?.text ?? ''
      const loops = findIdleLoop([...ready.keys()], this.#steps, nextOf)
      const options = [...ready.keys()].filter((unit) => unit !== loops)
      const pending = this.#pending(options, ready)
      const wanted = this.#options.choose(options, this.#steps, { moments: this.#moments, pending })
      const choice = wanted ?? easyChoice(options, this.#steps.at(-1)?.unit)
      await this.#step(choice, ready.get(choice) as GatedSession, { options, loops })
      this.#moments.push({ pending, open: this.#open() })
    }
    return {
      steps: this.#steps,
      moments: this.#moments,
      outcomes: this.#outcomes(),
      stuck: this.#stuck(),
    }
  }

  /** Nobody can move, but somebody who waits has set itself a time, which may end the wait. */
  async #timesOut(): Promise<boolean> {
    if (!(await this.#stage.quiescence.timesOutWithin(this.#options.patienceMs))) return false
    await this.#settle()
    return true
  }

  async #start(actor: Actor): Promise<void> {
    let outcome: Outcome
    actor.hasStarted = true
    try {
      outcome = { status: 'fulfilled', value: await runAs(actor, () => this.#play(actor)) }
    } catch (reason) {
      outcome = { status: 'rejected', reason }
    }
    actor.outcome = outcome
    this.#stage.quiescence.touch()
  }

  async #play(actor: Actor): Promise<unknown> {
    try {
      return await this.#stage.play(actor)
    } finally {
      markEnded()
    }
  }

  /** What could be let go now, by its label, in the order of the actors. */
  #ready(): Map<string, GatedSession> {
    const ready = new Map<string, GatedSession>()
    for (const actor of this.#stage.actors)
      for (const session of actor.inOrder)
        if (session.state === 'gated' || this.#isAtPoint(session)) ready.set(actor.labelOf(session), session)
    return ready
  }

  #pending(
    options: readonly string[],
    ready: ReadonlyMap<string, GatedSession>,
  ): ReadonlyMap<string, PendingStep> {
    const stepOf = (session: GatedSession): PendingStep => pendingStepOf(session, this.#isAtPoint(session))
    return new Map(options.map((unit) => [unit, stepOf(ready.get(unit) as GatedSession)]))
  }

  #open(): ReadonlySet<string> {
    const open = this.#stage.actors.flatMap((actor) =>
      actor.inOrder.filter(({ holdsLocks }) => holdsLocks).map((session) => actor.labelOf(session)),
    )
    return new Set(open)
  }

  #isAtPoint(session: GatedSession): boolean {
    return this.#stage.quiescence.waits.get(session)?.by.includes(this.#stage.controlPid) === true
  }

  async #step(
    unit: string,
    session: GatedSession,
    choice: Pick<TraceStep, 'options' | 'loops'>,
  ): Promise<void> {
    const { quiescence } = this.#stage
    const waited = new Map(quiescence.waits)
    waited.delete(session)
    // A connection that is lost on the way has no name afterwards.
    const labels = new Map([...waited.keys()].map((other) => [other, this.#labelOf(other)]))
    const wasAtPoint = this.#isAtPoint(session)
    const statement = wasAtPoint ? `… goes on from '${session.point}'` : (session.step?.text ?? '')
    const { step, request } = session
    const before = wasAtPoint ? [] : session.fused.flatMap(parseStatements)
    if (wasAtPoint) await this.#stage.points.release(session.pid)
    else await this.#release(session)
    await this.#settle()
    if (this.#hasty.has(session) && quiescence.waits.has(session) && this.#stage.actors.length > 2) {
      // Its check for deadlocks must be over before somebody else can close a circle that it would find.
      await new Promise((resolve) => setTimeout(resolve, 6 * SOON_MS))
      await this.#settle()
    }
    const itself = session.endsItself
    if (itself) this.#stage.refuseUnseenWrites(unit, itself)
    const resumed = [...waited].filter(([other, { by }]) => this.#hasMoved(other, by))
    this.#steps.push({
      unit,
      text: [...before.filter(isWorthShowing).map(({ text }) => text), statement].join('; '),
      statement,
      settings: before.filter((one) => !isWorthShowing(one)).map(({ text }) => text),
      values: valuesOf(step, request),
      effect: await this.#effectOf(session),
      resumed: await Promise.all(
        resumed.map(async ([other]) => ({
          unit: labels.get(other) as string,
          effect: await this.#effectOf(other),
        })),
      ),
      waiters: countWaiters(session.pid, waited),
      ...choice,
      poolWaits: this.#poolWaits(),
    })
  }

  async #release(session: GatedSession): Promise<void> {
    const isWaitedFor = [...this.#stage.quiescence.waits.values()].some(({ by }) => by.includes(session.pid))
    const prelude: string[] = []
    if (this.#stage.setsDeadlockTimeout) {
      if (isWaitedFor) prelude.push(setDeadlockTimeout(SOON_MS, session))
      else if (this.#hasty.has(session)) prelude.push(setDeadlockTimeout(LATE_MS, session))
      if (isWaitedFor) this.#hasty.add(session)
      else this.#hasty.delete(session)
    }
    await this.#stage.beforeStep(session)
    session.release(prelude)
  }

  /** It is done, or waits for others than before. */
  #hasMoved(session: GatedSession, before: readonly number[]): boolean {
    const now = this.#stage.quiescence.waits.get(session)
    return !now || now.by.length !== before.length || now.by.some((pid) => !before.includes(pid))
  }

  async #effectOf(session: GatedSession): Promise<Effect> {
    const wait = this.#stage.quiescence.waits.get(session)
    if (wait?.by.includes(this.#stage.controlPid)) return { kind: 'point', name: session.point ?? '' }
    if (wait)
      return {
        kind: 'waits',
        for: wait.by.map((pid) => this.#stage.cast.nameOf(pid)).toSorted(),
        ...(this.#options.describes ? { what: await this.#stage.probe.describe(session.pid) } : {}),
      }
    return session.result ? { kind: 'done', result: session.result } : { kind: 'lost' }
  }

  async #settle(): Promise<void> {
    if (await this.#stage.quiescence.settle(this.#options.patienceMs)) {
      this.#stage.checkOutside()
      return
    }
    this.#stage.checkOutside()
    throw await this.#stage.explainStall(this.#options.patienceMs)
  }

  #labelOf(session: GatedSession): string {
    const actor = this.#stage.cast.actorOf(session)
    return actor?.labelOf(session) ?? '?'
  }

  #poolWaits(): Record<string, string> {
    const waits = this.#stage.actors.flatMap(({ name, poolWaits }) =>
      [...poolWaits].map(({ what }) => [name, what]),
    )
    return Object.fromEntries(waits)
  }

  #outcomes(): Record<string, Outcome> {
    return Object.fromEntries(
      this.#stage.actors.flatMap(({ name, outcome }) => (outcome ? [[name, outcome]] : [])),
    )
  }

  /** Nobody can move and somebody has not ended: they wait for each other in a way that the server cannot see. */
  #stuck(): string | undefined {
    const waiting = this.#stage.actors.flatMap((actor) => {
      const pool = [...actor.poolWaits].map(({ what }) => `${actor.name} waits for ${what}`)
      const locks = [...this.#stage.quiescence.waits]
        .filter(([session]) => actor.sessions.has(session))
        .map(([session, { by }]) => {
          const holders = by.map((pid) => this.#stage.cast.nameOf(pid)).join(' and ')
          return `${actor.labelOf(session)} waits for ${holders} in: ${session.step?.text}`
        })
      return [...pool, ...locks]
    })
    if (waiting.length === 0) return undefined
    const left = this.#stage.cast.withOpenTransaction.filter((name) =>
      this.#stage.actors.some((actor) => actor.name === name && actor.outcome !== undefined),
    )
    const ended = left.map((name) => `${name} has ended and left its transaction open.`)
    return [...waiting, ...ended].join('\n')
  }

  #endless(): ExplorationError {
    const last = this.#steps.at(-1)
    return new ExplorationError(
      `${last?.unit} does not end: ${this.#steps.length} steps in one schedule, the last one ${JSON.stringify(last?.text)}. ` +
        'Bound its loop (retries, polling), or raise bound.steps.',
      'endless',
      last?.unit,
    )
  }
}

/** What a reader wants to see before a statement: BEGIN and its level, savepoints; not what `work_mem` is. */
const isWorthShowing = ({ kind, text }: Statement): boolean =>
  kind !== 'setting' || /^set\s+(local\s+|session\s+characteristics\s+as\s+)?transaction/i.test(text)

/** Those who wait for a backend, directly or behind somebody who does. */
function countWaiters(pid: number, waits: ReadonlyMap<GatedSession, Blocked>): number {
  const reached = new Set([pid])
  for (let before = 0; before !== reached.size; ) {
    before = reached.size
    for (const wait of waits.values()) if (wait.by.some((other) => reached.has(other))) reached.add(wait.pid)
  }
  return reached.size - 1
}
