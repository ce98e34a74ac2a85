import { AsyncLocalStorage } from 'node:async_hooks'
import type { Socket } from 'node:net'
import type { GatedSession } from './gated-session.js'

/** How an actor's function ended. */
export type Outcome =
  | { readonly status: 'fulfilled'; readonly value: unknown }
  | { readonly status: 'rejected'; readonly reason: unknown }

/** One of the concurrent callers of an exploration, and its current state. */
export class Actor {
  readonly name: string
  readonly sessions = new Set<GatedSession>()
  /** The port of the actor's proxy, and the sockets that the actor's code has opened to that port. */
  port = 0
  readonly sockets = new Set<Socket>()
  /** The number of the run. Calls from an earlier run are ignored. */
  run = 0
  hasStarted = false
  outcome: Outcome | undefined
  /** How many checkouts wait only for a new connection. They end by themselves. */
  connecting = 0
  /** The full pools that the actor waits for. */
  readonly poolWaits = new Set<{ readonly what: string }>()
  /** The stacks of the last checkout and of the last statement. A message reads them only where it names a call site. */
  readonly lastCalls: { connection?: Error | undefined; statement?: Error | undefined } = {}
  /** The callbacks of the timers that came due while the actor was frozen. Undefined while it is not frozen. */
  frozen: (() => void)[] | undefined
  /** The stack of the first call that came after the actor's function had returned and the schedule was over. */
  lateCall: Error | undefined
  /** The sessions in the order of their first use in this run. */
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

  /** The open sessions in the order of their first use in this run. */
  get inOrder(): readonly GatedSession[] {
    return this.#labels.filter((session) => this.sessions.has(session))
  }

  /** Starts a new run, or abandons the current one. */
  begin(): void {
    this.run++
    this.frozen = undefined
    this.hasStarted = false
    this.outcome = undefined
    this.lastCalls.connection = this.lastCalls.statement = undefined
    this.#labels = []
    this.poolWaits.clear()
    this.connecting = 0
  }
}

/** The actor whose code runs, and its run. The value is kept through awaits, timers and callbacks. */
const running = new AsyncLocalStorage<ActorContext | undefined>()

export interface ActorContext {
  readonly actor: Actor
  readonly run: number
  /** True once the actor's function has returned. */
  hasReturned: boolean
}

export function currentActor(): Actor | undefined {
  const current = running.getStore()
  return current && current.run === current.actor.run ? current.actor : undefined
}

/** True in code of a finished run: its actor was abandoned, or did not await a call that it had started. */
export function runsInFinishedRun(): boolean {
  const current = running.getStore()
  if (current === undefined || current.run === current.actor.run) return false
  if (current.hasReturned) current.actor.lateCall ??= new Error()
  return true
}

/** Code of a finished run waits for this promise, so that it does nothing more, as if its process had ended. */
export const NEVER: Promise<never> = new Promise(() => {})

/** The actor and run of the current code, for callbacks that run later, such as a timer's. */
export const currentContext = (): ActorContext | undefined => running.getStore()

export const isOfFinishedRun = ({ actor, run }: ActorContext): boolean => run !== actor.run

export const runAs = <T>(actor: Actor, fn: () => T): T =>
  running.run({ actor, run: actor.run, hasReturned: false }, fn)

/** Records that the current actor's function has returned. Calls that it has not awaited may still go on. */
export function markReturned(): void {
  const current = running.getStore()
  if (current) current.hasReturned = true
}

/** Runs code of the explorer, which an actor's code may have called, outside the actor. */
export const runOutsideActors = <T>(fn: () => T): T => running.run(undefined, fn)

/** Binds a callback to the actor that passes it, since a socket of another actor may call it. */
export function bindToActor<T>(parameter: T): T {
  if (typeof parameter !== 'function') return parameter
  const current = running.getStore()
  return ((...values: unknown[]) => running.run(current, () => parameter(...values))) as T
}
