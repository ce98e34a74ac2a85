import { BusyError, SchemaVersionError, SetupError } from '../../errors.js'
import type { Checkout, Connections } from '../connections.js'
import { emit } from '../events.js'
import { readFault, translateError } from '../fault.js'
import { quoteIdentifier, renderSchema } from '../identifier.js'
import { queryText } from '../session.js'
import { sleep } from '../sleep.js'
import { type AppliedMigration, checkApplied } from './check-applied.js'
import type { Migration } from './read-migrations.js'

export interface MigrateOptions {
  /** How long to wait for another process that migrates, or for a table that is locked. Default 60,000. */
  readonly waitMs?: number
}

/** How long one DDL statement may stand in a table's lock queue, since everyone else queues up behind it. */
const LOCK_TIMEOUT_MS = 2_000

/**
 * Brings the schema up to this release. Any number of processes may do so at once: each migration is applied by
 * whoever gets the lock first, and the others find it recorded.
 */
export async function migrate(
  connections: Connections,
  known: readonly Migration[],
  { waitMs = 60_000 }: MigrateOptions = {},
): Promise<void> {
  const startedAt = performance.now()
  for (;;) {
    const pending = checkApplied(connections.schema, await readApplied(connections), known)
    const next = pending[0]
    if (!next) return
    const progress = await applyUnderLock(connections, known, next.version)
    if (progress === 'applied') continue
    const waitedMs = performance.now() - startedAt
    if (waitedMs > waitMs) {
      throw new BusyError(`the lock on the migrations of schema "${connections.schema}"`, waitedMs, 1000)
    }
    await sleep(20 + Math.random() * 80)
  }
}

/** Refuses a database that this release cannot work on, and changes nothing. */
export async function checkMigrations(connections: Connections, known: readonly Migration[]): Promise<void> {
  const { schema } = connections
  const applied = await readApplied(connections)
  const pending = checkApplied(schema, applied, known)
  if (pending.length === 0) return
  const state = applied.length === 0 ? 'is not there yet' : `is at version ${applied.length}`
  throw new SchemaVersionError(
    `Schema "${schema}" ${state} and this release needs version ${known.length}. Open once with migrate: 'auto' to bring it up, with a user who may create tables.`,
    schema,
    applied.length,
    known.length,
  )
}

async function readApplied(connections: Connections): Promise<readonly AppliedMigration[]> {
  const checkout = await connections.take()
  try {
    return await selectApplied(checkout, connections.schema)
  } finally {
    checkout.release()
  }
}

async function selectApplied({ client }: Checkout, schema: string): Promise<readonly AppliedMigration[]> {
  try {
    const rows = await queryText(
      client,
      renderSchema(
        `select version::text, name::text, checksum::text, compatible_from::text
         from {schema}.migration order by migration.version`,
        schema,
      ),
    )
    return rows.map(({ version, name, checksum, compatible_from }) => ({
      version: Number(version),
      name: `${name}`,
      checksum: `${checksum}`,
      compatibleFrom: Number(compatible_from),
    }))
  } catch (error) {
    const sqlState = readFault(error)?.sqlState
    if (sqlState === '42P01' || sqlState === '3F000') return [] // no table, no schema
    throw explain(error, schema)
  }
}

type Progress = 'applied' | 'busy'

/**
 * Tries for the lock, looks again now that nobody else can be applying, and applies one migration.
 *
 * The lock is tried and not waited for: a waiter inside `pg_advisory_xact_lock` holds a snapshot, for which CREATE
 * INDEX CONCURRENTLY waits, whose process holds the lock that the waiter wants. It belongs to the transaction,
 * since behind a pooler a session's lock would stay behind on someone else's connection.
 */
async function applyUnderLock(
  connections: Connections,
  known: readonly Migration[],
  version: number,
): Promise<Progress> {
  const { schema } = connections
  const checkout = await connections.take()
  let reason: unknown = 'the lock is held by another process'
  try {
    await checkout.client.query('begin isolation level read committed read write')
    if (!(await tryLock(checkout, schema))) return 'busy'
    await createRegister(checkout, schema)
    const migration = checkApplied(schema, await selectApplied(checkout, schema), known)[0]
    if (migration?.version !== version) return 'applied' // by another, in the meantime
    const startedAt = performance.now()
    if (migration.transactional) await applyHere(checkout, schema, migration)
    else await applyBeside(connections, migration)
    await record(checkout, schema, migration)
    await checkout.client.query('commit')
    const elapsedMs = performance.now() - startedAt
    emit('dibs:migration.applied', { schema, version, name: migration.name, elapsedMs })
    return 'applied'
  } catch (error) {
    reason = error
    if (isContention(error)) return 'busy'
    throw explain(error, schema)
  } finally {
    await checkout.rollback(reason)
  }
}

