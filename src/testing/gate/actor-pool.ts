import { AsyncResource } from 'node:async_hooks'
import pg, { type PoolClient, type PoolConfig } from 'pg'
import type { Actor } from './actor.js'
import type { Permits } from './permits.js'

export interface ActorPoolOptions {
  /** What connects to the server, with the gate as its `stream`. */
  readonly config: PoolConfig
  readonly actor: Actor
  /** How many connections there are, perhaps for several pools together. */
  readonly permits: Permits
  /** The server as this actor reaches it by other drivers and from other processes. */
  readonly url: string
  readonly onChange: () => void
}

/** A callback belongs to whoever gave it, also when the socket of somebody else calls it. */
const bindCallback = (parameter: unknown): unknown =>
  typeof parameter === 'function' ? AsyncResource.bind(parameter as () => void) : parameter

type Checkout = (
  error: Error | undefined,
  client: PoolClient | undefined,
  release: (e?: unknown) => void,
) => void

/**
 * The pool that an actor's code is given: a real `pg.Pool`, so that libraries take it for one. Its connections are gated,
 * and waiting for a free one is something that the explorer sees.
 */
export class ActorPool extends pg.Pool {
  /** The server as this actor reaches it by other drivers and from other processes. */
  readonly url: string
  readonly #options: ActorPoolOptions
  readonly #out = new Set<PoolClient>()

  constructor(options: ActorPoolOptions) {
    const { config, actor, permits } = options
    super({
      ...config,
      Client: class extends pg.Client {
        // biome-ignore lint/suspicious/noExplicitAny: all of pg's overloads at once
        override query(...parameters: any[]): any {
          actor.asked.statement = new Error()
          // @ts-expect-error: the overloads are pg's own
          return super.query(...parameters.map(bindCallback))
        }
      },
      max: permits.max,
      // Time must not decide anything here.
      idleTimeoutMillis: 0,
      connectionTimeoutMillis: 0,
      maxLifetimeSeconds: 0,
    } as PoolConfig)
    this.#options = options
    this.url = options.url
    this.on('error', () => {}) // a connection that was cut while idle
  }

  override connect(): Promise<PoolClient>
  override connect(callback: Checkout): void
  override connect(callback?: Checkout): Promise<PoolClient> | undefined {
    this.#options.actor.asked.connection = new Error()
    const client = this.#take()
    if (!callback) return client
    void client.then(
      (taken) => callback(undefined, taken, (error) => taken.release(error as Error)),
      (error: Error) => callback(error, undefined, () => {}),
    )
    return undefined
  }

  /** Takes back what nobody gave back; says how many that were. */
  reclaim(): number {
    const kept = this.#out.size
    for (const client of [...this.#out]) {
      client.release(true)
      client.release = () => {} // whoever had it may still come
    }
    return kept
  }

  async #take(): Promise<PoolClient> {
    const { actor, permits, onChange } = this.#options
    const wait = permits.take()
    if (wait) {
      const what = `a connection of its pool (all ${permits.max} in use)`
      actor.poolWaits.add(what)
      onChange()
      await wait
      actor.poolWaits.delete(what)
    }
    actor.connecting++
    try {
      return this.#track(await super.connect())
    } catch (error) {
      permits.give()
      throw error
    } finally {
      actor.connecting--
      onChange()
    }
  }

  #track(client: PoolClient): PoolClient {
    this.#out.add(client)
    const release = client.release
    client.release = (error) => {
      client.release = release
      release.call(client, error)
      this.#out.delete(client)
      this.#options.permits.give()
    }
    return client
  }
}
