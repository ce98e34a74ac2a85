import { AsyncLocalStorage } from 'node:async_hooks'
import type { Socket } from 'node:net'
import type { GatedSession } from './gated-session.js'

/** How an actor's function ended. */
export type Outcome =
  | { readonly status: 'fulfilled'; readonly value: unknown }
  | { readonly status: 'rejected'; readonly reason: unknown }

/** One of those who run at the same time, and what it does just now. */
export class Actor {
  readonly name: string
  readonly sessions = new Set<GatedSession>()
  /** Where drivers other than ours reach the server, and the sockets that its own code has opened to there. */
  port = 0
  readonly sockets = new Set<Socket>()
  /** Goes up with each run: what still comes from an earlier one is nobody's. */
  run = 0
  hasStarted = false
  outcome: Outcome | undefined
  /** Checkouts under way that will end by themselves: a new connection is being made. */
  connecting = 0
  /** Full pools that it waits for. */
  readonly poolWaits = new Set<{ readonly what: string }>()
  /** Made when it last asked for a connection and for a statement; read only if somebody wants to know where that was. */
  readonly asked: { connection?: Error | undefined; statement?: Error | undefined } = {}
  /** It stands still, and so do its timers: what they would have done, to be done when it goes on. */
  frozen: (() => void)[] | undefined
  /** Made where it still asked for something after its function had returned and the schedule was over. */
  late: Error | undefined
  /** Sessions by the order in which this run used them first. */
  #labels: GatedSession[] = []

  constructor(name: string) {
    this.name = name
  }

  /** `alice`, and `alice/2` for a second connection at the same time. */
  labelOf(session: GatedSession): string {
    let index = this.#labels.indexOf(session)
    if (index < 0) index = this.#labels.push(session) - 1
    return index === 0 ? this.name : `${this.name}/${index + 1}`
  }

  /** Sessions in the order in which this run used them first. */
  get inOrder(): readonly GatedSession[] {
    return this.#labels.filter((session) => this.sessions.has(session))
  }

  /** Before a new run, and when one is given up. */
  begin(): void {
    this.run++
    this.frozen = undefined
    this.hasStarted = false
    this.outcome = undefined
    this.asked.connection = this.asked.statement = undefined
    this.#labels = []
    this.poolWaits.clear()
    this.connecting = 0
  }
}

/** Whose code is running, and in which run: kept through awaits, timers and callbacks. */
const running = new AsyncLocalStorage<Appearance | undefined>()

export interface Appearance {
  readonly actor: Actor
  readonly run: number
  /** Its function has returned. */
  hasEnded: boolean
}

export function currentActor(): Actor | undefined {
  const current = running.getStore()
  return current && current.run === current.actor.run ? current.actor : undefined
}

/** Code of a run that is over: an actor that was given up, or that did not wait for what it began. */
export function isOfEarlierRun(): boolean {
  const current = running.getStore()
  if (current === undefined || current.run === current.actor.run) return false
  if (current.hasEnded) current.actor.late ??= new Error()
  return true
}

/** What code of an earlier run waits for: it stands still, as if its process had ended. */
export const NEVER: Promise<never> = new Promise(() => {})

/** Whose code this is, and whether it is still alive: for what outlives a call, such as a timer. */
export const currentAppearance = (): Appearance | undefined => running.getStore()

export const isDead = ({ actor, run }: Appearance): boolean => run !== actor.run

export const runAs = <T>(actor: Actor, fn: () => T): T =>
  running.run({ actor, run: actor.run, hasEnded: false }, fn)

/** The function of whoever is acting has returned; what it began may still go on. */
export function markEnded(): void {
  const current = running.getStore()
  if (current) current.hasEnded = true
}

/** Ours may be called while an actor's code runs, and is not its doing. */
export const runAsNobody = <T>(fn: () => T): T => running.run(undefined, fn)

/** A callback belongs to whoever gave it, also when the socket of somebody else calls it. */
export function bindToActor<T>(parameter: T): T {
  if (typeof parameter !== 'function') return parameter
  const current = running.getStore()
  return ((...values: unknown[]) => running.run(current, () => parameter(...values))) as T
}
