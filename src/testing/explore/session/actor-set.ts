import type { Pool } from 'pg'
import { sleep } from '../../../postgres/sleep.js'
import { Actor } from '../../gate/actor.js'
import { ActorConnections, type ActorConnectionsOptions } from '../../gate/actor-connections.js'
import type { ActorPool } from '../../gate/actor-pool.js'
import { ConnectionPermits } from '../../gate/connection-permits.js'
import type { GatedSession } from '../../gate/gated-session.js'
import { abandonSocket } from '../../gate/gated-socket.js'
import { redirectPool } from '../../gate/redirect-pool.js'

/** How long to wait for backends to end. */
const MAX_END_MS = 2_000

interface ActorSetOptions {
  readonly names: readonly string[]
  /** The pool of the code under test. */
  readonly pool: Pool | undefined
  /** True if all actors share the connections of the pool. False if each actor stands for a process with a pool of its own. */
  readonly isShared: boolean
  /** Called when code that belongs to no actor uses the pool. */
  readonly onForeignUse: (parameters: readonly unknown[]) => void
  readonly common: Pick<ActorConnectionsOptions, 'config' | 'url' | 'listeners' | 'onChange'>
  readonly actors: RoleOptions
  readonly setup: RoleOptions
  readonly invariant: RoleOptions
}

/** Options that differ between the connections of actors, of `setup` and of the invariant. */
type RoleOptions = Pick<ActorConnectionsOptions, 'planner' | 'observer' | 'settings' | 'prepare'>

/** Holds the actors with their connections, and the connections of `setup` and of the invariant. Cleans them between runs. */
export class ActorSet {
  readonly actors: readonly Actor[]
  /** The number of clients that actors never gave back to their pool. */
  keptClients = 0
  readonly #setup: ActorConnections
  readonly #invariant: ActorConnections
  readonly #connections: ReadonlyMap<Actor, ActorConnections>
  readonly #permits: ConnectionPermits
  readonly #isShared: boolean
  readonly #stopRedirecting: (() => void) | undefined

  private constructor(
    { pool, isShared, onForeignUse }: Pick<ActorSetOptions, 'pool' | 'isShared' | 'onForeignUse'>,
    [setup, invariant, ...actors]: [ActorConnections, ActorConnections, ...ActorConnections[]],
  ) {
    this.#setup = setup
    this.#invariant = invariant
    this.actors = actors.map(({ actor }) => actor)
    this.#connections = new Map(actors.map((connections) => [connections.actor, connections]))
    this.#isShared = isShared
    this.#permits = new ConnectionPermits(setup.pool.options.max)
    this.#stopRedirecting =
      pool && redirectPool(pool, (actor) => this.#poolInPlaceOf(pool, actor), onForeignUse)
  }

  static async open(options: ActorSetOptions): Promise<ActorSet> {
    const { names, pool, common, actors, setup, invariant } = options
    const open = (name: string, role: RoleOptions): Promise<ActorConnections> =>
      ActorConnections.open(new Actor(name), { ...common, ...role })
    const all = await Promise.all([
      open('setup', setup),
      open('invariant', invariant),
      ...names.map((name) => open(name, actors)),
    ])
    try {
      // Actors that use the pool of the code under test need no connections of the explorer.
      await Promise.all((pool ? all.slice(0, 2) : all).map((connections) => connections.warmUp()))
    } catch (error) {
      for (const connections of all) await connections.close()
      throw error
    }
    return new ActorSet(options, all as [ActorConnections, ActorConnections, ...ActorConnections[]])
  }

  get setup(): ActorConnections {
    return this.#setup
  }

  get invariant(): ActorConnections {
    return this.#invariant
  }

  poolOf(actor: Actor): ActorPool {
    return (this.#connections.get(actor) as ActorConnections).pool
  }

  actorOf(session: GatedSession): Actor | undefined {
    return this.actors.find(({ sessions }) => sessions.has(session))
  }

  /** The name of a backend for a printout: its unit, or `process 4711`. */
  nameOf(pid: number): string {
    for (const actor of this.actors)
      for (const session of actor.sessions) if (session.pid === pid) return actor.labelOf(session)
    return `process ${pid}`
  }

  /** The names of the actors that have left a transaction open. */
  get withOpenTransaction(): readonly string[] {
    const isOpen = ({ status, state }: GatedSession): boolean => status !== 'I' && state !== 'closed'
    return this.actors.filter(({ sessions }) => [...sessions].some(isOpen)).map(({ name }) => name)
  }

  /** Removes what a schedule left behind: clients that actors kept, open transactions, the state of sessions. */
  async clean(): Promise<void> {
    for (const [actor, connections] of this.#connections) {
      const hasEnded = actor.outcome !== undefined
      const kept = abandonRun(actor, connections)
      if (hasEnded) this.keptClients += kept
    }
    const helpers = [this.#setup, this.#invariant]
    for (const helper of helpers) helper.reclaim()
    await Promise.all([...this.actors, ...helpers.map(({ actor }) => actor)].map(cleanSessions))
  }

  /**
   * Simulates that the actor's process was killed: its code makes no more progress. When this resolves, its transactions are
   * rolled back and its locks are free.
   */
  async kill(actor: Actor): Promise<void> {
    abandonRun(actor, this.#connections.get(actor) as ActorConnections)
    for (const socket of actor.sockets) abandonSocket(socket)
    await cleanSessions(actor) // guard: crash.sessions-end
    // Idle sessions were cleaned and are kept for the next run.
    await awaitEnd([actor], ({ state }) => state !== 'idle')
  }

  /** Called before each schedule. */
  begin(): void {
    for (const actor of this.actors) actor.begin()
  }

  /** Closes the connections of the actors and of the invariant. Their locks must be free before the tables are restored. */
  async closeActors(): Promise<void> {
    this.#stopRedirecting?.()
    for (const connections of [...this.#connections.values(), this.#invariant]) await connections.close()
    await awaitEnd(this.actors, () => true)
  }

  /** The pool that an actor's calls of `pool` go to. */
  #poolInPlaceOf(pool: Pool, actor: Actor): ActorPool | undefined {
    if (actor === this.#setup.actor) return this.#setup.pool
    if (actor === this.#invariant.actor) return this.#invariant.pool
    const permits = this.#isShared ? this.#permits : new ConnectionPermits(this.#permits.max)
    return this.#connections.get(actor)?.inPlaceOf(pool, permits)
  }
}

/** Drops the requests that still wait, so that none runs in the next run. @returns the number of clients that the actor kept */
function abandonRun(actor: Actor, connections: ActorConnections): number {
  const { sessions } = actor
  actor.begin()
  for (const session of sessions) {
    session.begin()
    if (session.state === 'closed') sessions.delete(session)
    else if (session.state !== 'idle') session.abandon()
  }
  return connections.reclaim()
}

async function awaitEnd(actors: readonly Actor[], isOpen: (session: GatedSession) => boolean): Promise<void> {
  const hasOpen = (): boolean => actors.some(({ sessions }) => [...sessions].some(isOpen))
  for (let waitedMs = 0; hasOpen() && waitedMs < MAX_END_MS; waitedMs++) await sleep(1)
}

async function cleanSessions({ sessions }: Actor): Promise<void> {
  const idle = [...sessions].filter(({ state }) => state === 'idle')
  await Promise.all(idle.map((session) => session.clean()))
}
