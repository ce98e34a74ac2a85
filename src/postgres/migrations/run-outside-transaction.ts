import type { Client } from 'pg'
import { endClient, newClient } from '../client.js'
import type { Connections } from '../connections.js'
import { quoteIdentifier, renderSchema } from '../identifier.js'
import { queryText } from '../pg-query.js'
import type { Migration } from './read-migrations.js'

/** The time limits that the pool may set on its connections. */
const noTimeouts = {
  query_timeout: 0,
  statement_timeout: undefined,
  lock_timeout: undefined,
  idle_in_transaction_session_timeout: undefined,
}

type IndexState = 'absent' | 'being built' | 'invalid' | 'valid'

/**
 * Runs a migration that refuses a transaction. During that time, another connection holds the migration lock and, idle
 * between statements, no snapshot. This connection is outside of the pool: processes that migrate several schemas would
 * otherwise wait for each other's second client. There is no time limit, because building an index may take long.
 *
 * Returns false if the index is missing afterwards, or another session builds it. The session of a killed process goes
 * on in the server. If two sessions meet, IF NOT EXISTS accepts the invalid index that the loser leaves behind.
 */
export async function runOutsideTransaction(
  { pool, schema }: Connections,
  { text, index }: Migration,
): Promise<boolean> {
  const client = newClient(pool, noTimeouts)
  client.on('error', () => {}) // the running statement fails too
  try {
    await client.connect()
    const before = index && (await stateOf(client, schema, index))
    if (before === 'being built') return false
    // guard: migration.invalid-index
    if (index && before === 'invalid') {
      await client.query(
        `drop index concurrently if exists ${quoteIdentifier(schema)}.${quoteIdentifier(index)}`,
      )
    }
    await client.query(renderSchema(text, schema))
    return !index || (await stateOf(client, schema, index)) === 'valid' // guard: migration.valid-after
  } finally {
    await endClient(client)
  }
}

/**
 * A session that builds an index concurrently holds this lock on the table. The progress view does not show sessions of
 * other roles.
 */
async function stateOf(client: Client, schema: string, index: string): Promise<IndexState> {
  const rows = await queryText(
    client,
    `select i.indisvalid::text as "valid",
            exists (select 1 from pg_catalog.pg_locks l
                    where l.relation = i.indrelid and l.pid <> pg_catalog.pg_backend_pid()
                      and l.mode = 'ShareUpdateExclusiveLock')::text as "building"
     from pg_catalog.pg_index i
     join pg_catalog.pg_class c on c.oid = i.indexrelid
     join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where n.nspname = $1::text and c.relname = $2::text`,
    [schema, index],
  )
  const [row] = rows
  if (!row) return 'absent'
  if (row.valid === 'true') return 'valid'
  return row.building === 'true' ? 'being built' : 'invalid'
}
