import type { Pool, PoolClient, PoolConfig } from 'pg'
import { PgProxy } from '../proxy/pg-proxy.js'
import type { WirePorts } from '../wire/wire.js'
import type { Actor } from './actor.js'
import { ActorPool } from './actor-pool.js'
import { GatedSession, type GatedSessionOptions, type SessionObserver } from './gated-session.js'
import { GatedSocket } from './gated-socket.js'
import { Permits } from './permits.js'
import type { Planner } from './plan.js'

export interface ActorConnectionsOptions {
  /** Where the server is and how to log in, for `pg`. */
  readonly config: PoolConfig
  /** The same as a URL. */
  readonly url: string
  readonly planner: Planner
  readonly observer: SessionObserver
  readonly settings: Readonly<Record<string, string>>
  readonly prepare?: ((session: GatedSession) => Promise<void>) | undefined
  readonly onChange: () => void
  /** Of the pool under test: what its owner does to each new connection (search_path, types) belongs to it. */
  readonly listeners: readonly ((client: PoolClient) => void)[]
}

/** pg-pool's own default. */
const DEFAULT_MAX = 10

/**
 * All of one actor's ways to the server, and a gate in each: pools of `pg`, whose sockets are gated within this process,
 * and a port of its own for whatever else speaks the protocol.
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
      // A client elsewhere notices in any case.
      connections.#gate(ports, {
        destroy: () => end.destroy(),
        abandon: () => end.destroy(),
        isRemote: true,
      }),
    )
    actor.port = Number(new URL(connections.#proxy.url).port)
    return connections
  }

  /** The pool that its function is given. */
  get pool(): ActorPool {
    this.#pool ??= this.#newPool(new Permits(this.#options.config.max ?? DEFAULT_MAX))
    return this.#pool
  }

  /** Connects, so that the first schedule need not. */
  async warmUp(): Promise<void> {
    const client = await this.pool.connect()
    client.release()
    // Until then it could not be told from one that somebody waits for.
    await Promise.all([...this.actor.sessions].map((session) => session.isPrepared))
  }

  /** What it gets when it asks the pool of its process, which it shares with the other actors. */
  inPlaceOf(pool: Pool, permits: Permits): ActorPool {
    const own = this.#redirected.get(pool) ?? this.#newPool(permits)
    this.#redirected.set(pool, own)
    return own
  }

  /** Takes back clients that nobody gave back; says how many that were. */
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

  #newPool(permits: Permits): ActorPool {
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
    // The first to be handed out is the first by name: which one then asks first may be a matter of chance.
    const onHandOver = (one: GatedSession): void => void this.actor.labelOf(one)
    const session = new GatedSession({ ports, planner, settings, prepare, observer, onHandOver, ...ends })
    this.actor.sessions.add(session)
    return session
  }
}
