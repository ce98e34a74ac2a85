import type { Connections } from './connections.js'
import { emit } from './events.js'
import { listenOn } from './listener.js'
import { queryText } from './session.js'

/** A NOTIFY payload must stay under 8,000 bytes; beyond this many bytes everyone is woken instead. */
const PAYLOAD_BYTES = 7_000
const EVERYONE = '*'

/**
 * Hints that something may be worth a look. A hint may be lost, doubled or late; whoever waits also polls. So
 * nothing depends on them but latency.
 *
 * They are sent after commit and apart from the work: NOTIFY inside a transaction makes every such commit in the
 * database queue for one lock. At most one is on its way at a time, and what comes up meanwhile shares the next.
 */
export class Wakeups {
  readonly #connections: Connections
  readonly #channel: string
  readonly #listen: boolean
  readonly #subscribers = new Map<string, Set<() => void>>()
  readonly #outbox = new Set<string>()
  #sending: Promise<void> | undefined
  #stopListening: (() => Promise<void>) | undefined
  #isClosed = false

  constructor(connections: Connections, { listen }: { readonly listen: boolean }) {
    this.#connections = connections
    this.#channel = `dibs_${connections.schema}`
    this.#listen = listen
  }

  /** Calls `onWake` whenever a hint on `topic` arrives, from this process or, while listening, from another. */
  subscribe(topic: string, onWake: () => void): () => void {
    const others = this.#subscribers.get(topic) ?? new Set()
    this.#subscribers.set(topic, others.add(onWake))
    if (this.#listen && !this.#isClosed) this.#stopListening ??= this.#startListening()
    return () => {
      others.delete(onWake)
      if (others.size === 0 && this.#subscribers.get(topic) === others) this.#subscribers.delete(topic)
    }
  }

  /** Resolves true at the next hint on `topic`, false after `timeoutMs` or when `signal` fires. */
  wait(topic: string, timeoutMs: number, signal?: AbortSignal): Promise<boolean> {
    return new Promise((resolve) => {
      const finish = (woken: boolean): void => {
        clearTimeout(timer)
        unsubscribe()
        signal?.removeEventListener('abort', onAbort)
        resolve(woken)
      }
      const onAbort = (): void => finish(false)
      const timer = setTimeout(() => finish(false), timeoutMs)
      const unsubscribe = this.subscribe(topic, () => finish(true))
      signal?.addEventListener('abort', onAbort, { once: true })
      if (signal?.aborted) finish(false)
    })
  }

  /** Wakes who waits on `topic`, here and elsewhere. Returns at once and never fails. */
  hint(topic: string): void {
    if (this.#isClosed) return
    this.#deliver(topic)
    this.#outbox.add(topic)
    this.#sending ??= this.#flush()
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await Promise.all([this.#sending, this.#stopListening?.()])
    this.#stopListening = undefined
  }

  async #flush(): Promise<void> {
    await new Promise((resolve) => setImmediate(resolve)) // what this turn of the loop hints goes out together
    while (this.#outbox.size > 0) {
      const payload = toPayload(this.#outbox)
      this.#outbox.clear()
      try {
        await this.#notify(payload)
      } catch (error) {
        emit('dibs:hint.failed', { schema: this.#connections.schema, error })
      }
    }
    // In the same turn as the last look at the outbox, or a hint in between would stay there.
    this.#sending = undefined
  }

  async #notify(payload: string): Promise<void> {
    const checkout = await this.#connections.take()
    try {
      await queryText(checkout.client, `select pg_catalog.pg_notify($1::text, $2::text)::text`, [
        this.#channel,
        payload,
      ])
    } finally {
      checkout.release()
    }
  }

  #startListening(): () => Promise<void> {
    const { schema, pool } = this.#connections
    return listenOn(pool.options, this.#channel, {
      onNotify: (payload) => this.#receive(payload),
      onConnected: () => emit('dibs:listener.connected', { schema }),
      onLost: (error, retryInMs) => emit('dibs:listener.lost', { schema, retryInMs, error }),
    })
  }

  #receive(payload: string | undefined): void {
    const topics =
      payload === undefined || payload === EVERYONE ? this.#subscribers.keys() : fromPayload(payload)
    for (const topic of [...topics]) this.#deliver(topic)
  }

  #deliver(topic: string): void {
    for (const onWake of [...(this.#subscribers.get(topic) ?? [])]) onWake()
  }
}

function toPayload(topics: ReadonlySet<string>): string {
  const payload = JSON.stringify([...topics])
  return Buffer.byteLength(payload) > PAYLOAD_BYTES ? EVERYONE : payload
}

function fromPayload(payload: string): string[] {
  try {
    const topics: unknown = JSON.parse(payload)
    return Array.isArray(topics) ? topics.filter((topic) => typeof topic === 'string') : []
  } catch {
    return [] // not one of ours
  }
}
