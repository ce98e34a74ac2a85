import type pg from 'pg'
import { CONNECT_MS } from './connections.js'
import { withTimeout } from './with-timeout.js'

/** The least time that a pool gets to end in order. */
export const END_MS = 1_000

const clientsOf = new WeakMap<pg.Pool, Set<pg.PoolClient>>()

/** A pool of ours. Idle connections do not keep the process alive. */
export async function openPool(connectionString: string, config: pg.PoolConfig = {}): Promise<pg.Pool> {
  const { default: pg } = await import('pg')
  const pool = new pg.Pool({
    ...config,
    connectionString,
    connectionTimeoutMillis: CONNECT_MS,
    keepAlive: true,
    allowExitOnIdle: true,
    fallback_application_name: 'dibs',
  })
  const clients = new Set<pg.PoolClient>()
  clientsOf.set(pool, clients)
  // Not `connect`: a listener to that may set up the session, so the explorer would have to assume that it does.
  pool.on('acquire', (client) => {
    // While a client is checked out, the pool does not listen to its errors. Without a listener, a connection that is lost inside a
    // transaction of a library would end the process.
    if (!clients.has(client)) client.on('error', () => {})
    clients.add(client)
  })
  pool.on('remove', (client) => clients.delete(client))
  // This listener stays for good: sockets may report an error after the pool has ended.
  return pool.on('error', () => {})
}

/** Ends a pool of ours, unless the user of the instance has ended that pool already. `pool.end()` alone waits for ever for a client that nobody releases: after `waitMs` its connection is cut. */
export async function endPool(pool: pg.Pool, waitMs = END_MS): Promise<void> {
  if (pool.ending) return
  await withTimeout(pool.end(), waitMs, () => {
    for (const client of clientsOf.get(pool) ?? []) {
      Reflect.get(client, 'connection')?.stream?.destroy()
    }
  })
}
