import type pg from 'pg'
import { InvalidInputError } from '../errors.js'
import { CONNECT_MS } from './connections.js'
import type { HeldServer } from './embedded/held-server.js'
import { type EventOrigin, emit } from './events.js'
import type { OpenOptions } from './open-options.js'
import { parseUrl } from './url.js'

interface WayIn {
  readonly pool: pg.Pool
  /** Ours to let go of. */
  readonly server?: HeldServer
}

/** The pool to go in by: the caller's own, or one of ours. */
export async function findWayIn(options: OpenOptions, origin: EventOrigin): Promise<WayIn> {
  const { pool, embedded, url = embedded ? undefined : process.env.DATABASE_URL } = options
  if (pool) {
    if (typeof pool.connect !== 'function' || !pool.options)
      throw new InvalidInputError('pool', 'must be a Pool of pg')
    return { pool }
  }
  if (url !== undefined) return { pool: await newPool(parseUrl(url)) }
  if (!embedded && process.env.NODE_ENV === 'production') {
    throw new InvalidInputError(
      'url',
      'must be given, or the variable DATABASE_URL set: under NODE_ENV=production no PostgreSQL is started unasked. Give `embedded: {}`, or --dir on the command line, if that is what you want',
    )
  }
  let own: pg.Pool | undefined
  // The driver and the embedded server are loaded when they are needed: each takes as long to load as all the rest.
  const { HeldServer } = await import('./embedded/held-server.js')
  const { ScramClient } = await import('./embedded/scram-client.js')
  const server = await HeldServer.open(embedded ?? {}, {
    onStep: (step, folder) => emit('dibs:embedded.starting', { ...origin, step, folder }),
    onLost: (error, retryInMs) => emit('dibs:embedded.lost', { ...origin, error, retryInMs }),
    onMoved: (moved) => {
      if (own) own.options.connectionString = moved // for connections made from now on
    },
  })
  own = await newPool(server.url, { Client: ScramClient })
  return { pool: own, server }
}

async function newPool(connectionString: string, config: pg.PoolConfig = {}): Promise<pg.Pool> {
  const { default: pg } = await import('pg')
  return new pg.Pool({
    ...config,
    connectionString,
    connectionTimeoutMillis: CONNECT_MS,
    keepAlive: true,
    fallback_application_name: 'dibs',
  })
}
