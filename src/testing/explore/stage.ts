import { setTimeout as delay } from 'node:timers/promises'
import type { Pool } from 'pg'
import { ExplorationError } from '../../errors.js'
import { endClient } from '../../postgres/client.js'
import { Actor, runAs } from '../gate/actor.js'
import { ActorConnections } from '../gate/actor-connections.js'
import type { ActorPool } from '../gate/actor-pool.js'
import type { GatedSession, SessionObserver } from '../gate/gated-session.js'
import { Permits } from '../gate/permits.js'
import type { Planner } from '../gate/plan.js'
import { redirectPool } from '../gate/redirect-pool.js'
import { BlockingProbe } from './blocking-probe.js'
import { Catalog } from './catalog.js'
import { type Control, connectControl } from './control.js'
import { explainStall } from './explain-stall.js'
import { FreeRun } from './free-run.js'
import type { ExploreOptions } from './options.js'
import { OutsideWatch } from './outside-watch.js'
import { loadParser } from './parse-statements.js'
import { Points } from './points.js'
import { Quiescence } from './quiescence.js'
import { Reset } from './reset.js'
import { UPDATED } from './reset-queries.js'
import { SeededGlobals } from './seeded-globals.js'
import { CLEAN_SESSION, sessionSettings } from './session-settings.js'
import { StatementPlanner } from './statement-planner.js'

/** The roles that are not actors; their names must not be taken. */
const SETUP = 'setup'
const INVARIANT = 'invariant'

/** Everything that stays the same from schedule to schedule: connections, actors, what was learned about the database. */
export class Stage implements SessionObserver {
  readonly actors: readonly Actor[]
  readonly controlPid: number
  readonly setsDeadlockTimeout: boolean
  /** Of statements that do not say. */
  readonly isolation: string
  readonly probe: BlockingProbe
  readonly points: Points
  readonly catalog: Catalog
  readonly quiescence: Quiescence
  /** Clients that actors never gave back. */
  keptClients = 0
  readonly #options: ExploreOptions
  readonly #control: Control
  readonly #reset: Reset
  readonly #connections = new Map<Actor, ActorConnections>()
  readonly #free: FreeRun
  readonly #setup: ActorConnections
  readonly #invariant: ActorConnections
  readonly #permits: Permits
  readonly #globals: SeededGlobals
  readonly #outside: OutsideWatch
  readonly #stopRedirecting: (() => void) | undefined
  /** Transactions whose writes are known, by their statements. */
  readonly #noted = new Set<string>()
  #runs = 0

