import { ExplorationError } from '../../errors.js'
import { showStatement } from '../explore/report/printout.js'
import type { Stage } from '../explore/stage/stage.js'
import { parseStatements } from '../explore/statements/parse-statements.js'
import type { GatedSession, SessionState } from '../gate/gated-session.js'
import type { StepResult } from '../gate/result.js'
import type { Instance } from './instance.js'
import type { StatementLine, Story } from './story.js'

/** Why nothing goes on. */
export type Rest =
  /** All have come to their end. */
  | { readonly kind: 'ended' }
  /** One of them ended itself. */
  | { readonly kind: 'died'; readonly instance: Instance }
  | Struck
  /** Somebody waits for a lock of those who stand still. */
  | {
      readonly kind: 'blocked'
      readonly by: readonly GatedSession[]
      readonly message: string
    }
  /** Nobody can go on, and nobody else could help. */
  | { readonly kind: 'stuck'; readonly message: string }

/** One has come to the place where something is to be done to it. */
export interface Struck {
  readonly kind: 'struck'
  readonly instance: Instance
  readonly session: GatedSession
  readonly line: StatementLine
}

export interface DriverOptions {
  readonly stage: Stage
  readonly story: Story
  readonly patienceMs: number
  readonly maxStatements: number
}

/** A statement that is not over. */
interface Open {
  readonly instance: Instance
  readonly line: StatementLine
  /** What the client asked for. */
  readonly request: unknown
}

const UNDER_WAY: ReadonlySet<SessionState> = new Set(['gated', 'running', 'answered'])

/** Lets instances go on, a statement at a time, until something is to be done to one of them. */
export class Driver {
  readonly #options: DriverOptions
  readonly #stage: Stage
  /** Statements under way. */
  readonly #open = new Map<GatedSession, Open>()
  /** What a request has said that is not over: its COMMIT is still to come. */
  readonly #said = new Map<GatedSession, StepResult>()

  constructor(options: DriverOptions) {
    this.#options = options
    this.#stage = options.stage
  }

  /** Those who come first go first. */
  async drive(instances: readonly Instance[]): Promise<Rest> {
    for (;;) {
      const stalled = await this.#settle()
      this.#note()
      this.#refuseUnseen(instances)
      const died = instances.find(({ hasDied }) => hasDied)
      if (died) return { kind: 'died', instance: died }
      const rest = this.#answered(instances)
      if (rest) return rest
      if (stalled !== undefined) return { kind: 'stuck', message: stalled }
      const next = this.#next(instances)
      if (next) {
        const struck = await this.#step(...next)
        if (struck) return struck
      } else if (instances.every(({ outcome }) => outcome !== undefined)) return { kind: 'ended' }
      else if (!(await this.#stage.quiescence.timesOutWithin(this.#options.patienceMs)))
        return this.#blocked(instances)
    }
  }

  /** Lets the statement go at which somebody stood still, or its answer. */
  async resume({ instance, session, line }: Struck): Promise<void> {
    if (session.state === 'answered') return session.answer()
    if (session.state !== 'gated') return // its connection was lost meanwhile
    // It is told where it happens.
    const again: StatementLine = { ...line }
    this.#options.story.lines.push(again)
    this.#open.set(session, { instance, line: again, request: session.request })
    await this.#stage.beforeStep(session)
    session.release()
  }

  /** What becomes of this instance's statements is not for the story any more. */
  forget(instance: Instance): void {
    for (const [session, open] of this.#open) if (open.instance === instance) this.#open.delete(session)
  }

  /** What commits by itself, in a procedure, cannot be put back. */
  #refuseUnseen(instances: readonly Instance[]): void {
    for (const { actor, name } of instances)
      for (const { endsItself } of actor.sessions)
        if (endsItself) this.#stage.refuseUnseenWrites(name, endsItself)
  }

  async #settle(): Promise<string | undefined> {
    const { patienceMs } = this.#options
    const isSettled = await this.#stage.quiescence.settle(patienceMs)
    this.#stage.checkOutside()
    return isSettled ? undefined : (await this.#stage.explainStall(patienceMs)).message
  }

  /** A statement was executed whose answer is not to be seen. */
  #answered(instances: readonly Instance[]): Rest | undefined {
    for (const instance of instances) {
      const session = instance.actor.inOrder.find(({ state }) => state === 'answered')
      const line = session && this.#open.get(session)?.line
      if (line) return { kind: 'struck', instance, session, line }
    }
    return undefined
  }

  #next(instances: readonly Instance[]): [Instance, GatedSession] | undefined {
    for (const instance of instances) {
      const session = instance.actor.inOrder.find((one) => one.state === 'gated' || this.#isAtPoint(one))
      if (session) return [instance, session]
    }
    return undefined
  }

  #isAtPoint(session: GatedSession): boolean {
    return this.#stage.quiescence.waits.get(session)?.by.includes(this.#stage.controlPid) === true
  }

