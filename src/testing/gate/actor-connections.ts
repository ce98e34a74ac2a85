import type { Pool, PoolClient, PoolConfig } from 'pg'
import { PgProxy } from '../proxy/pg-proxy.js'
import type { WirePorts } from '../wire/wire-connection.js'
import type { Actor } from './actor.js'
import { ActorPool } from './actor-pool.js'
import { ConnectionPermits } from './connection-permits.js'
import { GatedSession, type GatedSessionOptions, type SessionObserver } from './gated-session.js'
import { GatedSocket } from './gated-socket.js'
import type { Planner } from './plan.js'

export interface ActorConnectionsOptions {
  /** Where the server is and how to log in, for `pg`. */
  readonly config: PoolConfig
  /** The URL of the server. */
  readonly url: string
  readonly planner: Planner
  readonly observer: SessionObserver
  readonly settings: Readonly<Record<string, string>>
  readonly prepare?: ((session: GatedSession) => Promise<void>) | undefined
  readonly onChange: () => void
  /** The `connect` listeners of the pool under test, which set up each new connection (search_path, types). */
  readonly listeners: readonly ((client: PoolClient) => void)[]
}

/** The default of pg-pool. */
const DEFAULT_MAX = 10

/**
 * All connections of one actor to the server, each with a gate. Pools of `pg` have the gate in their sockets, within this
 * process. Other drivers and processes connect to a proxy, which has a port for this actor alone.
 */
export class ActorConnections {
  readonly actor: Actor
  readonly #options: ActorConnectionsOptions
  readonly #redirected = new Map<Pool, ActorPool>()
  #proxy: PgProxy | undefined
  #pool: ActorPool | undefined

  private constructor(actor: Actor, options: ActorConnectionsOptions) {
    this.actor = actor
    this.#options = options
  }

  static async open(actor: Actor, options: ActorConnectionsOptions): Promise<ActorConnections> {
    const connections = new ActorConnections(actor, options)
    connections.#proxy = await PgProxy.start({ url: options.url }, (ports, end) =>
      // The end cannot be hidden from a client behind the proxy, so `abandon` is `destroy`.
      connections.#gate(ports, {
        destroy: () => end.destroy(),
        abandon: () => end.destroy(),
        isRemote: true,
      }),
    )
    actor.port = Number(new URL(connections.#proxy.url).port)
    return connections
  }

  /** The pool that the actor's function gets as `db`. */
  get pool(): ActorPool {
    this.#pool ??= this.#newPool(new ConnectionPermits(this.#options.config.max ?? DEFAULT_MAX))
    return this.#pool
  }

  /** Opens a first connection, so that the first schedule finds one. */
  async warmUp(): Promise<void> {
    const client = await this.pool.connect()
    client.release()
    // An unprepared session would look like one that an actor waits for.
    await Promise.all([...this.actor.sessions].map((session) => session.isPrepared))
  }

  /** Returns the actor's own pool for a pool that all actors share. The pools of all actors share the permits. */
  inPlaceOf(pool: Pool, permits: ConnectionPermits): ActorPool {
    const actorPool = this.#redirected.get(pool) ?? this.#newPool(permits)
    this.#redirected.set(pool, actorPool)
    return actorPool
  }

  /** Takes back clients that the actor has not released. Returns their number. */
  reclaim(): number {
    return this.#pools().reduce((sum, pool) => sum + pool.reclaim(), 0)
  }

  async close(): Promise<void> {
    this.actor.begin()
    for (const session of this.actor.sessions) session.abandon()
    for (const pool of this.#pools()) pool.close()
    await this.#proxy?.close()
  }

  #pools(): ActorPool[] {
    return [...(this.#pool ? [this.#pool] : []), ...this.#redirected.values()]
  }

  #newPool(permits: ConnectionPermits): ActorPool {
    const { config, onChange } = this.#options
    const stream = (): GatedSocket =>
      new GatedSocket(this.actor, (ports, socket) =>
        this.#gate(ports, { destroy: () => socket.destroy(), abandon: () => socket.abandon() }),
      )
    return new ActorPool({
      config: { ...config, stream } as PoolConfig,
      actor: this.actor,
      permits,
      url: this.#proxy?.url ?? '',
      onChange,
      listeners: this.#options.listeners,
    })
  }

  #gate(ports: WirePorts, ends: Pick<GatedSessionOptions, 'destroy' | 'abandon' | 'isRemote'>): GatedSession {
    const { planner, observer, settings, prepare } = this.#options
    // Sessions are numbered as the pool hands them out. The order of their first requests may depend on chance.
    const onHandOver = (handedOut: GatedSession): void => void this.actor.labelOf(handedOut)
    const session = new GatedSession({ ports, planner, settings, prepare, observer, onHandOver, ...ends })
    this.actor.sessions.add(session)
    return session
  }
}
