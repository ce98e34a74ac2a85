import { channel } from 'node:diagnostics_channel'

/** Common to all events: which instance tells it. */
export interface EventOrigin {
  readonly schema: string
  /** Tells instances of this process apart, also those on schemas of one name in two databases. */
  readonly instance: number
}

/**
 * What Dibs tells while it works, by the name of its channel. Metrics and logs listen; nothing here depends on
 * being heard.
 */
export interface DibsEvents {
  /** A transaction met a conflict and will run again. */
  'dibs:transaction.retried': EventOrigin & {
    readonly attempt: number
    readonly delayMs: number
    readonly error: unknown
  }
  /** A transaction met a conflict and will not run again. */
  'dibs:transaction.gave-up': EventOrigin & {
    readonly attempts: number
    readonly elapsedMs: number
    readonly error: unknown
  }
  /** A reply was lost after COMMIT, or a statement that commits by itself, was sent. */
  'dibs:commit.unknown': EventOrigin & { readonly error: unknown }
  /** A function given to `tx.afterCommit` threw; the transaction is committed all the same. */
  'dibs:after-commit.failed': EventOrigin & { readonly error: unknown }
  /** A connection was thrown away instead of going back to the pool. */
  'dibs:connection.discarded': EventOrigin & { readonly error: unknown }
  /** A migration was applied by this process. */
  'dibs:migration.applied': EventOrigin & {
    readonly version: number
    readonly migration: string
    readonly elapsedMs: number
  }
  /** A migration waits for its turn, or for a table, and will look again. */
  'dibs:migration.waiting': EventOrigin & { readonly subject: string; readonly waitedMs: number }
  /** The listening connection stands. */
  'dibs:listener.connected': EventOrigin
  /** The listening connection is lost and will be made again; until then waiting is by polling. */
  'dibs:listener.lost': EventOrigin & { readonly retryInMs: number; readonly error: unknown }
  /** A function that waits for wake-ups threw. */
  'dibs:subscriber.failed': EventOrigin & { readonly error: unknown }
  /** The embedded PostgreSQL is being started; `step` takes a while. */
  'dibs:embedded.starting': EventOrigin & {
    readonly step: 'copying' | 'initializing' | 'starting' | 'waiting'
    readonly folder: string
  }
  /** The keeper of the embedded PostgreSQL is lost, and no other could be had yet. */
  'dibs:embedded.lost': EventOrigin & { readonly retryInMs: number; readonly error: unknown }
  /** Somebody else was first: a `setIfAbsent` lost, or a version was not the one that was asked for. */
  'dibs:kv.conflict': EventOrigin & {
    readonly call: 'setIfAbsent' | 'compareAndSet' | 'delete'
    /** The key without what is different in each, for a metric. */
    readonly template: string
    /** Tells keys apart without showing them. */
    readonly keyHash: string
  }
  /** A wake-up hint could not be sent; those who wait find out by polling. */
  'dibs:hint.failed': EventOrigin & { readonly error: unknown }
}

let instances = 0

/** Names a new instance. */
export function newOrigin(schema: string): EventOrigin {
  return Object.freeze({ schema, instance: ++instances })
}

export type DibsEventName = keyof DibsEvents

/** Publishes an event; costs one check when nobody listens. */
export function emit<N extends DibsEventName>(name: N, payload: DibsEvents[N]): void {
  const target = channel(name)
  if (target.hasSubscribers) target.publish(payload)
}

/**
 * Listens to one kind of event in this process; returns what ends it.
 *
 * @example
 * const stop = onEvent('dibs:transaction.retried', ({ schema, attempt }) => retries.inc({ schema, attempt }))
 */
export function onEvent<N extends DibsEventName>(
  name: N,
  listener: (payload: DibsEvents[N]) => void,
): () => void {
  const target = channel(name)
  const receive = (message: unknown): void => listener(message as DibsEvents[N])
  target.subscribe(receive)
  return () => {
    target.unsubscribe(receive)
  }
}
