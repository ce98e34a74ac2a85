import { poll } from './poll.js'
import { ScramClient } from './scram-client.js'

/** The connection whose session lock makes a supervisor the only one of its server. */
export interface Ownership {
  /** Resolves when the connection is lost, and the lock with it. */
  readonly lost: Promise<void>
  end(): void
}

const LOCK = [0x0d1b5, 1] as const
/** A killed supervisor loses its lock when the server notices that its connection is closed. */
const TRY_MS = 3_000

/** Lifts the time limits of the session. Not every version has all these settings. */
const stay = `
  select set_config(name, '0', false) from pg_settings
  where name in ('idle_session_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout')`

/**
 * Claims a server: only one of several supervisors gets it, whatever happened to their sockets. Returns the pid of the
 * owner if another supervisor has the server. Throws if the server does not answer.
 */
export async function claimServer(url: string): Promise<Ownership | { readonly owner: number }> {
  const client = new ScramClient({
    connectionString: url,
    application_name: `dibs supervisor ${process.pid}`,
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
    const tryLock = async (): Promise<true | undefined> => {
      const { rows } = await client.query('select pg_try_advisory_lock($1, $2) as mine', [...LOCK])
      return rows[0]?.mine || undefined
    }
    if (await poll(tryLock, { everyMs: 50, withinMs: TRY_MS })) return { lost, end } // guard: embedded.one-supervisor
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
