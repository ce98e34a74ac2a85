import { BusyError, SchemaVersionError } from '../../errors.js'
import { fullJitterMs } from '../backoff.js'
import type { Checkout, Connections } from '../connections.js'
import { emit } from '../events.js'
import { isUnusable, readFault } from '../fault.js'
import { renderSchema } from '../identifier.js'
import { queryText } from '../session.js'
import { sleep } from '../sleep.js'
import { buildApart } from './build-apart.js'
import { checkApplied } from './check-applied.js'
import { explainApply } from './explain.js'
import type { Migration } from './read-migrations.js'
import { createRegister, record, selectApplied } from './register.js'

export interface MigrateOptions {
  /** How long to wait for another process that migrates, or for a table that is locked. Default 60,000. */
  readonly waitMs?: number | undefined
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
  const { schema } = connections
  let waitingSince = performance.now()
  let pendingBefore = Number.POSITIVE_INFINITY
  for (let tries = 1; ; tries++) {
    const applied = await connections.use((checkout) => selectApplied(checkout, schema))
    const pending = checkApplied(schema, applied, known).length
    if (pending === 0) return
    if (pending < pendingBefore) {
      waitingSince = performance.now()
      tries = 1
    }
    pendingBefore = pending
    const obstacle = await applyNext(connections, known)
    if (obstacle === undefined) continue
    const waitedMs = performance.now() - waitingSince
    if (waitedMs > waitMs) throw new BusyError(obstacle.subject, waitedMs, 1000, { cause: obstacle.cause })
    await sleep(10 + fullJitterMs(tries, 50, 1_000))
  }
}

/** Refuses a database that this release cannot work on, and changes nothing. */
export async function checkMigrations(connections: Connections, known: readonly Migration[]): Promise<void> {
  const { schema } = connections
  const applied = await connections.use((checkout) => selectApplied(checkout, schema))
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

/** What stood in the way; it is worth another look after a while. */
interface Obstacle {
  readonly subject: string
  readonly cause?: unknown
}

/**
 * Tries for the lock, looks again now that nobody else can be applying, and applies one migration.
 *
 * The lock is tried and not waited for: a waiter inside `pg_advisory_xact_lock` holds a snapshot, for which CREATE
 * INDEX CONCURRENTLY waits, whose process holds the lock that the waiter wants. It belongs to the transaction,
 * since behind a pooler a session's lock would stay behind on someone else's connection.
 */
async function applyNext(
  connections: Connections,
  known: readonly Migration[],
): Promise<Obstacle | undefined> {
  const { schema, origin } = connections
  const checkout = await connections.take()
  let migration: Migration | undefined
  try {
    await checkout.client.query('begin isolation level read committed read write')
    if (!(await tryLock(checkout, schema))) {
      return { subject: `another process that migrates schema "${schema}"` }
    }
    await prepareSession(checkout)
    await createRegister(checkout, schema)
    ;[migration] = checkApplied(schema, await selectApplied(checkout, schema), known)
    if (!migration) return undefined // applied by another, in the meantime
    const startedAt = performance.now()
    if (migration.transactional) await checkout.client.query(renderSchema(migration.text, schema))
    else if (!(await buildApart(connections, migration))) {
      return { subject: `index "${migration.index}" to be built by another session` }
    }
    await record(checkout, schema, migration)
    await checkout.client.query('commit')
    const { version, name } = migration
    emit('dibs:migration.applied', {
      ...origin,
      version,
      migration: name,
      elapsedMs: performance.now() - startedAt,
    })
    return undefined
  } catch (error) {
    if (isUnusable(error)) checkout.broken ??= error
    // Also after a lost connection: whether it was kept shows at the next look, and if the server is gone, so does that.
    if (!isPassing(error)) throw explainApply(error, schema, migration)
    const subject = migration
      ? `what migration ${migration.version} (${migration.name}) changes`
      : 'the migrations'
    return { subject: `${subject} of schema "${schema}"`, cause: error }
  } finally {
    await checkout.rollback()
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
async function prepareSession({ client }: Checkout): Promise<void> {
  await queryText(
    client,
    `select pg_catalog.set_config(name, case name when 'search_path' then '' when 'lock_timeout' then $1::text else '0' end, true)
     from pg_catalog.pg_settings
     where name in ('search_path', 'lock_timeout', 'statement_timeout', 'transaction_timeout',
                    'idle_in_transaction_session_timeout')`,
    [String(LOCK_TIMEOUT_MS)],
  )
}

/** A table is locked, two of us met, or the connection went away: look again. */
function isPassing(error: unknown): boolean {
  const fault = readFault(error)
  return fault?.kind === 'conflict' || fault?.kind === 'connection' || fault?.sqlState === '55P03'
}
