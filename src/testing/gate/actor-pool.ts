import pg, { type PoolClient, type PoolConfig } from 'pg'
import { queuedQueries } from '../../postgres/pg-client-state.js'
import { markUnderTest } from '../../postgres/pools-under-test.js'
import { type Actor, bindToActor, NEVER, runsInFinishedRun } from './actor.js'
import type { ConnectionPermits } from './connection-permits.js'
import { GatedSocket } from './gated-socket.js'

export interface ActorPoolOptions {
  /** The connection options for `pg`, with the gate as their `stream`. */
  readonly config: PoolConfig
  readonly actor: Actor
  /** Limits the number of connections. Several pools may share it. */
  readonly permits: ConnectionPermits
  /** The server's URL for the actor's other drivers and processes. */
  readonly url: string
  readonly onChange: () => void
  /** Called for each new connection. */
  readonly listeners: readonly ((client: PoolClient) => void)[]
}

/** Ends the requests of the pool's owner, which its `connect` listeners have made. Further requests are the actor's. */
function handOver(client: PoolClient): void {
  // Requests that the client has sent are counted. Those in its queue are still to come.
  socketOf(client)?.handOver(queuedQueries(client))
}

function socketOf(client: PoolClient): GatedSocket | undefined {
  const { stream } = client.connection as unknown as { stream: unknown }
  return stream instanceof GatedSocket ? stream : undefined
}

type Checkout = (
  error: Error | undefined,
  client: PoolClient | undefined,
  release: (e?: unknown) => void,
) => void

/**
 * The pool of an actor. Libraries accept it, because it is a real `pg.Pool`. Its connections are gated, and the explorer
 * sees when the actor waits for a free one.
 */
export class ActorPool extends pg.Pool {
  /** The server's URL for the actor's other drivers and processes. */
  readonly url: string
  readonly #options: ActorPoolOptions
  readonly #checkedOut = new Set<PoolClient>()
  readonly #clients = new Set<PoolClient>()
  /** The listeners of the pool itself. All others belong to a run. */
  readonly #ownListeners: ReadonlyMap<string | symbol, readonly unknown[]>
  /** The last checkout. Clients are handed out in the order of the calls, however long each connection takes. */
  #lastCheckout: Promise<unknown> | undefined

  constructor(options: ActorPoolOptions) {
    const { config, actor, permits } = options
    super({
      ...config,
      Client: class extends pg.Client {
        // biome-ignore lint/suspicious/noExplicitAny: all of pg's overloads at once
        override query(...parameters: any[]): any {
          if (runsInFinishedRun()) return NEVER
          actor.lastCalls.statement = new Error()
          // @ts-expect-error: the overloads are pg's own
          return super.query(...parameters.map(bindToActor))
        }
      },
      max: permits.max,
      // No timeout may change the order of events.
      idleTimeoutMillis: 0,
      connectionTimeoutMillis: 0,
      maxLifetimeSeconds: 0,
    } as PoolConfig)
    this.#options = options
    this.url = options.url
    markUnderTest(this)
    this.on('error', () => {}) // an idle connection was cut
    // A connection that was cut while checked out: the pending query rejects, and an 'error' event would end the process.
    this.on('connect', (client) => {
      client.on('error', () => {})
      this.#clients.add(client)
      socketOf(client)?.takeOver()
    })
    this.on('remove', (client) => void this.#clients.delete(client))
    for (const listener of options.listeners) this.on('connect', listener)
    this.#ownListeners = new Map(this.eventNames().map((name) => [name, this.listeners(name)]))
  }

  override connect(): Promise<PoolClient>
  override connect(callback: Checkout): void
  override connect(callback?: Checkout): Promise<PoolClient> | undefined {
    if (runsInFinishedRun()) return NEVER
    this.#options.actor.lastCalls.connection = new Error()
    const client = this.#checkOut()
    if (!callback) return client
    void client.then(
      (taken) => callback(undefined, taken, (error) => taken.release(error as Error)),
      (error: Error) => callback(error, undefined, () => {}),
    )
    return undefined
  }

  /** Does nothing: the explorer needs the pool for the next schedule, and ends it with `close`. */
  override end(): Promise<void>
  override end(callback: () => void): void
  override end(callback?: () => void): Promise<void> | undefined {
    if (!callback) return Promise.resolve()
    process.nextTick(callback)
    return undefined
  }

  /** Ends the pool without waiting for checked-out clients. */
  close(): void {
    this.reclaim()
    void super.end().catch(() => {})
  }

  /** Takes back clients that were not released, and drops waiters and listeners. Returns the number of these clients. */
  reclaim(): number {
    this.#dropForeignListeners()
    this.#options.permits.dropWaiters()
    this.#lastCheckout = undefined
    const kept = this.#checkedOut.size
    for (const client of [...this.#checkedOut]) {
      client.release(true)
      client.release = () => {} // code of the finished run may still call it
    }
    return kept
  }

  /** Removes the listeners that a finished run has added. */
  #dropForeignListeners(): void {
    for (const name of this.eventNames())
      for (const listener of this.listeners(name))
        if (!this.#ownListeners.get(name)?.includes(listener)) this.off(name, listener as () => void)
    for (const client of this.#clients)
      for (const name of ['notification', 'notice']) client.removeAllListeners(name)
  }

  async #checkOut(): Promise<PoolClient> {
    const { actor, permits, onChange } = this.#options
    const wait = permits.acquire()
    if (wait) {
      const waiting = { what: `a connection of its pool (all ${permits.max} in use)` }
      actor.poolWaits.add(waiting)
      onChange()
      await wait
      actor.poolWaits.delete(waiting)
    }
    actor.connecting++
    const client = this.#afterEarlier(super.connect(), this.#lastCheckout)
    this.#lastCheckout = client.catch(() => {})
    try {
      return await client
    } catch (error) {
      permits.release()
      throw error
    } finally {
      actor.connecting--
      onChange()
    }
  }

  /** Hands the client out after all earlier checkouts: each of them waits for the one before it. */
  async #afterEarlier(
    connecting: Promise<PoolClient>,
    earlier: Promise<unknown> | undefined,
  ): Promise<PoolClient> {
    await Promise.all([earlier, connecting])
    return this.#track(await connecting)
  }

  #track(client: PoolClient): PoolClient {
    this.#checkedOut.add(client)
    handOver(client)
    const release = client.release
    client.release = (error) => {
      client.release = release
      release.call(client, error)
      this.#checkedOut.delete(client)
      this.#options.permits.release()
    }
    return client
  }
}
