import type { Pool } from 'pg'
import { Actor } from '../gate/actor.js'
import { ActorConnections, type ActorConnectionsOptions } from '../gate/actor-connections.js'
import type { ActorPool } from '../gate/actor-pool.js'
import type { GatedSession } from '../gate/gated-session.js'
import { Permits } from '../gate/permits.js'
import { redirectPool } from '../gate/redirect-pool.js'
import { CLEAN_SESSION } from './session-settings.js'

/** What all connections of the exploration have in common, and what each kind has of its own. */
export interface CastOptions {
  readonly names: readonly string[]
  /** The pool of the code under test. */
  readonly pool: Pool | undefined
  readonly common: Pick<ActorConnectionsOptions, 'config' | 'url' | 'onChange'>
  readonly actors: CastPart
  readonly setup: CastPart
  readonly invariant: CastPart
}

export type CastPart = Pick<ActorConnectionsOptions, 'planner' | 'observer' | 'settings' | 'prepare'>

/** Those who take part, with their connections: the actors, and whoever sets up and judges. */
export class Cast {
  readonly actors: readonly Actor[]
  /** Clients that actors never gave back. */
  keptClients = 0
  readonly #setup: ActorConnections
  readonly #invariant: ActorConnections
  readonly #connections: ReadonlyMap<Actor, ActorConnections>
  readonly #permits: Permits
  readonly #stopRedirecting: (() => void) | undefined

  private constructor(
    pool: Pool | undefined,
    [setup, invariant, ...actors]: [ActorConnections, ActorConnections, ...ActorConnections[]],
  ) {
    this.#setup = setup
    this.#invariant = invariant
    this.actors = actors.map(({ actor }) => actor)
    this.#connections = new Map(actors.map((connections) => [connections.actor, connections]))
    this.#permits = new Permits(setup.pool.options.max)
    this.#stopRedirecting = pool && redirectPool(pool, (actor) => this.#inPlaceOf(pool, actor))
  }

  static async open({ names, pool, common, actors, setup, invariant }: CastOptions): Promise<Cast> {
    const open = (name: string, part: CastPart): Promise<ActorConnections> =>
      ActorConnections.open(new Actor(name), { ...common, ...part })
    const all = await Promise.all([
      open('setup', setup),
      open('invariant', invariant),
      ...names.map((name) => open(name, actors)),
    ])
    try {
      // Actors that have a pool of their own will not need ours.
      await Promise.all((pool ? all.slice(0, 2) : all).map((connections) => connections.warmUp()))
    } catch (error) {
      for (const connections of all) await connections.close()
      throw error
    }
    return new Cast(pool, all as [ActorConnections, ActorConnections, ...ActorConnections[]])
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

  /** Who a backend is, for the reader. */
  nameOf(pid: number): string {
    for (const actor of this.actors)
      for (const session of actor.sessions) if (session.pid === pid) return actor.labelOf(session)
    return `process ${pid}`
  }

  /** Actors that have left a transaction open. */
  get withOpenTransaction(): readonly string[] {
    const isOpen = ({ status, state }: GatedSession): boolean => status !== 'I' && state !== 'closed'
    return this.actors.filter(({ sessions }) => [...sessions].some(isOpen)).map(({ name }) => name)
  }

  /** After a schedule: takes away what the actors left, clients that they kept, transactions, session state. */
  async clean(): Promise<void> {
    for (const connections of this.#connections.values()) this.keptClients += connections.reclaim()
    this.#permits.clear()
    await Promise.all(this.actors.map(cleanSessions))
  }

  /** Before a schedule. */
  begin(): void {
    for (const actor of this.actors) actor.begin()
  }

  /** Of the actors and of the one who judges: their locks must go before the tables can be put back. */
  async closeActors(): Promise<void> {
    this.#stopRedirecting?.()
    for (const connections of [...this.#connections.values(), this.#invariant]) await connections.close()
  }

  #inPlaceOf(pool: Pool, actor: Actor): ActorPool | undefined {
    if (actor === this.#setup.actor) return this.#setup.pool
    if (actor === this.#invariant.actor) return this.#invariant.pool
    return this.#connections.get(actor)?.inPlaceOf(pool, this.#permits)
  }
}

async function cleanSessions({ sessions }: Actor): Promise<void> {
  const isWhole = ({ state, status }: GatedSession): boolean => state === 'idle' && status === 'I'
  for (const session of sessions) {
    session.begin()
    if (session.state === 'closed') sessions.delete(session)
    else if (!isWhole(session)) session.destroy()
  }
  await Promise.all([...sessions].filter(isWhole).map((session) => session.tell(CLEAN_SESSION)))
}
