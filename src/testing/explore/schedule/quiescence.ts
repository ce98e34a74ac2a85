import type { Actor } from '../../gate/actor.js'
import type { GatedSession } from '../../gate/gated-session.js'
import type { BlockedBackend, BlockingProbe } from './blocking-probe.js'

/** How long to wait for the result of a released step, before the probe asks the server whether it waits for a lock. */
const FIRST_PROBE_MS = 1
/** `FIRST_PROBE_MS` for a statement that has waited before. Too short for a timer. */
const EARLY_PROBE_MS = 0.3
const MAX_PAUSE_MS = 16
/** How often to check actors that are busy without a step, since some become idle without an event. */
const BUSY_PAUSE_MS = 5

/** The timers of Node.js, read at load time, since a test may replace the global ones later. */
const { setImmediate, setTimeout, clearTimeout } = globalThis

/** Waits for one turn of the event loop. `setImmediate` of node:timers/promises takes three times as long. */
const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

/** The actors to wait for, and how to ask the server about them. */
interface ObservedActors {
  readonly actors: readonly Actor[]
  readonly probe: BlockingProbe
  /** The explorer's own backend, which holds the locks behind yield points. */
  readonly controlPid: number
}

/**
 * Waits until no actor can make progress by itself. Each actor has then ended, or waits at the gate, at a yield point, for a
 * lock of another actor, or for a connection. Only in this state are the units to choose from the same in every run.
 */
export class Quiescence {
  /** The sessions that wait for a lock, as of the last `settle`. */
  waits: ReadonlyMap<GatedSession, BlockedBackend> = new Map()
  readonly #observed: ObservedActors
  /** Statements that have waited for a lock. Each is likely to wait again, so the probe starts sooner. */
  readonly #statementsThatWaited = new Set<string>()
  #activity = 0
  #wake: (() => void) | undefined

  constructor(observed: ObservedActors) {
    this.#observed = observed
  }

  /** Called when a session or an actor changes its state. */
  noteActivity(): void {
    this.#activity++
    this.#wake?.()
  }

  /**
   * Waits for quiescence.
   *
   * @param patienceMs how long nothing may happen before the actors count as stalled
   * @returns false if they stalled
   */
  async settle(patienceMs: number): Promise<boolean> {
    let pauseMs = this.waits.size > 0 ? 0 : FIRST_PROBE_MS
    if (pauseMs > 0 && this.#running().some(({ step }) => this.#statementsThatWaited.has(step?.text ?? ''))) {
      await this.#spinForActivity(EARLY_PROBE_MS)
      pauseMs = 0
    }
    let activeAt = performance.now()
    for (let seen = this.#activity; ; ) {
      await this.#drainEvents()
      if (seen !== this.#activity) activeAt = performance.now()
      seen = this.#activity
      const running = this.#running()
      const isBusy = this.#observed.actors.some((actor) => !isIdle(actor))
      if (!isBusy && running.length === 0) {
        this.waits = new Map()
        return true
      }
      if (performance.now() - activeAt > patienceMs) return false
      if (isBusy) {
        await this.#awaitActivity(BUSY_PAUSE_MS)
        continue
      }
      if (pauseMs > 0 && (await this.#awaitActivity(pauseMs))) continue
      if (await this.#areAllBlocked(running)) return true
      pauseMs = Math.min(Math.max(pauseMs * 2, FIRST_PROBE_MS), MAX_PAUSE_MS)
    }
  }

  #running(): GatedSession[] {
    return this.#observed.actors.flatMap(({ sessions }) =>
      [...sessions].filter(({ state }) => state === 'running'),
    )
  }

  /** True if all of these sessions wait for other actors, by one probe of the server during which nothing happened. */
  async #areAllBlocked(running: readonly GatedSession[]): Promise<boolean> {
    const activity = this.#activity
    const { actors, probe, controlPid } = this.#observed
    const ours = [controlPid, ...actors.flatMap(({ sessions }) => [...sessions].map(({ pid }) => pid))]
    const blocked = await probe.findBlocked(
      running.map(({ pid }) => pid),
      ours,
    )
    if (activity !== this.#activity) return false
    // Other backends may hold the lock (autovacuum, another test). Such a wait ends by itself, so it is not quiescence.
    const isOurs = ({ by }: BlockedBackend): boolean => by.length > 0 && by.every((pid) => ours.includes(pid))
    if (!running.every(({ pid }) => isOurs(blocked.get(pid) ?? { pid, by: [] }))) return false
    // The server is about to end this deadlock, so this is not quiescence.
    if (hasCycle(blocked)) return false // guard: explorer.deadlock
    this.waits = new Map(running.map((session) => [session, blocked.get(session.pid) as BlockedBackend]))
    for (const { step } of running) this.#statementsThatWaited.add(step?.text ?? '')
    return true
  }

  /** Lets promises, ticks and callbacks run until they cause no more activity. */
  async #drainEvents(): Promise<void> {
    for (let activity = -1; activity !== this.#activity; ) {
      activity = this.#activity
      await nextTurn()
      await nextTurn()
    }
  }

  /** Waits for a session with a timeout of its own. @returns true if its wait ended although no step was released */
  async timesOutWithin(ms: number): Promise<boolean> {
    const timeouts = [...this.waits.keys()].map(({ timeoutMs }) => timeoutMs ?? Number.POSITIVE_INFINITY)
    return Math.min(...timeouts) <= ms && this.#awaitActivity(ms)
  }

  async #spinForActivity(ms: number): Promise<void> {
    const activity = this.#activity
    const until = performance.now() + ms
    while (activity === this.#activity && performance.now() < until) await nextTurn()
  }

  /** Waits for activity. @returns false if there was none before the time was over */
  #awaitActivity(ms: number): Promise<boolean> {
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

/** True if the actor does nothing before a step is released: its code has ended, or waits for the database. */
function isIdle({ hasStarted, outcome, sessions, connecting, poolWaits }: Actor): boolean {
  if (!hasStarted) return true
  if (connecting > 0) return false
  // The code behind a connection that just got its result may send the next request.
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

function hasCycle(blocked: ReadonlyMap<number, BlockedBackend>): boolean {
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
