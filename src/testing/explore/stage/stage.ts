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
import { Points } from '../schedule/points.js'
import { Quiescence } from '../schedule/quiescence.js'
import { Catalog } from '../statements/catalog.js'
import { loadParser } from '../statements/parse-statements.js'
import { StatementPlanner } from '../statements/statement-planner.js'
import { Cast } from './cast.js'
import { type Control, connectControl } from './control.js'
import { FreeRun } from './free-run.js'
import { OutsideWatch } from './outside-watch.js'
import { checkNotLate, runHelper } from './run-helper.js'
import { SeededGlobals } from './seeded-globals.js'
import { sessionSettings } from './session-settings.js'
import type { StageOptions } from './stage-options.js'
import { unseenWrites } from './unseen-writes.js'

const PREPARES = /^\s*prepare\s+transaction\b/i

/** What these write is not in their text. */
const OPAQUE = /(?:^|;\s*)(?:do|call|execute)\b/im

interface Tools {
  readonly probe: BlockingProbe
  readonly points: Points
  readonly reset: Reset
}

/** Everything that stays the same from schedule to schedule: connections, actors, what was learned about the database. */
export class Stage implements SessionObserver {
  readonly setsDeadlockTimeout: boolean
  /** Of statements that do not say. */
  readonly isolation: string
  /** As far as connections were made. */
  readonly sessions: { readonly levels: Set<string>; hasOtherPath: boolean; readonly judged: string[] }
  readonly probe: BlockingProbe
  readonly points: Points
  readonly catalog: Catalog
  readonly quiescence: Quiescence
  readonly #options: StageOptions
  readonly #control: Control
  readonly #reset: Reset
  readonly #free: FreeRun
  readonly #globals: SeededGlobals
  readonly #outside: OutsideWatch
  /** Transactions whose writes are known, by their statements. */
  readonly #noted = new Set<string>()
  #cast: Cast | undefined
  #hasBegun = false
  #runs = 0

  private constructor(options: StageOptions, control: Control, { probe, points, reset }: Tools) {
    this.#options = options
    this.#control = control
    this.#reset = reset
    this.setsDeadlockTimeout = control.setsDeadlockTimeout
    this.isolation = options.isolation ?? control.isolation
    this.sessions = { levels: new Set([this.isolation]), hasOtherPath: false, judged: [] }
    this.probe = probe
    this.points = points
    this.catalog = new Catalog(control.client, connectListeners(options).length === 0)
    this.quiescence = new Quiescence(this)
    this.#free = new FreeRun(this.#newPlanner(), (session) => this.#noteSetup(session))
    this.#globals = new SeededGlobals(options.seed ?? 1, options.clockStartsAt)
    this.#outside = new OutsideWatch(control.client.port, addressOf(control))
  }

  static async open(options: StageOptions): Promise<Stage> {
    await loadParser()
    const control = await connectControl(options)
    const { client } = control
    let stage: Stage | undefined
    try {
      const probe = await BlockingProbe.open(client)
      const points = await Points.open(client)
      const reset = await Reset.begin(client)
      stage = new Stage(options, control, { probe, points, reset })
      stage.#cast = await stage.#openCast()
      return stage
    } catch (error) {
      if (stage) await stage.close()
      else await endClient(client)
      throw error
    }
  }

  /** The stage's own backend, which holds the locks behind yield points. */
  get controlPid(): number {
    return this.#control.client.pid
  }

  /** The server was away: what is known of the database stays. */
  reconnect(): Promise<void> {
    return this.#control.client.reconnect()
  }

  get cast(): Cast {
    return this.#cast as Cast
  }

  get actors(): readonly Actor[] {
    return this.cast.actors
  }

  /** A session of an actor has changed. */
  onChange(session: GatedSession): void {
    if (session.state === 'gated') this.#onGated(session)
    if (session.state === 'closing') void this.#awaitGone(session).catch(() => session.onGone())
    this.quiescence.touch()
  }

  #onGated(session: GatedSession): void {
    // While connecting: what the owner of the pool does to each new connection.
    if (!this.#hasBegun) session.release()
    else this.cast.actorOf(session)?.labelOf(session) // the first to ask is the first by name
  }