async function tryLock({ client }: Checkout, schema: string): Promise<boolean> {
  const rows = await queryText(
    client,
    'select pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended($1::text, 0))::text as locked',
    [`dibs.migrate:${schema}`],
  )
  return rows[0]?.locked === 'true'
}

/** Everything in a file is qualified; an empty path makes sure of it and keeps the user's from mattering. */
async function createRegister({ client }: Checkout, schema: string): Promise<void> {
  await client.query(
    `set local search_path = ''; set local lock_timeout = ${LOCK_TIMEOUT_MS};
     set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0`,
  )
  // Asked first, because CREATE SCHEMA IF NOT EXISTS wants the right to create even where nothing is to be created.
  const rows = await queryText(client, 'select 1 from pg_catalog.pg_namespace where nspname = $1::text', [
    schema,
  ])
  if (rows.length === 0) await client.query(`create schema ${quoteIdentifier(schema)}`)
  await client.query(
    renderSchema(
      `create table if not exists {schema}.migration (
         version int primary key check (version > 0),
         name text not null,
         checksum text not null,
         compatible_from int not null check (compatible_from between 1 and version),
         applied_at timestamptz not null default pg_catalog.clock_timestamp()
       )`,
      schema,
    ),
  )
}

async function applyHere({ client }: Checkout, schema: string, migration: Migration): Promise<void> {
  await client.query(renderSchema(migration.text, schema))
}

/** On a second connection, while the first keeps the lock and, idle between statements, no snapshot. */
async function applyBeside(connections: Connections, { text, file }: Migration): Promise<void> {
  const { schema, pool } = connections
  if (pool.options.max === 1) {
    throw new SetupError(
      `Migration ${file} needs two connections, and the pool has max: 1. Give it at least 2.`,
    )
  }
  const checkout = await connections.take()
  try {
    for (const index of await invalidIndexes(checkout, schema)) {
      // What a CREATE INDEX CONCURRENTLY leaves behind that was cut off; IF NOT EXISTS would take it for done.
      if (text.includes(index)) {
        await checkout.client.query(
          `drop index concurrently if exists ${quoteIdentifier(schema)}.${quoteIdentifier(index)}`,
        )
      }
    }
    await checkout.client.query(renderSchema(text, schema))
    checkout.release()
  } catch (error) {
    checkout.discard(error)
    throw error
  }
}

async function invalidIndexes({ client }: Checkout, schema: string): Promise<string[]> {
  const rows = await queryText(
    client,
    `select c.relname::text as name
     from pg_catalog.pg_index i
     join pg_catalog.pg_class c on c.oid = i.indexrelid
     join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where n.nspname = $1::text and not i.indisvalid`,
    [schema],
  )
  return rows.map(({ name }) => `${name}`)
}

async function record({ client }: Checkout, schema: string, migration: Migration): Promise<void> {
  const { version, name, checksum, compatibleFrom } = migration
  await client.query(
    renderSchema(
      `insert into {schema}.migration (version, name, checksum, compatible_from) values ($1, $2, $3, $4)`,
      schema,
    ),
    [version, name, checksum, compatibleFrom],
  )
}

/** Someone holds a table we need, or built the same index: wait and look again. */
function isContention(error: unknown): boolean {
  const fault = readFault(error)
  return fault?.kind === 'conflict' || fault?.sqlState === '55P03'
}

function explain(error: unknown, schema: string): unknown {
  const fault = readFault(error)
  if (fault?.sqlState === '42501') {
    return new SetupError(
      `Schema "${schema}" cannot be made or changed by this user: ${fault.message}. Grant CREATE on the database, or let the owner migrate once and open with migrate: 'check'.`,
      { cause: error },
    )
  }
  return translateError(error)
}
