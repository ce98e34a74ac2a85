import type { Connections } from './connections.js'
import { emit } from './events.js'
import { listenOn } from './listener.js'
import { queryText } from './pg-query.js'
import type { BoundStatement } from './pipeline.js'
import { nameStatement, statement } from './statement.js'
import { withTimeout } from './with-timeout.js'

/** A NOTIFY payload must stay under 8,000 bytes. A longer one wakes everyone instead. */
const PAYLOAD_BYTES = 7_000
/** With more topics than this, everyone is woken. */
const MAX_TOPICS = 1_000
const EVERYONE = '*'
/** How long a notification may take, so that a silent network does not hold up the next one, or `close`. */
const NOTIFY_MS = 5_000
/** How long `close` waits for the last notification. */
const CLOSE_MS = 1_000

/** Commits without waiting for the disk: a crash may lose a notification without harm. */
const NOTIFY = nameStatement(
  statement(
    `select pg_catalog.set_config('synchronous_commit', 'off', true)::text, pg_catalog.pg_notify($1::text, $2::text)::text`,
  ),
)

const instances = new WeakMap<Connections, Wakeups>()

/** The wake-ups of an instance, for parts of Dibs that have only its database. */
export const wakeupsOf = (connections: Connections): Wakeups | undefined => instances.get(connections)

/**
 * Notifications about possible new work. A notification may be lost, doubled or late, so waiting code also polls: only
 * latency depends on notifications.
 *
 * Notifications are sent after commit and apart from the work: NOTIFY inside a transaction makes all such commits in
 * the database queue for one lock. One `notify` statement is under way at a time, and later topics share the next. A
 * `notifyStatement` travels with other work instead.
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

  /** Returns a statement that wakes the subscribers of these topics in other processes. */
  notifyStatement(topics: ReadonlySet<string>): BoundStatement {
    return { statement: NOTIFY, values: [this.#channel, toPayload(topics)] }
  }

  /** Wakes the subscribers of these topics in this process. */
  wakeLocal(topics: Iterable<string>): void {
    for (const topic of topics) this.#deliver(topic)
  }

  /** The channel of NOTIFY, for parts that send notifications themselves. */
  get channel(): string {
    return this.#channel
  }

  /** Calls `onWake` for each notification of `topic`, from this process or, while listening, from another. Returns a function that stops it. */
  subscribe(topic: string, onWake: () => void): () => void {
    const others = this.#subscribers.get(topic) ?? new Set()
    this.#subscribers.set(topic, others.add(onWake))
    if (this.#listen && !this.#closing.signal.aborted) this.#stopListening ??= this.#startListening()
    return () => {
      others.delete(onWake)
      if (others.size === 0 && this.#subscribers.get(topic) === others) this.#subscribers.delete(topic)
    }
  }

  /** Wakes the subscribers of `topic` in all processes. Returns at once and never fails. */
  notify(topic: string): void {
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
    await new Promise((resolve) => setImmediate(resolve)) // all topics of this turn of the event loop share one statement
    while (this.#outbox.size > 0) {
      const payload = toPayload(this.#outbox)
      this.#outbox.clear()
      try {
        await this.#sendNotify(payload)
      } catch (error) {
        emit('dibs:wakeup.failed', { ...this.#connections.origin, error })
      }
    }
    // Runs in the same turn as the last check of the outbox. Otherwise a topic that is added in between would stay
    // there.
    this.#sending = undefined
  }

  async #sendNotify(payload: string): Promise<void> {
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
    this.wakeLocal([...topics])
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

/** The payload of NOTIFY that wakes the subscribers of these topics. */
export function toPayload(topics: ReadonlySet<string>): string {
  const payload = JSON.stringify([...topics])
  return topics.has(EVERYONE) || Buffer.byteLength(payload) > PAYLOAD_BYTES ? EVERYONE : payload
}

function fromPayload(payload: string): string[] {
  try {
    const topics: unknown = JSON.parse(payload)
    return Array.isArray(topics) ? topics.filter((topic) => typeof topic === 'string') : []
  } catch {
    return [] // the payload is not from Dibs
  }
}
