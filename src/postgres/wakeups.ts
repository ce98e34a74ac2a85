import type { Connections } from './connections.js'
import { emit } from './events.js'
import { listenOn } from './listener.js'
import { queryText } from './session.js'
import { nameStatement, statement } from './statement.js'
import type { BoundStatement } from './together.js'
import { withTimeout } from './with-timeout.js'

/** A NOTIFY payload must stay under 8,000 bytes; beyond this many bytes everyone is woken instead. */
const PAYLOAD_BYTES = 7_000
/** More topics than this are not even collected. */
const MAX_TOPICS = 1_000
const EVERYONE = '*'
/** How long a notification may take, so that a silent network does not hold up the next one, or `close`. */
const NOTIFY_MS = 5_000
/** How long `close` waits for the last notification. */
const CLOSE_MS = 1_000

/** A hint that a crash takes away is none that anybody depends on: it does not wait for the disk. */
const NOTIFY = nameStatement(
  statement(
    `select pg_catalog.set_config('synchronous_commit', 'off', true)::text, pg_catalog.pg_notify($1::text, $2::text)::text`,
  ),
)

const instances = new WeakMap<Connections, Wakeups>()

/** Those of an instance, for parts of ours that have only its database. */
export const wakeupsOf = (connections: Connections): Wakeups | undefined => instances.get(connections)

/**
 * Hints that something may be worth a look. A hint may be lost, doubled or late; whoever waits also polls. So
 * nothing depends on them but latency.
 *
 * They are sent after commit and apart from the work: NOTIFY inside a transaction makes every such commit in the
 * database queue for one lock. At most one is on its way at a time, and what comes up meanwhile shares the next; beside those
 * that go behind a piece of work in its message (`notifying`).
 */
export class Wakeups {
  readonly #connections: Connections
  readonly #channel: string
  readonly #listen: boolean
  readonly #subscribers = new Map<string, Set<() => void>>()
  readonly #outbox = new Set<string>()
  #sending: Promise<void> | undefined
  #stopListening: (() => Promise<void>) | undefined
  readonly #closing = new AbortController()

  constructor(connections: Connections, { listen }: { readonly listen: boolean }) {
    this.#connections = connections
    this.#channel = `dibs_${connections.schema}`
    this.#listen = listen
    instances.set(connections, this)
  }

  /** Wakes who waits on these topics elsewhere, if it is sent. */
  notifying(topics: ReadonlySet<string>): BoundStatement {
    return { statement: NOTIFY, values: [this.#channel, toPayload(topics)] }
  }

  /** Wakes who waits on these topics here. */
  wakeHere(topics: Iterable<string>): void {
    for (const topic of topics) this.#deliver(topic)
  }

  /** Where hints are sent, for those who send one themselves. */
  get channel(): string {
    return this.#channel
  }

  /** Calls `onWake` whenever a hint on `topic` arrives, from this process or, while listening, from another. */
  subscribe(topic: string, onWake: () => void): () => void {
    const others = this.#subscribers.get(topic) ?? new Set()
    this.#subscribers.set(topic, others.add(onWake))
    if (this.#listen && !this.#closing.signal.aborted) this.#stopListening ??= this.#startListening()
    return () => {
      others.delete(onWake)
      if (others.size === 0 && this.#subscribers.get(topic) === others) this.#subscribers.delete(topic)
    }
  }

  /** Resolves true at the next hint on `topic`; false after `timeoutMs`, when `signal` fires, or at `close`. */
  wait(topic: string, timeoutMs: number, signal?: AbortSignal): Promise<boolean> {
    const ends = signal ? [signal, this.#closing.signal] : [this.#closing.signal]
    if (ends.some(({ aborted }) => aborted)) return Promise.resolve(false)
    return new Promise((resolve) => {
      const finish = (woken: boolean): void => {
        clearTimeout(timer)
        unsubscribe()
        for (const end of ends) end.removeEventListener('abort', onEnd)
        resolve(woken)
      }
      const onEnd = (): void => finish(false)
      // A timer beyond 2^31 - 1 ms would fire at once.
      const timer = setTimeout(onEnd, Math.min(timeoutMs, 2 ** 31 - 1))
      const unsubscribe = this.subscribe(topic, () => finish(true))
      for (const end of ends) end.addEventListener('abort', onEnd)
    })
  }

  /** Wakes who waits on `topic`, here and elsewhere. Returns at once and never fails. */
  hint(topic: string): void {
    if (this.#closing.signal.aborted) return
    this.#deliver(topic)
    if (this.#outbox.size < MAX_TOPICS) this.#outbox.add(topic)
    else this.#outbox.add(EVERYONE)
    this.#sending ??= this.#flush()
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await Promise.all([
      this.#sending && withTimeout(this.#sending, CLOSE_MS, () => {}),
      this.#stopListening?.(),
    ])
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
        emit('dibs:wakeup.failed', { ...this.#connections.origin, error })
      }
    }
    // In the same turn as the last look at the outbox, or a hint in between would stay there.
    this.#sending = undefined
  }

  async #notify(payload: string): Promise<void> {
    await this.#connections.use(
      ({ client }) => queryText(client, NOTIFY.text, [this.#channel, payload]),
      NOTIFY_MS,
    )
  }

  #startListening(): () => Promise<void> {
    const { origin, pool } = this.#connections
    return listenOn(pool, this.#channel, {
      onNotify: (payload) => this.#receive(payload),
      onConnected: () => emit('dibs:listener.connected', origin),
      onLost: (error, retryInMs) => emit('dibs:listener.lost', { ...origin, retryInMs, error }),
    })
  }

  #receive(payload: string | undefined): void {
    const topics =
      payload === undefined || payload === EVERYONE ? this.#subscribers.keys() : fromPayload(payload)
    this.wakeHere([...topics])
  }

  #deliver(topic: string): void {
    for (const onWake of [...(this.#subscribers.get(topic) ?? [])]) {
      try {
        onWake()
      } catch (error) {
        emit('dibs:subscriber.failed', { ...this.#connections.origin, error })
      }
    }
  }
}

/** What is sent to wake who waits on these. */
export function toPayload(topics: ReadonlySet<string>): string {
  const payload = JSON.stringify([...topics])
  return topics.has(EVERYONE) || Buffer.byteLength(payload) > PAYLOAD_BYTES ? EVERYONE : payload
}

function fromPayload(payload: string): string[] {
  try {
    const topics: unknown = JSON.parse(payload)
    return Array.isArray(topics) ? topics.filter((topic) => typeof topic === 'string') : []
  } catch {
    return [] // not one of ours
  }
}
