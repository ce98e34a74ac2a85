import type pg from 'pg'
import { fullJitterMs } from './backoff.js'
import { endClient, newClient, unrefClient } from './client.js'
import { quoteIdentifier } from './identifier.js'

export interface ListenerEvents {
  /** A payload came in, or undefined when some may have been missed. */
  onNotify(payload: string | undefined): void
  onConnected(): void
  onLost(error: unknown, retryInMs: number): void
}

const PING_MS = 30_000
const PING_TIMEOUT_MS = 10_000

/**
 * One connection that listens, made again with backoff whenever it is lost. Each process has at most one for each
 * URL, however many instances of Dibs it opens.
 */
class Listener {
  readonly #pool: pg.Pool
  readonly #channels = new Map<string, Set<ListenerEvents>>()
  /** The connection that is being made or stands; what any other still reports is late. */
  #current: pg.Client | undefined
  /** The same, once it stands. */
  #client: pg.Client | undefined
  #ping: NodeJS.Timeout | undefined
  #retry: NodeJS.Timeout | undefined
  #failures = 0

  constructor(pool: pg.Pool) {
    this.#pool = pool
    void this.#connect()
  }

  get isIdle(): boolean {
    return this.#channels.size === 0
  }

  add(channel: string, events: ListenerEvents): void {
    const others = this.#channels.get(channel)
    if (others) {
      others.add(events)
      if (this.#client) events.onConnected()
      return
    }
    this.#channels.set(channel, new Set([events]))
    const client = this.#client
    if (client) this.#listen(client, [channel]).catch((error) => this.#lose(client, error))
  }

  remove(channel: string, events: ListenerEvents): void {
    const others = this.#channels.get(channel)
    others?.delete(events)
    if (others?.size !== 0) return
    this.#channels.delete(channel)
    this.#client?.query(`unlisten ${quoteIdentifier(channel)}`).catch(() => {})
  }

  async close(): Promise<void> {
    clearTimeout(this.#retry)
    const client = this.#current
    this.#forget()
    if (client) await endClient(client)
  }

  async #connect(): Promise<void> {
    let client: pg.Client
    try {
      client = newClient(this.#pool, { query_timeout: PING_TIMEOUT_MS })
    } catch (error) {
      return this.#retryLater(error) // a certificate that is not there any more, say
    }
    // From both `error` and `end`: a server that stops politely ends the connection without an error.
    const lost = (error?: Error): void =>
      this.#lose(client, error ?? new Error('the server closed the connection'))
    client.on('error', lost)
    client.on('end', () => lost())
    client.on('notification', ({ channel, payload }) => this.#deliver(channel, payload))
    this.#current = client
    try {
      await client.connect()
      unrefClient(client)
      if (this.#current !== client) return
      this.#client = client
      await this.#listen(client, [...this.#channels.keys()])
      if (this.#current !== client) return
      this.#failures = 0
      this.#ping = setInterval(() => client.query('select 1').catch(lost), PING_MS).unref()
    } catch (error) {
      this.#lose(client, error)
    }
  }

  async #listen(client: pg.Client, channels: string[]): Promise<void> {
    if (channels.length === 0) return
    await client.query(channels.map((name) => `listen ${quoteIdentifier(name)}`).join('; '))
    for (const name of channels) {
      for (const events of this.#channels.get(name) ?? []) {
        events.onConnected()
        events.onNotify(undefined) // whatever was sent before is gone
      }
    }
  }

  #deliver(channel: string, payload: string | undefined): void {
    for (const events of this.#channels.get(channel) ?? []) events.onNotify(payload)
  }

  #lose(client: pg.Client, error: unknown): void {
    if (client !== this.#current) return
    this.#forget()
    void endClient(client)
    this.#retryLater(error)
  }

  #retryLater(error: unknown): void {
    const retryInMs = 50 + fullJitterMs(++this.#failures, 100, 10_000)
    this.#retry = setTimeout(() => void this.#connect(), retryInMs).unref()
    for (const set of this.#channels.values()) for (const events of set) events.onLost(error, retryInMs)
  }

  #forget(): void {
    clearInterval(this.#ping)
    this.#client = undefined
    this.#current = undefined
  }
}

const listeners = new Map<unknown, Listener>()

/** Pools of one URL share a connection; of others it is not known whether they lead to one place. */
const keyOf = (pool: pg.Pool): unknown =>
  pool.options.stream ? pool : (pool.options.connectionString ?? pool)

/** Listens on a channel over the process's one connection to where `pool` leads; returns what ends it. */
export function listenOn(pool: pg.Pool, channel: string, events: ListenerEvents): () => Promise<void> {
  const key = keyOf(pool)
  const listener = listeners.get(key) ?? new Listener(pool)
  listeners.set(key, listener)
  listener.add(channel, events)
  return async () => {
    listener.remove(channel, events)
    if (!listener.isIdle || listeners.get(key) !== listener) return
    listeners.delete(key)
    await listener.close()
  }
}
