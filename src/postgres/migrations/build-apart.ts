import type { Client } from 'pg'
import { endClient, newClient } from '../client.js'
import type { Connections } from '../connections.js'
import { quoteIdentifier, renderSchema } from '../identifier.js'
import { queryText } from '../session.js'
import type { Migration } from './read-migrations.js'

/** Those that the pool sets on its connections. */
const noTimeouts = {
  query_timeout: 0,
  statement_timeout: undefined,
  lock_timeout: undefined,
  idle_in_transaction_session_timeout: undefined,
}

type IndexState = 'absent' | 'being built' | 'invalid' | 'valid'

/**
 * Runs a file that refuses a transaction, while another connection keeps the lock and, idle between statements, no
 * snapshot. On a connection outside the pool: those who hold locks on several schemas would otherwise wait for
 * each other's second client. Without a bound on time: an index takes as long as it takes.
 *
 * Returns false when the index is not there afterwards, or someone else is building it: the builder of a process
 * that was killed lives on in the server, and when the two meet, IF NOT EXISTS takes what the loser left for done.
 */
export async function buildApart(
  { pool, schema }: Connections,
  { text, index }: Migration,
): Promise<boolean> {
  const client = newClient(pool, noTimeouts)
  client.on('error', () => {}) // the statement that runs reports it too
  try {
    await client.connect()
    const before = index && (await stateOf(client, schema, index))
    if (before === 'being built') return false
    if (index && before === 'invalid') {
      await client.query(
        `drop index concurrently if exists ${quoteIdentifier(schema)}.${quoteIdentifier(index)}`,
      )
    }
    await client.query(renderSchema(text, schema))
    return !index || (await stateOf(client, schema, index)) === 'valid'
  } finally {
    await endClient(client)
  }
}

/** Whoever builds an index concurrently holds this lock on its table; the view of progress hides other roles. */
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
