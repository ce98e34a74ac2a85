import type { Pool } from 'pg'
import { BusyError, ClosedError, ConnectionLostError, StatementTimeoutError } from '../errors.js'
import type { Connections } from '../postgres/connections.js'
import { translateError } from '../postgres/fault.js'
import { selectApplied } from '../postgres/migrations/register.js'
import { showError } from '../postgres/name-given.js'

/** Whether an instance can do its work, as of now. */
export interface Health {
  readonly ok: boolean
  /** `busy`: all connections of the pool are in use, so it was not asked. */
  readonly database: 'reachable' | 'unreachable' | 'busy'
  /** How long it took to find out. */
  readonly latencyMs: number
  readonly schema: string
  /** The newest migration of the schema; 0 if there is none, undefined if nobody could be asked. */
  readonly schemaVersion: number | undefined
  /** Why not, in words for a person. */
  readonly problem: string | undefined
}

const ANSWER_MS = 2_000

/** Asks the database one question, for two seconds at most to connect and two to answer. Never throws. */
export async function readHealth(connections: Connections): Promise<Health> {
  const { schema } = connections
  const startedAt = performance.now()
  const tell = (known: Pick<Health, 'ok' | 'database' | 'schemaVersion' | 'problem'>): Health => ({
    ...known,
    schema,
    latencyMs: Math.round(performance.now() - startedAt),
  })
  try {
    const applied = await connections.use((checkout) => selectApplied(checkout, schema), ANSWER_MS, ANSWER_MS)
    const schemaVersion = applied.at(-1)?.version ?? 0
    if (schemaVersion > 0) return tell({ ok: true, database: 'reachable', schemaVersion, problem: undefined })
    const problem = `schema "${schema}" has no tables of Dibs; run \`dibs migrate\``
    return tell({ ok: false, database: 'reachable', schemaVersion, problem })
  } catch (error) {
    const reason = translateError(error)
    const problem = showError(reason)
    return tell({ ok: false, database: placeOf(reason, connections.pool), schemaVersion: undefined, problem })
  }
}

/** A server that refuses to tell is there all the same. */
function placeOf(reason: unknown, pool: Pool): Health['database'] {
  // It is also said where the server does not answer the pool, which then has room.
  if (reason instanceof BusyError) return pool.totalCount < pool.options.max ? 'unreachable' : 'busy'
  const isSilent =
    reason instanceof ConnectionLostError ||
    reason instanceof ClosedError ||
    reason instanceof StatementTimeoutError
  return isSilent ? 'unreachable' : 'reachable'
}
