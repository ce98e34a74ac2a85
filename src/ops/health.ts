import type { Pool } from 'pg'
import { BusyError, ClosedError, ConnectionLostError, StatementTimeoutError } from '../errors.js'
import { showError } from '../options/name-given.js'
import type { Connections } from '../postgres/connections.js'
import { translateError } from '../postgres/fault.js'
import { selectApplied } from '../postgres/migrations/applied-migrations.js'

/** Whether an instance can work now. */
export interface Health {
  readonly ok: boolean
  /** The state of the database. `busy`: all connections of the pool are in use, so Dibs did not ask the database. */
  readonly database: 'reachable' | 'unreachable' | 'busy'
  /** How long the check took. */
  readonly latencyMs: number
  readonly schema: string
  /** The newest migration of the schema. 0 if there is none, undefined if the database could not be reached. */
  readonly schemaVersion: number | undefined
  /** The reason if `ok` is false, in words for a person. */
  readonly problem: string | undefined
}

const ANSWER_MS = 2_000

/** Sends one query. Waits at most two seconds for a connection and two seconds for the reply. Never throws. */
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

/** A server that refuses the query is still reachable. */
function placeOf(reason: unknown, pool: Pool): Health['database'] {
  // A pool also reports `BusyError` if the server does not answer; then the pool has room for more connections.
  if (reason instanceof BusyError) return pool.totalCount < pool.options.max ? 'unreachable' : 'busy'
  const isSilent =
    reason instanceof ConnectionLostError ||
    reason instanceof ClosedError ||
    reason instanceof StatementTimeoutError
  return isSilent ? 'unreachable' : 'reachable'
}