  /** Puts everything back to where each schedule starts. */
  async begin(): Promise<void> {
    // A `reset` of the user's runs in a session that is being cleaned; ours has its own.
    if (this.#runs > 0 && this.#options.reset) await this.cast.clean().then(() => this.#resetTables())
    else if (this.#runs > 0) await Promise.all([this.cast.clean(), this.#resetTables()])
    this.#hasBegun = true
    await this.#prepare('setup', this.#options.setup)
    if (this.#runs === 0 && !this.#options.reset) await this.#reset.protectRows()
    this.#free.learned()
    this.#runs++
    this.cast.begin()
    this.#globals.begin()
    this.#outside.isRunning = true
  }

  /** From now on tables are as new at the start of each schedule. @returns they were not before, and can be */
  tidyUp(): boolean {
    if (this.#options.reset || this.#reset.isTidy) return false
    this.#reset.isTidy = true
    return true
  }

  /** The actors have all ended, or were given up. */
  end(): void {
    this.#outside.isRunning = false
    // What comes from them now comes too late.
    for (const actor of this.#cast?.actors ?? []) actor.run++
  }

  /** The actor's own function. */
  play(actor: Actor): unknown {
    return this.#options.actors[actor.name]?.(this.cast.poolOf(actor))
  }

  /** Runs a function that may look and not touch. */
  async judge(
    fn: (db: ActorPool) => unknown,
    what: 'invariant' | 'progress' = 'invariant',
  ): Promise<unknown> {
    if (this.#runs === 1 && !this.#options.reset) await this.#reset.protectRows()
    return this.#aside(() => runHelper(this.cast.invariant, what, fn))
  }

  /** Runs a function that may do what `setup` may, while the actors stand still. */
  advance(fn: (db: ActorPool) => unknown): Promise<void> {
    return this.#aside(() => this.#prepare('advance', fn))
  }

  /** Helpers may go where they like, also in the middle of a run. */
  async #aside<T>(fn: () => Promise<T>): Promise<T> {
    const { isRunning } = this.#outside
    this.#outside.isRunning = false
    try {
      return await fn()
    } finally {
      this.#outside.isRunning = isRunning
    }
  }

  /** The tables written so far, as quoted and qualified names. */
  get tables(): readonly string[] {
    return this.#reset.tables
  }

  /** A question of the loop's own. */
  ask<Row extends object>(sql: string): Promise<readonly Row[]> {
    return this.#control.client.query(sql).then(({ rows }) => rows as Row[])
  }

  /** What must be known, or refused, before a step is let go. */
  async beforeStep(session: GatedSession): Promise<void> {
    const { step } = session
    const unit = (): string => this.cast.actorOf(session)?.labelOf(session) ?? '?'
    if (step?.commitsItself) this.refuseUnseenWrites(unit(), step.text)
    if (step && PREPARES.test(step.text) && !this.#options.reset)
      throw new ExplorationError(
        `${unit()} prepares a transaction, which outlives it: ${JSON.stringify(step.text)}. Pass a \`reset\` that ends it, and empties the tables too.`,
        'reset',
        unit(),
      )
    if (step?.changesSchema) this.#refuseSchemaChange(unit(), step.text)
    if (step?.endsTransaction) await this.#noteWrites(session)
  }

  /** Learns what the session's transaction has written, if such a one was not seen before. */
  async #noteWrites(session: GatedSession): Promise<void> {
    // The explorer needs to know only what it has to put back.
    if ((this.#options.reset && this.#options.time !== 'run') || session.status === 'I') return
    const key = session.transaction.join('\n')
    // What functions, triggers and partitions write may depend on what they find.
    if (this.#noted.has(key) && !this.catalog.hasHiddenWriters && !OPAQUE.test(key)) return
    this.#noted.add(key)
    const before = this.#reset.newRelations
    await this.#reset.note(session.pid)
    // A function has made a table. What is temporary goes with its session.
    const isNew = this.#reset.newRelations > before && !/\btemp(?:orary)?\b/i.test(key)
    if (isNew) this.#refuseSchemaChange(this.cast.actorOf(session)?.name ?? '', session.transaction.join(' '))
  }

  /** Emptying tables does not undo it: the next schedule would start from somewhere else. */
  #refuseSchemaChange(unit: string, text: string): void {
    if (this.#options.reset) return void this.catalog.forget()
    throw new ExplorationError(
      `${unit} changes the schema: ${JSON.stringify(text)}. That cannot be undone between one time and the next. Pass a \`reset\` that does, and empties the tables too.`,
      'reset',
      unit,
    )
  }

  refuseUnseenWrites(unit: string, text: string): void {
    if (!this.#options.reset) throw unseenWrites(unit, text)
  }

  /** Throws if an actor reached the database past the gate. */
  checkOutside(): void {
    this.#outside.check()
  }

  explainStall(patienceMs: number): Promise<ExplorationError> {
    return explainStall(this.cast, this.#control.client, patienceMs)
  }

  async close(): Promise<void> {
    this.end()
    this.#globals.close()
    this.#outside.close()
    try {
      await this.#cast?.closeActors()
      if (this.#runs === 0 && this.#hasBegun && !this.#options.reset) await this.#reset.protectRows()
      if (this.#hasBegun) await this.#resetTables()
      if (this.#cast) checkNotLate(this.#cast.invariant.actor, 'invariant')
    } finally {
      await this.#cast?.setup.close()
      await endClient(this.#control.client)
    }
  }

  #newPlanner(): StatementPlanner {
    return new StatementPlanner(this.catalog, {
      splits: true,
      readsCount: this.isolation === 'serializable',
    })
  }

  #openCast(): Promise<Cast> {
    const { config, url } = this.#control
    const plain = sessionSettings(this.#control)
    const free = { planner: this.#free, observer: this.#free }
    return Cast.open({
      names: Object.keys(this.#options.actors),
      pool: this.#options.pool,
      isShared: this.#options.time !== 'run',
      onStranger: this.#outside.onStranger,
      common: {
        config,
        url,
        listeners: connectListeners(this.#options),
        onChange: () => this.quiescence.touch(),
      },
      actors: {
        planner: this.#newPlanner(),
        observer: this,
        settings: sessionSettings(this.#control, this.#options),
        prepare: async (session) => {
          await Promise.all([this.points.hold(session.pid), this.#noteSettings(session)])
        },
      },
      setup: { ...free, settings: plain },
      invariant: {
        planner: this.#judging(),
        observer: this.#free,
        settings: { ...plain, default_transaction_read_only: 'on' },
      },
    })
  }

  /** Keeps what the invariant asks, once. */
  #judging(): Planner {
    const seen = new Set<string>()
    return {
      plan: (request, session) => {
        if (!seen.has(request.text)) this.sessions.judged.push(request.text)
        seen.add(request.text)
        return this.#free.plan(request, session)
      },
      refuseSplit: (text) => this.#free.refuseSplit(text),
    }
  }

  /** Whoever connects by itself may bring settings that the explorer's own connection does not have. */
  async #noteSettings(session: GatedSession): Promise<void> {
    const { rows } = await session.tell(
      `select pg_catalog.current_setting('default_transaction_isolation'), pg_catalog.current_setting('search_path')`,
    )
    const [level, path] = rows[0] ?? []
    if (level) this.sessions.levels.add(level)
    if (path !== this.#control.searchPath) this.sessions.hasOtherPath = true
  }

  async #noteSetup(session: GatedSession): Promise<void> {
    if (this.#options.reset) return
    if (session.step?.commitsItself) throw unseenWrites('`setup`', session.step.text)
    if (session.status !== 'T') return
    await this.#reset.note(session.pid)
    await this.#reset.protectUpdates(async (sql) => (await session.tell(sql)).rows[0]?.[0] ?? '')
  }

  async #resetTables(): Promise<void> {
    if (this.#options.reset) await this.#prepare('reset', this.#options.reset)
    else await this.#reset.run()
  }

  async #prepare(
    what: 'setup' | 'reset' | 'advance',
    fn: ((db: ActorPool) => unknown) | undefined,
  ): Promise<void> {
    const { setup } = this.cast
    try {
      if (fn) await runHelper(setup, what, fn)
    } catch (error) {
      if (this.#free.failure) throw this.#free.failure
      if (error instanceof ExplorationError) throw error
      const isLeftover = this.#runs === 0 && (error as { code?: unknown } | null)?.code === '23505'
      throw new ExplorationError(
        `\`${what}\` failed ${what === 'advance' ? `in run ${this.#runs}` : `before ${this.#options.time ?? 'schedule'} ${this.#runs + 1}`}: ${error instanceof Error ? error.message : String(error)}` +
          (isLeftover
            ? '. The table held that row before, perhaps since a run that was interrupted: delete it.'
            : ''),
        what,
        undefined,
        { cause: error },
      )
    }
    const itself = [...setup.actor.sessions].find(({ endsItself }) => endsItself)?.endsItself
    if (itself && !this.#options.reset) throw unseenWrites('`setup`', itself)
  }

  /** The server frees a lost session's locks when its backend is gone, not when the client is. */
  async #awaitGone(session: GatedSession): Promise<void> {
    // At a yield point it would wait for ever: a backend that waits for a lock does not look whether its client is there.
    await this.#control.client.query(
      'select pg_terminate_backend(pid) from unnest(array[$1::int]) pid where pg_backend_pid() = any (pg_blocking_pids(pid))',
      [session.pid],
    )
    for (let pauseMs = 1; session.pid > 0; pauseMs = Math.min(pauseMs * 2, 50)) {
      const { rows } = await this.#control.client.query('select from pg_stat_activity where pid = $1', [
        session.pid,
      ])
      if (rows.length === 0) break
      await sleep(pauseMs)
    }
    this.cast.actorOf(session)?.sessions.delete(session)
    session.onGone()
  }
}

function addressOf({ client }: Control): string | undefined {
  return (client.connection.stream as Socket).remoteAddress
}

function connectListeners({ pool }: StageOptions): ((client: PoolClient) => void)[] {
  return (pool?.listeners('connect') ?? []) as ((client: PoolClient) => void)[]
}
