import type pg from 'pg'
import { InvalidInputError } from '../errors.js'
import type { EmbeddedOptions } from './embedded/embedded-options.js'
import { type EventOrigin, emit } from './events.js'
import type { OpenOptions } from './open-options.js'
import { endPool, openPool } from './own-pool.js'
import { parseUrl } from './url.js'

/** The pool that an instance uses. */
export interface WayIn {
  readonly pool: pg.Pool
  readonly isEmbedded: boolean
  /** Closes what `findWayIn` opened. A pool that the caller gave stays open. Clients that nobody releases are cut after `waitMs`. */
  close(waitMs?: number): Promise<void>
}

/** Returns the caller's own pool, or opens one of ours. */
export async function findWayIn(options: OpenOptions, origin: EventOrigin): Promise<WayIn> {
  const { pool, embedded, url = embedded ? undefined : process.env.DATABASE_URL } = options
  if (pool !== undefined) {
    // Without a listener, an idle connection that dies would end the process. The next use replaces that connection.
    pool.on('error', ignore)
    return { pool, isEmbedded: false, close: async () => void pool.off('error', ignore) }
  }
  if (url !== undefined) {
    const own = await openPool(parseUrl(url))
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

async function openEmbedded(options: EmbeddedOptions, origin: EventOrigin): Promise<WayIn> {
  let own: pg.Pool | undefined
  // The driver and the embedded server are loaded when they are needed: each takes as long to load as all the rest.
  const { HeldServer } = await import('./embedded/held-server.js')
  const { ScramClient } = await import('./embedded/scram-client.js')
  const server = await HeldServer.open(options, {
    onStep: (step, folder) => emit('dibs:embedded.starting', { ...origin, step, folder }),
    onLost: (error, retryInMs) => emit('dibs:embedded.lost', { ...origin, error, retryInMs }),
    onMoved: (moved) => {
      if (own) own.options.connectionString = moved // for connections made from now on
    },
  })
  try {
    const pool = await openPool(server.url, { Client: ScramClient })
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
