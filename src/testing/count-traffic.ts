import type { Connection, Pool, PoolClient } from 'pg'
import { markUnderTest } from '../postgres/pools-under-test.js'

export interface Traffic<T> {
  readonly value: T
  /** How often someone waited for the server; statements sent together are one wait. */
  readonly roundTrips: number
  /** Transactions that ended well: each COMMIT, and each statement that commits by itself. */
  readonly commits: number
}

/**
 * Runs `fn` and counts what its clients of `pool` exchange with the server meanwhile. Making a connection is not
 * counted; warm the pool up if `fn` must not pay for it. Two counts of one pool must not overlap.
 *
 * @example
 * const { roundTrips, commits } = await countTraffic(dibs.pool, () => dibs.now())
 */
export async function countTraffic<T>(pool: Pool, fn: () => Promise<T>): Promise<Traffic<T>> {
  const counts = { roundTrips: 0, commits: 0 }
  const taps = new Map<PoolClient, () => void>()
  const onAcquire = (client: PoolClient): void => {
    if (!taps.has(client)) taps.set(client, tap(client, counts))
  }
  const unmark = markUnderTest(pool)
  pool.on('acquire', onAcquire)
  try {
    const value = await fn()
    return { value, ...counts }
  } finally {
    pool.off('acquire', onAcquire)
    unmark()
    for (const untap of taps.values()) untap()
  }
}

function tap(client: PoolClient, counts: { roundTrips: number; commits: number }): () => void {
  const wire: Connection = Reflect.get(client, 'connection')
  const { query, sync } = wire
  let awaited = 0
  let status = 'I'
  let failed = false
  let command = ''
  const onSend = (): void => {
    if (awaited++ === 0) counts.roundTrips++
  }
  const onComplete = ({ text }: { text: string }): void => {
    command = text
  }
  const onError = (): void => {
    failed = true
  }
  const onReady = ({ status: now }: { status: string }): void => {
    awaited = Math.max(0, awaited - 1)
    if (now === 'I' && !failed && (status === 'I' ? command !== 'ROLLBACK' : command === 'COMMIT'))
      counts.commits++
    status = now
    failed = false
  }
  wire.query = (text) => {
    onSend()
    query.call(wire, text)
  }
  wire.sync = () => {
    onSend()
    sync.call(wire)
  }
  wire.on('commandComplete', onComplete)
  wire.on('errorMessage', onError)
  wire.on('readyForQuery', onReady)
  return () => {
    // Back to the methods of its class.
    Reflect.deleteProperty(wire, 'query')
    Reflect.deleteProperty(wire, 'sync')
    wire.off('commandComplete', onComplete)
    wire.off('errorMessage', onError)
    wire.off('readyForQuery', onReady)
  }
}
