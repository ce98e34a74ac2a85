import { Socket } from 'node:net'
import type pg from 'pg'
import { CONNECT_MS } from './connections.js'
import { withTimeout } from './with-timeout.js'

/** Makes a client outside of `pool` for the same server. For work that must not wait for the pool or take a client from it. */
export function newClient(pool: pg.Pool, config: pg.ClientConfig): pg.Client {
  const { options } = pool
  // The class of the pool's own clients. The types of `pg` do not name it.
  const Client: typeof pg.Client = Reflect.get(pool, 'Client')
  return new Client({
    ...options,
    password: options.password, // a pool hides it from enumeration
    keepAlive: true,
    connectionTimeoutMillis: CONNECT_MS,
    ...config,
  })
}

/** Lets the process end although the connection is open. While a statement is under way, its timer keeps the process alive. */
export function unrefClient(client: pg.Client): void {
  const stream = client.connection?.stream
  if (stream instanceof Socket) stream.unref()
}

const END_MS = 500

/** Ends a client in order if the server still answers, otherwise by force: `end` alone waits until a silent network gives up. */
export async function endClient(client: pg.Client): Promise<void> {
  await withTimeout(client.end(), END_MS, () => void client.connection?.stream.destroy()).catch(() => {})
}
