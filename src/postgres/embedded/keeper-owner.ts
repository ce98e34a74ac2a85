import { sleep } from '../sleep.js'
import { ScramClient } from './scram-client.js'

/** The keeper's own connection, whose session lock makes it the one keeper of a server. */
export interface Ownership {
  /** Resolves when the connection is gone, and the lock with it. */
  readonly lost: Promise<void>
  end(): void
}

const LOCK = [0x0d1b5, 1] as const
/** A keeper that was killed loses its lock as soon as the server sees its connection gone. */
const TRY_MS = 3_000

/** Whatever the server's settings are, this session stays. Not every version has them all. */
const stay = `
  select set_config(name, '0', false) from pg_settings
  where name in ('idle_session_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout')`

/**
 * Claims a server: of several keepers one gets it, whatever happened to their sockets. Answers with the number of
 * the other's process if it has one. Throws if the server cannot be asked.
 */
export async function claimServer(url: string): Promise<Ownership | { readonly owner: number }> {
  const client = new ScramClient({
    connectionString: url,
    application_name: `dibs keeper ${process.pid}`,
    connectionTimeoutMillis: 5_000,
    keepAlive: true,
  })
  const lost = new Promise<void>((resolve) => {
    client.on('error', () => resolve())
    client.on('end', () => resolve())
  })
  const end = (): void => void client.end().catch(() => {})
  try {
    await client.connect()
    await client.query(stay)
    const deadline = performance.now() + TRY_MS
    for (;;) {
      const { rows } = await client.query('select pg_try_advisory_lock($1, $2) as mine', [...LOCK])
      if (rows[0]?.mine) return { lost, end }
      if (performance.now() > deadline) break
      await sleep(50)
    }
    const { rows } = await client.query(
      `select application_name as name from pg_locks join pg_stat_activity using (pid)
       where locktype = 'advisory' and classid = $1 and objid = $2 and objsubid = 2 and granted`,
      [...LOCK],
    )
    end()
    return { owner: Number(String(rows[0]?.name).split(' ').at(-1)) || 0 }
  } catch (error) {
    end()
    throw error
  }
}