  async #step(instance: Instance, session: GatedSession): Promise<Rest | undefined> {
    // Within a function nothing can be done to it: the server goes on whatever becomes of the client.
    if (this.#isAtPoint(session)) {
      await this.#stage.points.release(session.pid)
      return undefined
    }
    if (session.isFirstStep) {
      const line = this.#begin(instance, session)
      const { target } = instance
      const isHere = target?.statement === instance.statements
      if (isHere && target?.side === 'before') return { kind: 'struck', instance, session, line }
      session.keepsAnswer = isHere
    }
    await this.#stage.beforeStep(session)
    session.release()
    return undefined
  }

  #begin(instance: Instance, session: GatedSession): StatementLine {
    instance.statements++
    if (instance.statements > this.#options.maxStatements)
      throw new ExplorationError(
        `${instance.name} does not end: ${this.#options.maxStatements} statements so far, the next one ${JSON.stringify(session.step?.text)}. Bound its loop (retries, polling), or raise bound.statements.`,
        'endless',
        instance.name,
      )
    const { request, fused } = session
    const kinds = (request?.texts ?? []).flatMap(parseStatements).map(({ kind }) => kind)
    const before = fused.flatMap(parseStatements).filter(({ kind }) => kind !== 'setting')
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

  /** Writes down what has become of statements since. */
  #note(): void {
    for (const [session, { line, request }] of this.#open) {
      const wait = this.#stage.quiescence.waits.get(session)
      if (wait && !this.#isAtPoint(session)) {
        line.waitedFor = wait.by.map((pid) => this.#stage.cast.nameOf(pid))
        line.effect = { kind: 'waits', for: line.waitedFor }
      }
      const isUnderWay = session.request === request && UNDER_WAY.has(session.state)
      const result = this.#resultOf(session)
      if (isUnderWay && session.state === 'answered' && result) line.effect = { kind: 'unseen', result }
      if (isUnderWay && session.state === 'gated' && !session.isFirstStep && result)
        this.#said.set(session, result)
      if (isUnderWay) continue
      if (line.effect.kind !== 'unseen') line.effect = result ? { kind: 'done', result } : { kind: 'lost' }
      this.#open.delete(session)
      this.#said.delete(session)
    }
  }

  /** Of a statement with a COMMIT of ours behind it, what the statement said. */
  #resultOf(session: GatedSession): StepResult | undefined {
    const { result } = session
    return result?.tag === 'COMMIT' && !result.error ? (this.#said.get(session) ?? result) : result
  }

  #blocked(instances: readonly Instance[]): Rest {
    const { waits } = this.#stage.quiescence
    const { cast } = this.#stage
    const own = new Set(instances.flatMap(({ actor }) => [...actor.sessions]))
    const others = cast.actors.flatMap(({ sessions }) => [...sessions]).filter((one) => !own.has(one))
    const waiting = instances.flatMap(({ actor, name }) => [
      ...[...actor.poolWaits].map(({ what }) => ({ name, for: what, by: [] as readonly number[] })),
      ...actor.inOrder.flatMap((session) => {
        const wait = waits.get(session)
        const holders = wait?.by.map((pid) => cast.nameOf(pid)).join(' and ')
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