  private constructor(options: ExploreOptions, control: Control, tools: Tools) {
    this.#options = options
    this.#control = control
    this.#reset = tools.reset
    this.controlPid = control.pid
    this.setsDeadlockTimeout = control.setsDeadlockTimeout
    this.isolation = options.isolation ?? control.isolation
    this.probe = tools.probe
    this.points = tools.points
    this.catalog = new Catalog(control.client)
    this.actors = Object.keys(options.actors).map((name) => new Actor(name))
    this.quiescence = new Quiescence(this)

    const planner = new StatementPlanner(this.catalog, {
      splits: true,
      readsCount: this.isolation === 'serializable',
    })
    this.#free = new FreeRun(planner, (session) => this.#noteSetup(session))
    const settings = sessionSettings(control, options.isolation)
    for (const actor of this.actors)
      this.#connections.set(
        actor,
        this.#connect(actor, planner, this, settings, (s) => this.points.hold(s.pid)),
      )
    const plain = sessionSettings(control, undefined)
    this.#setup = this.#connect(new Actor(SETUP), this.#free, this.#free, plain)
    this.#invariant = this.#connect(new Actor(INVARIANT), this.#free, this.#free, {
      ...plain,
      default_transaction_read_only: 'on',
    })
    this.#permits = new Permits(this.#setup.pool.options.max)
    this.#globals = new SeededGlobals(options.seed ?? 1, options.clock)
    this.#outside = new OutsideWatch(control.client.port)
    this.#stopRedirecting = options.pool && redirectPool(options.pool, (actor) => this.#poolOf(actor))
  }

  static async open(options: ExploreOptions): Promise<Stage> {
    await loadParser()
    const control = await connectControl(options)
    try {
      const { client } = control
      const tools = {
        probe: await BlockingProbe.open(client),
        points: await Points.open(client),
        reset: await Reset.begin(client),
      }
      const stage = new Stage(options, control, tools)
      await stage.#warmUp()
      return stage
    } catch (error) {
      await endClient(control.client)
      throw error
    }
  }

  /** A session of an actor has changed. */
  onChange(session: GatedSession): void {
    if (session.state === 'closing') void this.#awaitGone(session).catch(() => session.onGone())
    this.quiescence.touch()
  }

  /** Puts everything back to where each schedule starts. */
  async begin(): Promise<void> {
    if (this.#runs > 0) {
      await Promise.all([...this.actors.map((actor) => this.#clean(actor)), this.#resetTables()])
    }
    await this.#as(this.#setup, 'setup', this.#options.setup)
    if (this.#runs === 0 && !this.#options.reset) await this.#reset.protectRows()
    this.#free.isKnown = true
    this.#runs++
    for (const actor of this.actors) actor.begin()
    this.#globals.begin()
  }

  /** The actor's own function. */
  play(actor: Actor): unknown {
    const connections = this.#connections.get(actor) as ActorConnections
    return this.#options.actors[actor.name]?.(connections.pool)
  }

  /** Runs a function that may look and not touch. */
  async judge(fn: (db: ActorPool) => unknown): Promise<unknown> {
    if (this.#runs === 1 && !this.#options.reset) await this.#reset.protectRows()
    return runAs(this.#invariant.actor, () => fn(this.#invariant.pool))
  }

  /** Learns what the session's transaction has written, if such a one was not seen before. */
  async noteWrites(session: GatedSession): Promise<void> {
    if (this.#options.reset || session.status === 'I') return
    const key = session.transaction.join('\n')
    if (this.#noted.has(key)) return
    this.#noted.add(key)
    await this.#reset.note(session.pid)
  }

  async #noteSetup(session: GatedSession): Promise<void> {
    if (this.#options.reset || session.status !== 'T') return
    await this.#reset.note(session.pid)
    const { rows } = await session.tell(UPDATED)
    await this.#reset.protectUpdates((rows[0]?.[0] ?? '').split(' ').filter(Boolean))
  }

  /** Throws if an actor reached the database past the gate. */
  checkOutside(): void {
    this.#outside.check()
  }

  actorOf(session: GatedSession): Actor | undefined {
    return this.actors.find(({ sessions }) => sessions.has(session))
  }

  /** Who a backend is, for the reader. */
  nameOf(pid: number): string {
    for (const actor of this.actors)
      for (const session of actor.sessions) if (session.pid === pid) return actor.labelOf(session)
    return `process ${pid}`
  }

  explainStall(patienceMs: number): Promise<ExplorationError> {
    return explainStall(this, this.#control.client, patienceMs)
  }

  /** Transactions that were left open by actors that have ended. */
  get openTransactions(): readonly string[] {
    return this.actors
      .filter(({ sessions }) => [...sessions].some(({ status }) => status !== 'I'))
      .map(({ name }) => name)
  }

  async close(): Promise<void> {
    this.#stopRedirecting?.()
    this.#globals.close()
    this.#outside.close()
    for (const connections of [...this.#connections.values(), this.#invariant]) await connections.close()
    try {
      if (this.#runs > 0) await this.#resetTables()
    } finally {
      await this.#setup.close()
      await endClient(this.#control.client)
    }
  }

  async #warmUp(): Promise<void> {
    const all = [this.#setup, this.#invariant, ...(this.#options.pool ? [] : this.#connections.values())]
    await Promise.all(all.map((connections) => connections.warmUp()))
  }

  #connect(
    actor: Actor,
    planner: Planner,
    observer: SessionObserver,
    settings: Readonly<Record<string, string>>,
    prepare?: (session: GatedSession) => Promise<void>,
  ): ActorConnections {
    const onChange = (): void => this.quiescence.touch()
    return new ActorConnections(actor, {
      config: this.#control.config,
      planner,
      observer,
      settings,
      prepare,
      onChange,
    })
  }

  #poolOf(actor: Actor): ActorPool | undefined {
    if (actor === this.#setup.actor) return this.#setup.pool
    if (actor === this.#invariant.actor) return this.#invariant.pool
    return this.#connections.get(actor)?.inPlaceOf(this.#options.pool as Pool, this.#permits)
  }

  async #resetTables(): Promise<void> {
    if (this.#options.reset) await this.#as(this.#setup, 'reset', this.#options.reset)
    else await this.#reset.run()
  }

  async #as(
    connections: ActorConnections,
    what: 'setup' | 'reset',
    fn: ((db: ActorPool) => unknown) | undefined,
  ): Promise<void> {
    try {
      await runAs(connections.actor, () => fn?.(connections.pool))
    } catch (error) {
      if (this.#free.failure) throw this.#free.failure
      throw new ExplorationError(
        `\`${what}\` failed before schedule ${this.#runs + 1}: ${error instanceof Error ? error.message : String(error)}`,
        what,
        undefined,
        { cause: error },
      )
    }
    connections.reclaim()
  }

  /** What an actor left behind: clients it kept, transactions, session state. */
  async #clean(actor: Actor): Promise<void> {
    const connections = this.#connections.get(actor) as ActorConnections
    this.keptClients += connections.reclaim()
    this.#permits.clear()
    for (const session of actor.sessions) {
      session.begin()
      if (session.state === 'closed') actor.sessions.delete(session)
      else if (session.state !== 'idle' || session.status !== 'I') session.destroy()
    }
    const kept = [...actor.sessions].filter(({ state, status }) => state === 'idle' && status === 'I')
    await Promise.all(kept.map((session) => session.tell(CLEAN_SESSION)))
  }

  /** The server frees a lost session's locks when its backend is gone, not when the client is. */
  async #awaitGone(session: GatedSession): Promise<void> {
    const { client } = this.#control
    for (let pauseMs = 1; session.pid > 0; pauseMs = Math.min(pauseMs * 2, 50)) {
      const { rows } = await client.query('select from pg_stat_activity where pid = $1', [session.pid])
      if (rows.length === 0) break
      await delay(pauseMs)
    }
    this.actorOf(session)?.sessions.delete(session)
    session.onGone()
  }
}

interface Tools {
  readonly probe: BlockingProbe
  readonly points: Points
  readonly reset: Reset
}
