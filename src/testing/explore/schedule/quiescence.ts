import type { Actor } from '../../gate/actor.js'
import type { GatedSession } from '../../gate/gated-session.js'
import type { Blocked, BlockingProbe } from './blocking-probe.js'

/** When a released step has not answered by then, the server is asked whether it waits for a lock. */
const FIRST_LOOK_MS = 1
/** The same for a statement that has waited before. A timer cannot be that short. */
const EARLY_LOOK_MS = 0.3
const LONGEST_PAUSE_MS = 16
/** Some restlessness ends by the mere passing of time. */
const RESTLESS_LOOK_MS = 5

/** As they were before a test may have put others in their place. */
const { setImmediate, setTimeout, clearTimeout } = globalThis

/** One turn of the event loop. (The one of node:timers/promises takes three times as long.) */
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

/** What the explorer knows of those who run. */
export interface Company {
  readonly actors: readonly Actor[]
  readonly probe: BlockingProbe
  /** The explorer's own backend, which holds the locks behind yield points. */
  readonly controlPid: number
}

/**
 * Waits until nobody can move: each actor has ended, or waits at the gate, at a yield point, for a lock that another actor
 * holds, or for a connection. Only then does a choice mean anything, and only then is it the same in every run.
 */
export class Quiescence {
  /** Who waits for whom, as of the last `settle`. */
  waits: ReadonlyMap<GatedSession, Blocked> = new Map()
  readonly #company: Company
  /** Statements that have waited for somebody: they are likely to wait again, and then it is asked sooner. */
  readonly #haveWaited = new Set<string>()
  #activity = 0
  #wake: (() => void) | undefined

  constructor(company: Company) {
    this.#company = company
  }

  /** Something has happened. */
  touch(): void {
    this.#activity++
    this.#wake?.()
  }

  /**
   * @param patienceMs how long nothing may happen before it is a stall
   * @returns false if it stalled
   */
  async settle(patienceMs: number): Promise<boolean> {
    let pauseMs = this.waits.size > 0 ? 0 : FIRST_LOOK_MS
    if (pauseMs > 0 && this.#running().some(({ step }) => this.#haveWaited.has(step?.text ?? ''))) {
      await this.#changeSoon(EARLY_LOOK_MS)
      pauseMs = 0
    }
    let sawAt = performance.now()
    for (let seen = this.#activity; ; ) {
      await this.#calm()
      if (seen !== this.#activity) sawAt = performance.now()
      seen = this.#activity
      const running = this.#running()
      const isRestless = this.#company.actors.some((actor) => !isResting(actor))
      if (!isRestless && running.length === 0) {
        this.waits = new Map()
        return true
      }
      if (performance.now() - sawAt > patienceMs) return false
      if (isRestless) {
        await this.#change(RESTLESS_LOOK_MS)
        continue
      }
      if (pauseMs > 0 && (await this.#change(pauseMs))) continue
      if (await this.#allWait(running)) return true
      pauseMs = Math.min(Math.max(pauseMs * 2, FIRST_LOOK_MS), LONGEST_PAUSE_MS)
    }
  }

  #running(): GatedSession[] {
    return this.#company.actors.flatMap(({ sessions }) =>
      [...sessions].filter(({ state }) => state === 'running'),
    )
  }

  /** All of these wait for one of us, in one look at the server during which nothing happened. */
  async #allWait(running: readonly GatedSession[]): Promise<boolean> {
    const activity = this.#activity
    const { actors, probe, controlPid } = this.#company
    const ours = [controlPid, ...actors.flatMap(({ sessions }) => [...sessions].map(({ pid }) => pid))]
    const blocked = await probe.look(
      running.map(({ pid }) => pid),
      ours,
    )
    if (activity !== this.#activity) return false
    // Others may hold the lock as well, or instead (autovacuum, another test): they are waited for, never branched on.
    const isOurs = ({ by }: Blocked): boolean => by.length > 0 && by.every((pid) => ours.includes(pid))
    if (!running.every(({ pid }) => isOurs(blocked.get(pid) ?? { pid, by: [] }))) return false
    // The server is about to end a deadlock: that is no rest.
    if (hasCircle(blocked)) return false
    this.waits = new Map(running.map((session) => [session, blocked.get(session.pid) as Blocked]))
    for (const { step } of running) this.#haveWaited.add(step?.text ?? '')
    return true
  }

  /** Lets promises, ticks and callbacks run until they cause nothing more. */
  async #calm(): Promise<void> {
    for (let activity = -1; activity !== this.#activity; ) {
      activity = this.#activity
      await turn()
      await turn()
    }
  }

  /** A wait ends though nobody is let go, because whoever waits has set itself a time. */
  async timesOutWithin(ms: number): Promise<boolean> {
    const timeouts = [...this.waits.keys()].map(({ timeoutMs }) => timeoutMs ?? Number.POSITIVE_INFINITY)
    return Math.min(...timeouts) <= ms && this.#change(ms)
  }

  async #changeSoon(ms: number): Promise<void> {
    const activity = this.#activity
    const until = performance.now() + ms
    while (activity === this.#activity && performance.now() < until) await turn()
  }

  /** True if something happened before the time was over. */
  #change(ms: number): Promise<boolean> {
    const activity = this.#activity
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer)
        this.#wake = undefined
        resolve(activity !== this.#activity)
      }
      const timer = setTimeout(done, ms)
      this.#wake = done
    })
  }
}

/** It does nothing by itself until something is released: its code waits for the database, or is over. */
function isResting({ hasStarted, outcome, sessions, connecting, poolWaits }: Actor): boolean {
  if (!hasStarted) return true
  if (connecting > 0) return false
  // One of several connections that has its answer may bring another request; the only one of its actor is waited for.
  if (outcome === undefined && [...sessions].some(({ isJustAnswered }) => isJustAnswered)) return false
  const states = [...sessions].map(({ state }) => state)
  if (
    states.some(
      (state) => state === 'opening' || state === 'planning' || state === 'passing' || state === 'closing',
    )
  )
    return false
  return (
    outcome !== undefined ||
    poolWaits.size > 0 ||
    states.some((state) => state === 'gated' || state === 'running' || state === 'answered')
  )
}

function hasCircle(blocked: ReadonlyMap<number, Blocked>): boolean {
  const done = new Set<number>()
  const visit = (pid: number, path: ReadonlySet<number>): boolean => {
    if (path.has(pid)) return true
    if (done.has(pid)) return false
    const onward = new Set(path).add(pid)
    const found = (blocked.get(pid)?.by ?? []).some((next) => visit(next, onward))
    done.add(pid)
    return found
  }
  return [...blocked.keys()].some((pid) => visit(pid, new Set()))
}
