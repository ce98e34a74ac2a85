import type { Socket } from 'node:net'
import type { PoolClient } from 'pg'
import { ExplorationError } from '../../../errors.js'
import { endClient } from '../../../postgres/client.js'
import { sleep } from '../../../postgres/sleep.js'
import type { Actor } from '../../gate/actor.js'
import type { ActorPool } from '../../gate/actor-pool.js'
import type { GatedSession, SessionObserver } from '../../gate/gated-session.js'
import type { Planner } from '../../gate/plan.js'
import { Reset } from '../reset/reset.js'
import { BlockingProbe } from '../schedule/blocking-probe.js'
import { explainStall } from '../schedule/explain-stall.js'
import { Quiescence } from '../schedule/quiescence.js'
import { YieldPoints } from '../schedule/yield-points.js'
import { loadParser } from '../statements/parse-statements.js'
import { SchemaCatalog } from '../statements/schema-catalog.js'
import { StatementPlanner } from '../statements/statement-planner.js'
import { ActorSet } from './actor-set.js'
import { BypassDetector } from './bypass-detector.js'
import { type ControlConnection, openControlConnection } from './control-connection.js'
import { ObservedSettings } from './observed-settings.js'
import { checkNotLate, runCallback } from './run-callback.js'
import { SeededGlobals } from './seeded-globals.js'
import { sessionSettings } from './session-settings.js'
import { hiddenWrites, TableRestore } from './table-restore.js'
import type { TestSessionOptions } from './test-session-options.js'
import { UngatedRun } from './ungated-run.js'

interface ServerTools {
  readonly probe: BlockingProbe
  readonly yieldPoints: YieldPoints
  readonly reset: Reset
}

/**
 * Keeps everything that lasts from one schedule to the next: the connections, the actors, and the catalog of the database.
 * `beginRun` restores the tables and the connections before each schedule.
 */
export class TestSession implements SessionObserver {
  readonly setsDeadlockTimeout: boolean
  /** The isolation level of transactions that name none. */
  readonly isolation: string
  readonly observedSettings: ObservedSettings
  readonly probe: BlockingProbe
  readonly yieldPoints: YieldPoints
  readonly catalog: SchemaCatalog
  readonly quiescence: Quiescence
  readonly #options: TestSessionOptions
  readonly #control: ControlConnection
  readonly #reset: Reset
  readonly #tableRestore: TableRestore
  readonly #ungated: UngatedRun
  readonly #globals: SeededGlobals
  readonly #bypassDetector: BypassDetector
  #actorSet: ActorSet | undefined
  #hasBegun = false
  #runs = 0

