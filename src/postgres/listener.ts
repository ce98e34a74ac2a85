import type pg from 'pg'
import { endClient, newClient, unrefClient } from './client.js'
import { quoteIdentifier } from './identifier.js'
import { retry } from './retry.js'
import { sleep } from './sleep.js'
import { unlessAborted } from './with-timeout.js'

export interface ListenerEvents {
  /** `payload` is undefined if notifications may have been missed. */
  onNotify(payload: string | undefined): void
  onConnected(): void
  onLost(error: unknown, retryInMs: number): void
}

const PING_MS = 30_000
const PING_TIMEOUT_MS = 10_000

/**
 * One listening connection, which reconnects with backoff after a loss. A process has at most one for each URL, however
 * many instances of Dibs it opens.
 */
class Listener {
  readonly #pool: pg.Pool
  readonly #channels = new Map<string, Set<ListenerEvents>>()
  readonly #closing = new AbortController()
  readonly #running: Promise<void>
  /** The open connection. */
  #connection: { readonly client: pg.Client; readonly lost: AbortController } | undefined
  #wasListening = false

  constructor(pool: pg.Pool) {
    this.#pool = pool
    this.#running = this.#run()
  }

  get isIdle(): boolean {
    return this.#channels.size === 0
  }

  add(channel: string, events: ListenerEvents): void {
    const others = this.#channels.get(channel)
    if (others) {
      others.add(events)
      if (this.#connection) events.onConnected()
      return
    }
    this.#channels.set(channel, new Set([events]))
    const { client, lost } = this.#connection ?? {}
    if (client) this.#listen(client, [channel]).catch((error) => lost?.abort(error))
  }

  remove(channel: string, events: ListenerEvents): void {
    const others = this.#channels.get(channel)
    others?.delete(events)
    if (others?.size !== 0) return
    this.#channels.delete(channel)
    this.#connection?.client.query(`unlisten ${quoteIdentifier(channel)}`).catch(() => {})
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await this.#running
  }

  async #run(): Promise<void> {
    const { signal } = this.#closing
    await retry(() => this.#listenUntilLost(), {
      isRetryable: () => !signal.aborted,
      ...{ baseMs: 100, minMs: 50 },
      maxMs: 10_000, // guard: transaction.reconnect-backoff
      resetsDelay: () => this.#wasListening,
      signal,
      ref: false,
      onRetry: (error, _, delayMs) => {
        for (const set of this.#channels.values()) for (const events of set) events.onLost(error, delayMs)
      },
    }).catch(() => {}) // closed
  }

  /** Throws the reason why the connection could not be made or was lost. */
  async #listenUntilLost(): Promise<never> {
    this.#wasListening = false
    const client = newClient(this.#pool, { query_timeout: PING_TIMEOUT_MS })
    const lost = new AbortController()
    client.on('error', (error) => lost.abort(error))
    // A server that shuts down in order ends the connection without an error.
    client.on('end', () => lost.abort(new Error('the server closed the connection')))
    client.on('notification', ({ channel, payload }) => this.#deliver(channel, payload))
    const ended = AbortSignal.any([lost.signal, this.#closing.signal])
    try {
      await unlessAborted(client.connect(), ended)
      unrefClient(client)
      this.#connection = { client, lost }
      await unlessAborted(this.#listen(client, [...this.#channels.keys()]), ended)
      this.#wasListening = true
      for (;;) {
        await sleep(PING_MS, ended, { ref: false })
        await unlessAborted(client.query('select 1'), ended)
      }
    } catch (error) {
      throw lost.signal.reason ?? error // `sleep` throws an AbortError
    } finally {
      this.#connection = undefined
      const end = endClient(client)
      if (this.#closing.signal.aborted) await end
    }
  }

  async #listen(client: pg.Client, channels: string[]): Promise<void> {
    if (channels.length === 0) return
    await client.query(channels.map((name) => `listen ${quoteIdentifier(name)}`).join('; '))
    for (const name of channels) {
      for (const events of this.#channels.get(name) ?? []) {
        events.onConnected()
        // guard: transaction.reconnect-notify
        events.onNotify(undefined) // notifications that were sent before are lost
      }
    }
  }

  #deliver(channel: string, payload: string | undefined): void {
    for (const events of this.#channels.get(channel) ?? []) events.onNotify(payload)
  }
}

const listeners = new Map<unknown, Listener>()

/** Pools with one URL share a connection. Other pools may lead to different servers. */
const keyOf = (pool: pg.Pool): unknown =>
  pool.options.stream ? pool : (pool.options.connectionString ?? pool)

/** Listens on a channel over the one listening connection to the server of `pool`. Returns a function that stops it. */
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
