import pg, { type PoolClient, type PoolConfig } from 'pg'
import { queuedQueries } from '../../postgres/pg-client-state.js'
import { markUnderTest } from '../../postgres/pools-under-test.js'
import { type Actor, bindToActor, isOfEarlierRun, NEVER } from './actor.js'
import { GatedSocket } from './gated-socket.js'
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
  /** Told of each new connection. */
  readonly listeners: readonly ((client: PoolClient) => void)[]
}

/** What listeners to `connect` have asked of a new client is its owner's, and what comes from now on is the actor's. */
function handOver(client: PoolClient): void {
  // What is not queued was sent, and has been counted.
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
 * The pool that an actor's code is given: a real `pg.Pool`, so that libraries take it for one. Its connections are gated,
 * and waiting for a free one is something that the explorer sees.
 */
export class ActorPool extends pg.Pool {
  /** The server as this actor reaches it by other drivers and from other processes. */
  readonly url: string
  readonly #options: ActorPoolOptions
  readonly #out = new Set<PoolClient>()
  readonly #clients = new Set<PoolClient>()
  /** Those that it has by nature. */
  readonly #listeners: ReadonlyMap<string | symbol, readonly unknown[]>
  /** Clients are handed out in the order in which they were asked for, however long connecting takes. */
  #lastConnecting: Promise<unknown> | undefined

  constructor(options: ActorPoolOptions) {
    const { config, actor, permits } = options
    super({
      ...config,
      Client: class extends pg.Client {
        // biome-ignore lint/suspicious/noExplicitAny: all of pg's overloads at once
        override query(...parameters: any[]): any {
          if (isOfEarlierRun()) return NEVER
          actor.asked.statement = new Error()
          // @ts-expect-error: the overloads are pg's own
          return super.query(...parameters.map(bindToActor))
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
    markUnderTest(this)
    this.on('error', () => {}) // a connection that was cut while idle
    // And while it was out: whoever waits for an answer hears of it, and nobody else must.
    this.on('connect', (client) => {
      client.on('error', () => {})
      this.#clients.add(client)
      socketOf(client)?.takeOver()
    })
    this.on('remove', (client) => void this.#clients.delete(client))
    for (const listener of options.listeners) this.on('connect', listener)
    this.#listeners = new Map(this.eventNames().map((name) => [name, this.listeners(name)]))
  }

  override connect(): Promise<PoolClient>
  override connect(callback: Checkout): void
  override connect(callback?: Checkout): Promise<PoolClient> | undefined {
    if (isOfEarlierRun()) return NEVER
    this.#options.actor.asked.connection = new Error()
    const client = this.#take()
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

  /** Does not wait for clients that are out. */
  close(): void {
    this.reclaim()
    void super.end().catch(() => {})
  }

  /** Takes back what nobody gave back, and what was left on the pool itself; says how many clients that were. */
  reclaim(): number {
    this.#forgetListeners()
    this.#options.permits.giveUp()
    this.#lastConnecting = undefined
    const kept = this.#out.size
    for (const client of [...this.#out]) {
      client.release(true)
      client.release = () => {} // whoever had it may still come
    }
    return kept
  }

  /** Whoever added more belongs to a run that is over. */
  #forgetListeners(): void {
    for (const name of this.eventNames())
      for (const listener of this.listeners(name))
        if (!this.#listeners.get(name)?.includes(listener)) this.off(name, listener as () => void)
    for (const client of this.#clients)
      for (const name of ['notification', 'notice']) client.removeAllListeners(name)
  }

  async #take(): Promise<PoolClient> {
    const { actor, permits, onChange } = this.#options
    const wait = permits.take()
    if (wait) {
      const waiting = { what: `a connection of its pool (all ${permits.max} in use)` }
      actor.poolWaits.add(waiting)
      onChange()
      await wait
      actor.poolWaits.delete(waiting)
    }
    actor.connecting++
    const mine = this.#inTurn(super.connect(), this.#lastConnecting)
    this.#lastConnecting = mine.catch(() => {})
    try {
      return await mine
    } catch (error) {
      permits.give()
      throw error
    } finally {
      actor.connecting--
      onChange()
    }
  }

  /** After all who asked before, and not only after the last of them. */
  async #inTurn(connecting: Promise<PoolClient>, before: Promise<unknown> | undefined): Promise<PoolClient> {
    await Promise.all([before, connecting])
    return this.#track(await connecting)
  }

  #track(client: PoolClient): PoolClient {
    this.#out.add(client)
    handOver(client)
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
