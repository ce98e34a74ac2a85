import type pg from 'pg'
import { InvalidInputError } from '../errors.js'
import { CONNECT_MS } from './connections.js'
import type { EmbeddedOptions } from './embedded/embedded-options.js'
import { type EventOrigin, emit } from './events.js'
import type { OpenOptions } from './open-options.js'
import { parseUrl } from './url.js'
import { withTimeout } from './with-timeout.js'

/** The least time that a pool gets to end in order. */
export const END_MS = 1_000

/** The pool that an instance uses. */
export interface PoolSource {
  readonly pool: pg.Pool
  readonly isEmbedded: boolean
  /**
   * Closes the pool that `openPoolSource` opened. A pool that the caller gave stays open. `close` cuts clients that are
   * not released within `waitMs`.
   */
  close(waitMs?: number): Promise<void>
}

/** Returns the caller's pool, or opens one. */
export async function openPoolSource(
  options: Pick<OpenOptions, 'url' | 'pool' | 'embedded'>,
  origin: EventOrigin,
): Promise<PoolSource> {
  const { pool, embedded, url = embedded ? undefined : process.env.DATABASE_URL } = options
  if (pool !== undefined) {
    // Without a listener, an idle connection that dies would end the process. The next use replaces that connection.
    pool.on('error', ignore)
    return { pool, isEmbedded: false, close: async () => void pool.off('error', ignore) }
  }
  if (url !== undefined) {
    const own = await newPool(parseUrl(url))
    return { pool: own, isEmbedded: false, close: (waitMs) => endPool(own, waitMs) }
  }
  if (!embedded && process.env.NODE_ENV === 'production') {
    throw new InvalidInputError(
      'url',
      'must be given, or the variable DATABASE_URL set: under NODE_ENV=production no PostgreSQL is started unasked. Give `embedded: {}`, or --dir on the command line, if that is what you want',
    )
  }
  return openEmbedded(embedded ?? {}, origin)
}

async function openEmbedded(options: EmbeddedOptions, origin: EventOrigin): Promise<PoolSource> {
  let own: pg.Pool | undefined
  // The driver and the embedded server are loaded when they are needed: each takes as long to load as all the rest.
  const { SupervisedServer } = await import('./embedded/supervised-server.js')
  const { ScramClient } = await import('./embedded/scram-client.js')
  const server = await SupervisedServer.open(options, {
    onStep: (step, folder) => emit('dibs:embedded.starting', { ...origin, step, folder }),
    onLost: (error, retryInMs) => emit('dibs:embedded.lost', { ...origin, error, retryInMs }),
    onUrlChanged: (url) => {
      if (own) own.options.connectionString = url // for connections made from now on
    },
  })
  try {
    const pool = await newPool(server.url, { Client: ScramClient })
    pool.options.connectionString = server.url // which may have changed while the driver was loaded
    own = pool
    return {
      pool,
      isEmbedded: true,
      close: (waitMs) => endPool(pool, waitMs).finally(() => server.close()),
    }
  } catch (error) {
    await server.close()
    throw error
  }
}

function ignore(): void {}

const clientsOf = new WeakMap<pg.Pool, Set<pg.PoolClient>>()

/** Opens a pool. Idle connections do not keep the process alive. */
async function newPool(connectionString: string, config: pg.PoolConfig = {}): Promise<pg.Pool> {
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
  // Not the event `connect`: a listener to it may set up the session, so the explorer would have to assume that this
  // one does.
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

/**
 * Ends a pool that Dibs opened, unless the user of the instance has ended it already. `pool.end()` alone waits forever
 * for a client that is not released, so its connection is cut after `waitMs`.
 */
async function endPool(pool: pg.Pool, waitMs = END_MS): Promise<void> {
  if (pool.ending) return
  await withTimeout(pool.end(), waitMs, () => {
    for (const client of clientsOf.get(pool) ?? []) {
      Reflect.get(client, 'connection')?.stream?.destroy()
    }
  })
}
