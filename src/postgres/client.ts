import { Socket } from 'node:net'
import type pg from 'pg'
import { CONNECT_MS } from './connections.js'

/** A client of its own to where `pool` leads, for what must not wait for the pool or keep a client of it. */
export function newClient(pool: pg.Pool, config: pg.ClientConfig): pg.Client {
  const { options } = pool
  // The class that the pool makes its own clients of. Its types do not name it.
  const Client: typeof pg.Client = Reflect.get(pool, 'Client')
  return new Client({
    ...options,
    password: options.password, // a pool hides it from enumeration
    keepAlive: true,
    connectionTimeoutMillis: CONNECT_MS,
    ...config,
  })
}

/** An open connection alone does not keep the process alive. While a statement is on its way, its timer does. */
export function unrefClient(client: pg.Client): void {
  const stream = client.connection?.stream
  if (stream instanceof Socket) stream.unref()
}

const END_MS = 500

/** Politely if the server still answers, else by force: `end` alone waits for a silent network to give up. */
export async function endClient(client: pg.Client): Promise<void> {
  const force = setTimeout(() => client.connection?.stream.destroy(), END_MS)
  await client.end().catch(() => {})
  clearTimeout(force)
}
