import type { Pool, PoolConfig } from 'pg'
import type { Actor } from './actor.js'
import { ActorPool } from './actor-pool.js'
import { GatedSession, type SessionObserver } from './gated-session.js'
import { GatedSocket } from './gated-socket.js'
import { Permits } from './permits.js'
import type { Planner } from './plan.js'

export interface ActorConnectionsOptions {
  /** Where the server is and how to log in. */
  readonly config: PoolConfig
  readonly planner: Planner
  readonly observer: SessionObserver
  readonly settings: Readonly<Record<string, string>>
  readonly prepare?: ((session: GatedSession) => Promise<void>) | undefined
  readonly onChange: () => void
}

/** pg-pool's own default. */
const DEFAULT_MAX = 10

/** All of one actor's ways to the server; every one goes through the gate. */
export class ActorConnections {
  readonly actor: Actor
  /** The pool that its function is given. */
  readonly pool: ActorPool
  readonly #options: ActorConnectionsOptions
  readonly #redirected = new Map<Pool, ActorPool>()

  constructor(actor: Actor, options: ActorConnectionsOptions) {
    this.actor = actor
    this.#options = options
    this.pool = this.#newPool(new Permits(options.config.max ?? DEFAULT_MAX))
  }

  /** Connects, so that the first schedule need not. */
  async warmUp(): Promise<void> {
    const client = await this.pool.connect()
    client.release()
  }

  /** What it gets when it asks the pool of its process, which it shares with the other actors. */
  inPlaceOf(pool: Pool, permits: Permits): ActorPool {
    const own = this.#redirected.get(pool) ?? this.#newPool(permits)
    this.#redirected.set(pool, own)
    return own
  }

  /** Takes back clients that nobody gave back; says how many that were. */
  reclaim(): number {
    return [...this.#pools()].reduce((sum, pool) => sum + pool.reclaim(), 0)
  }

  async close(): Promise<void> {
    for (const session of this.actor.sessions) session.destroy()
    for (const pool of this.#pools()) {
      pool.reclaim()
      await pool.end().catch(() => {})
    }
  }

  *#pools(): Generator<ActorPool> {
    yield this.pool
    yield* this.#redirected.values()
  }

  #newPool(permits: Permits): ActorPool {
    const { config, onChange } = this.#options
    const stream = (): GatedSocket =>
      new GatedSocket((ports, socket) => this.#open(ports, () => socket.destroy()))
    return new ActorPool({
      config: { ...config, stream } as PoolConfig,
      actor: this.actor,
      permits,
      url: '',
      onChange,
    })
  }

  #open(ports: ConstructorParameters<typeof GatedSession>[0]['ports'], destroy: () => void): GatedSession {
    const { planner, observer, settings, prepare } = this.#options
    const session = new GatedSession({ ports, planner, settings, prepare, destroy, observer })
    this.actor.sessions.add(session)
    return session
  }
}
