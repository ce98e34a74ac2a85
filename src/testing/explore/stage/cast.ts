import type { Pool } from 'pg'
import { sleep } from '../../../postgres/sleep.js'
import { Actor } from '../../gate/actor.js'
import { ActorConnections, type ActorConnectionsOptions } from '../../gate/actor-connections.js'
import type { ActorPool } from '../../gate/actor-pool.js'
import type { GatedSession } from '../../gate/gated-session.js'
import { abandonSocket } from '../../gate/gated-socket.js'
import { Permits } from '../../gate/permits.js'
import { redirectPool } from '../../gate/redirect-pool.js'

/** How long to wait for backends to end. */
const GONE_MS = 2_000

/** What all connections of the exploration have in common, and what each kind has of its own. */
export interface CastOptions {
  readonly names: readonly string[]
  /** The pool of the code under test. */
  readonly pool: Pool | undefined
  /** Its connections are for all of them together; else they stand for processes of their own. */
  readonly isShared: boolean
  /** Somebody who is no actor uses it meanwhile. */
  readonly onStranger: (parameters: readonly unknown[]) => void
  readonly common: Pick<ActorConnectionsOptions, 'config' | 'url' | 'listeners' | 'onChange'>
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
  readonly #isShared: boolean
  readonly #stopRedirecting: (() => void) | undefined

  private constructor(
    { pool, isShared, onStranger }: Pick<CastOptions, 'pool' | 'isShared' | 'onStranger'>,
    [setup, invariant, ...actors]: [ActorConnections, ActorConnections, ...ActorConnections[]],
  ) {
    this.#setup = setup
    this.#invariant = invariant
    this.actors = actors.map(({ actor }) => actor)
    this.#connections = new Map(actors.map((connections) => [connections.actor, connections]))
    this.#isShared = isShared
    this.#permits = new Permits(setup.pool.options.max)
    this.#stopRedirecting = pool && redirectPool(pool, (actor) => this.#inPlaceOf(pool, actor), onStranger)
  }

  static async open(options: CastOptions): Promise<Cast> {
    const { names, pool, common, actors, setup, invariant } = options
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
    return new Cast(options, all as [ActorConnections, ActorConnections, ...ActorConnections[]])
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
    for (const [actor, connections] of this.#connections) {
      const hasEnded = actor.outcome !== undefined
      const kept = giveUp(actor, connections)
      if (hasEnded) this.keptClients += kept
    }
    const helpers = [this.#setup, this.#invariant]
    for (const helper of helpers) helper.reclaim()
    await Promise.all([...this.actors, ...helpers.map(({ actor }) => actor)].map(cleanSessions))
  }

  /**
   * As if the actor's process had been killed: its code stands still where it is, its transactions are rolled back and its
   * locks are free when this returns.
   */
  async kill(actor: Actor): Promise<void> {
    giveUp(actor, this.#connections.get(actor) as ActorConnections)
    for (const socket of actor.sockets) abandonSocket(socket)
    await cleanSessions(actor)
    // Idle ones were cleaned, and stay for the next run.
    await untilGone([actor], ({ state }) => state !== 'idle')
  }

  /** Before a schedule. */
  begin(): void {
    for (const actor of this.actors) actor.begin()
  }

  /** Of the actors and of the one who judges: their locks must go before the tables can be put back. */
  async closeActors(): Promise<void> {
    this.#stopRedirecting?.()
    for (const connections of [...this.#connections.values(), this.#invariant]) await connections.close()
    await untilGone(this.actors, () => true)
  }

  #inPlaceOf(pool: Pool, actor: Actor): ActorPool | undefined {
    if (actor === this.#setup.actor) return this.#setup.pool
    if (actor === this.#invariant.actor) return this.#invariant.pool
    const permits = this.#isShared ? this.#permits : new Permits(this.#permits.max)
    return this.#connections.get(actor)?.inPlaceOf(pool, permits)
  }
}

/** Whoever still waits belongs to a run that is over, and must not wake up in the next one. @returns clients it kept */
function giveUp(actor: Actor, connections: ActorConnections): number {
  const { sessions } = actor
  actor.begin()
  for (const session of sessions) {
    session.begin()
    if (session.state === 'closed') sessions.delete(session)
    else if (session.state !== 'idle') session.abandon()
  }
  return connections.reclaim()
}

async function untilGone(
  actors: readonly Actor[],
  isAwaited: (session: GatedSession) => boolean,
): Promise<void> {
  const isLeft = (): boolean => actors.some(({ sessions }) => [...sessions].some(isAwaited))
  for (let waitedMs = 0; isLeft() && waitedMs < GONE_MS; waitedMs++) await sleep(1)
}

async function cleanSessions({ sessions }: Actor): Promise<void> {
  const idle = [...sessions].filter(({ state }) => state === 'idle')
  await Promise.all(idle.map((session) => session.clean()))
}