  private constructor(
    options: TestSessionOptions,
    control: ControlConnection,
    { probe, yieldPoints, reset }: ServerTools,
  ) {
    this.#options = options
    this.#control = control
    this.#reset = reset
    this.setsDeadlockTimeout = control.setsDeadlockTimeout
    this.isolation = options.isolation ?? control.isolation
    this.observedSettings = new ObservedSettings(this.isolation, control.searchPath)
    this.probe = probe
    this.yieldPoints = yieldPoints
    this.catalog = new SchemaCatalog(control.client, connectListeners(options).length === 0)
    this.quiescence = new Quiescence(this)
    this.#tableRestore = new TableRestore({
      reset,
      catalog: this.catalog,
      isByUser: options.reset !== undefined,
      needsWrites: options.runName === 'run',
    })
    this.#ungated = new UngatedRun(this.#newPlanner(), (session) =>
      this.#tableRestore.beforeSetupEnds(session),
    )
    this.#globals = new SeededGlobals(options.seed ?? 1, options.clockStartsAt)
    this.#bypassDetector = new BypassDetector(control.client.port, addressOf(control))
  }

  static async open(options: TestSessionOptions): Promise<TestSession> {
    await loadParser()
    const control = await openControlConnection(options)
    const { client } = control
    let testSession: TestSession | undefined
    try {
      const probe = await BlockingProbe.open(client)
      const yieldPoints = await YieldPoints.open(client)
      const reset = await Reset.open(client)
      testSession = new TestSession(options, control, { probe, yieldPoints, reset })
      testSession.#actorSet = await testSession.#openActors()
      return testSession
    } catch (error) {
      if (testSession) await testSession.close()
      else await endClient(client)
      throw error
    }
  }

  /** The explorer's own backend, which holds the locks behind yield points. */
  get controlPid(): number {
    return this.#control.client.pid
  }

  /** Connects again after the server was unavailable. Keeps the catalog of the database. */
  reconnect(): Promise<void> {
    return this.#control.client.reconnect()
  }

  get actorSet(): ActorSet {
    return this.#actorSet as ActorSet
  }

  get actors(): readonly Actor[] {
    return this.actorSet.actors
  }

  /** Called when a session of an actor changes its state. */
  onChange(session: GatedSession): void {
    if (session.state === 'gated') this.#onGated(session)
    if (session.state === 'closing') void this.#awaitBackendEnd(session).catch(() => session.onGone())
    this.quiescence.noteActivity()
  }

  #onGated(session: GatedSession): void {
    // Before the first run, only the `connect` listeners of the user's pool send statements.
    if (!this.#hasBegun) session.release()
    else this.actorSet.actorOf(session)?.labelOf(session) // numbers the units in the order of first use
  }

  /** Restores the state with which each schedule starts, and runs `setup`. */
  async beginRun(): Promise<void> {
    const { reset, setup } = this.#options
    // The user's `reset` runs in a session that must be cleaned first. The explorer's own has another connection.
    if (this.#runs > 0 && reset) await this.actorSet.clean().then(() => this.#resetTables())
    else if (this.#runs > 0) await Promise.all([this.actorSet.clean(), this.#resetTables()])
    this.#hasBegun = true
    await this.#runWriter('setup', setup)
    if (this.#runs === 0 && !reset) await this.#reset.protectRows()
    this.#ungated.endRun()
    this.#runs++
    this.actorSet.begin()
    this.#globals.begin()
    this.#bypassDetector.isRunning = true
  }

  /** Makes each later schedule start with a vacuum of the tables. @returns false if this was on before, or is impossible */
  vacuumBetweenRuns(): boolean {
    if (this.#options.reset || this.#reset.vacuumsEachTime) return false
    this.#reset.vacuumsEachTime = true
    return true
  }

  /** Called when the actors have ended or were given up. Later requests of this run are not sent. */
  endRun(): void {
    this.#bypassDetector.isRunning = false
    for (const actor of this.#actorSet?.actors ?? []) actor.run++
  }

  /** Calls the function of an actor. */
  runActor(actor: Actor): unknown {
    return this.#options.actors[actor.name]?.(this.actorSet.poolOf(actor))
  }

  /** Runs a function that must not change data. */
  async runReadOnly(
    fn: (db: ActorPool) => unknown,
    what: 'invariant' | 'progress' = 'invariant',
  ): Promise<unknown> {
    if (this.#runs === 1 && !this.#options.reset) await this.#reset.protectRows()
    return this.#withoutDetector(() => runCallback(this.actorSet.invariant, what, fn))
  }

  /** Runs a function on the connections of `setup` while no actor runs. */
  advance(fn: (db: ActorPool) => unknown): Promise<void> {
    return this.#withoutDetector(() => this.#runWriter('advance', fn))
  }

  /** Runs a function of the user that may use any connection, also in the middle of a run. */
  async #withoutDetector<T>(fn: () => Promise<T>): Promise<T> {
    const { isRunning } = this.#bypassDetector
    this.#bypassDetector.isRunning = false
    try {
      return await fn()
    } finally {
      this.#bypassDetector.isRunning = isRunning
    }
  }

  /** The tables written so far, as quoted and qualified names. */
  get writtenTables(): readonly string[] {
    return this.#reset.tables
  }

  /** Runs a query on the explorer's own connection. */
  query<Row extends object>(sql: string): Promise<readonly Row[]> {
    return this.#control.client.query(sql).then(({ rows }) => rows as Row[])
  }

  /** Called before an actor's step is released. Throws if the explorer could not undo the step. */
  beforeStep(session: GatedSession): Promise<void> {
    return this.#tableRestore.beforeStep(session, this.labelOf(session))
  }

  refuseHiddenWrites(unit: string, text: string): void {
    this.#tableRestore.refuseHiddenWrites(unit, text)
  }

  /** The unit of a session: `alice`, `alice/2`. */
  labelOf(session: GatedSession): string {
    return this.actorSet.actorOf(session)?.labelOf(session) ?? '?'
  }

  /** Throws if an actor has reached the database past the gate. */
  checkBypass(): void {
    this.#bypassDetector.check()
  }

  explainStall(patienceMs: number): Promise<ExplorationError> {
    return explainStall(this.actorSet, this.#control.client, patienceMs)
  }

  async close(): Promise<void> {
    this.endRun()
    this.#globals.close()
    this.#bypassDetector.close()
    try {
      await this.#actorSet?.closeActors()
      if (this.#runs === 0 && this.#hasBegun && !this.#options.reset) await this.#reset.protectRows()
      if (this.#hasBegun) await this.#resetTables()
      if (this.#actorSet) checkNotLate(this.#actorSet.invariant.actor, 'invariant')
    } finally {
      await this.#actorSet?.setup.close()
      await endClient(this.#control.client)
    }
  }

  #newPlanner(): StatementPlanner {
    return new StatementPlanner(this.catalog, {
      splits: true, // guard: explorer.autocommit-step
      readsCount: this.isolation === 'serializable',
    })
  }

  #openActors(): Promise<ActorSet> {
    const { config, url } = this.#control
    const settings = sessionSettings(this.#control)
    const ungated = this.#ungated
    return ActorSet.open({
      names: Object.keys(this.#options.actors),
      pool: this.#options.pool,
      isShared: this.#options.runName !== 'run',
      onForeignUse: this.#bypassDetector.onForeignUse,
      common: {
        config,
        url,
        listeners: connectListeners(this.#options),
        onChange: () => this.quiescence.noteActivity(),
      },
      actors: {
        planner: this.#newPlanner(),
        observer: this,
        settings: sessionSettings(this.#control, this.#options),
        prepare: async (session) => {
          await Promise.all([this.yieldPoints.hold(session.pid), this.observedSettings.observe(session)])
        },
      },
      setup: { planner: ungated, observer: ungated, settings },
      invariant: {
        planner: this.#invariantPlanner(),
        observer: ungated,
        settings: { ...settings, default_transaction_read_only: 'on' },
      },
    })
  }

  #invariantPlanner(): Planner {
    return {
      plan: (request, session) => {
        this.observedSettings.addInvariantQuery(request.text)
        return this.#ungated.plan(request, session)
      },
      refuseSplit: (text) => this.#ungated.refuseSplit(text),
    }
  }

  async #resetTables(): Promise<void> {
    if (this.#options.reset) await this.#runWriter('reset', this.#options.reset)
    else await this.#reset.run()
  }

  /** Runs a function of the user that may write. */
  async #runWriter(
    what: 'setup' | 'reset' | 'advance',
    fn: ((db: ActorPool) => unknown) | undefined,
  ): Promise<void> {
    const { setup } = this.actorSet
    try {
      if (fn) await runCallback(setup, what, fn)
    } catch (error) {
      if (this.#ungated.failure) throw this.#ungated.failure
      if (error instanceof ExplorationError) throw error
      const isLeftover = this.#runs === 0 && (error as { code?: unknown } | null)?.code === '23505'
      const runName = this.#options.runName ?? 'schedule'
      throw new ExplorationError(
        `\`${what}\` failed ${what === 'advance' ? `in run ${this.#runs}` : `before ${runName} ${this.#runs + 1}`}: ${error instanceof Error ? error.message : String(error)}` +
          (isLeftover
            ? '. The table held that row before, perhaps since a run that was interrupted: delete it.'
            : ''),
        what,
        undefined,
        { cause: error },
      )
    }
    const text = [...setup.actor.sessions].find(({ selfCommitted }) => selfCommitted)?.selfCommitted
    if (text && !this.#options.reset) throw hiddenWrites('`setup`', text)
  }

  /** Waits until the backend of a lost connection has ended, since only then its locks are free. */
  async #awaitBackendEnd(session: GatedSession): Promise<void> {
    const { client } = this.#control
    // A backend at a yield point waits for a lock and does not notice that its client has disconnected.
    await client.query(
      'select pg_terminate_backend(pid) from unnest(array[$1::int]) pid where pg_backend_pid() = any (pg_blocking_pids(pid))',
      [session.pid],
    )
    for (let pauseMs = 1; session.pid > 0; pauseMs = Math.min(pauseMs * 2, 50)) {
      const { rows } = await client.query('select from pg_stat_activity where pid = $1', [session.pid])
      if (rows.length === 0) break
      await sleep(pauseMs)
    }
    this.actorSet.actorOf(session)?.sessions.delete(session)
    session.onGone()
  }
}

function addressOf({ client }: ControlConnection): string | undefined {
  return (client.connection.stream as Socket).remoteAddress
}

function connectListeners({ pool }: TestSessionOptions): ((client: PoolClient) => void)[] {
  return (pool?.listeners('connect') ?? []) as ((client: PoolClient) => void)[]
}
