import type { ClientBase, Connection } from 'pg'

/** Outside a transaction, inside one, or inside one that has failed. */
type TransactionStatus = 'I' | 'T' | 'E'

interface TrackedStatus {
  status: TransactionStatus | undefined
  /** How many answers came outside of a transaction. */
  idleAnswers: number
}

const tracked = new WeakMap<Connection, TrackedStatus>()

/**
 * The transaction status that came with the last answer on this client.
 *
 * pg 8.21 and newer remember it. For an older client, the first call starts to track the status and returns undefined;
 * the next answer brings it. The native client of an older pg never has it.
 */
export function transactionStatus(client: ClientBase): TransactionStatus | null | undefined {
  const read: unknown = Reflect.get(client, 'getTransactionStatus')
  if (typeof read === 'function') return read.call(client)
  const wire: Connection | undefined = Reflect.get(client, 'connection')
  if (typeof wire?.prependListener !== 'function') return undefined
  const known = tracked.get(wire) ?? trackStatus(wire)
  return known.status
}

/**
 * A number that changes whenever a transaction of this client has ended, so that callers can tell one transaction from
 * the next. Does not change on the native client.
 */
export function transactionNumber(client: ClientBase): number {
  const wire: Connection | undefined = Reflect.get(client, 'connection')
  if (typeof wire?.prependListener !== 'function') return 0
  return (tracked.get(wire) ?? trackStatus(wire)).idleAnswers
}

/** Listens before pg itself, whose listener runs callbacks that may read the status. */
function trackStatus(wire: Connection): TrackedStatus {
  const known: TrackedStatus = { status: undefined, idleAnswers: 0 }
  wire.prependListener('readyForQuery', ({ status }: { status: TransactionStatus }) => {
    known.status = status
    if (status === 'I') known.idleAnswers++
  })
  tracked.set(wire, known)
  return known
}

/** The query whose answer is being read. Before pg 8.17 it was a property, which newer versions warn about. */
export function activeQuery(client: ClientBase): { readonly text?: unknown } | null | undefined {
  const read: unknown = Reflect.get(client, '_getActiveQuery')
  return typeof read === 'function' ? read.call(client) : Reflect.get(client, 'activeQuery')
}

/** The queries that wait to be sent. pg 8.17 renamed the property. */
function queueOf(client: object): readonly unknown[] {
  const queue: unknown = Reflect.get(client, '_queryQueue') ?? Reflect.get(client, 'queryQueue')
  return Array.isArray(queue) ? queue : []
}

export const queuedQueries = (client: ClientBase): number => queueOf(client).length

/** The queries that wait, that a pipelining client has sent, and that run now: the newest first. */
export function* pendingQueries(client: ClientBase): Iterable<unknown> {
  const sent: unknown = Reflect.get(client, '_sentQueryQueue')
  for (const queue of [queueOf(client), Array.isArray(sent) ? sent : []])
    for (let n = queue.length - 1; n >= 0; n--) yield queue[n]
  yield activeQuery(client)
}
