import { BusyError, RolledBackError, SchemaVersionError, SetupError } from '../../errors.js'
import type { Checkout } from '../checkout.js'
import { ANSWER_MS, type Connections } from '../connections.js'
import { emit } from '../events.js'
import { isUnusable, readFault } from '../fault.js'
import { renderSchema } from '../identifier.js'
import { queryText } from '../pg-query.js'
import { retry } from '../retry.js'
import { watchControl } from '../watch-control.js'
import { createMigrationTable, recordMigration, selectApplied } from './applied-migrations.js'
import { checkApplied } from './check-applied.js'
import { explainApplyError } from './migration-errors.js'
import type { Migration } from './read-migrations.js'
import { runOutsideTransaction } from './run-outside-transaction.js'
import { enableYieldPoints } from './yield-points.js'

export interface MigrateOptions {
  /** How long to wait for another process that migrates, or for a table that is locked. Default 60,000. */
  readonly waitMs?: number | undefined
}

/** After this many lost connections in a row, `migrate` fails. */
const MAX_LOSSES = 3

/** How often an applied migration may be missing from the next read, for example if reads go to a replica. */
const MAX_UNSEEN = 10

/** How long one DDL statement may wait in the lock queue of a table, because all others queue behind it. */
const LOCK_TIMEOUT_MS = 2_000

/** Another process or a lock blocks a migration. Dibs tries again. */
class Obstacle extends Error {
  constructor(
    readonly subject: string,
    readonly details: { readonly cause?: unknown; readonly migration?: Migration | undefined } = {},
  ) {
    super(subject)
  }

  get isLoss(): boolean {
    return readFault(this.details.cause)?.kind === 'connection'
  }
}

/**
 * Brings the schema up to this release. Any number of processes may do so at once: the process that gets the lock first applies
 * a migration, and the others find it recorded.
 */
export async function migrate(
  connections: Connections,
  known: readonly Migration[],
  { waitMs = 60_000 }: MigrateOptions = {},
): Promise<void> {
  const { schema, origin } = connections
  let pendingBefore = Number.POSITIVE_INFINITY
  let progressAt = performance.now()
  let hasProgressed = true
  let losses = 0
  let unseen = 0
  const applyAll = async (): Promise<void> => {
    for (hasProgressed = false; ; unseen++) {
      const applied = await connections.use((checkout) => selectApplied(checkout, schema))
      const pending = checkApplied(schema, applied, known).length
      if (pending === 0) return
      if (pending < pendingBefore) {
        progressAt = performance.now()
        hasProgressed = true
        losses = unseen = 0
      }
      pendingBefore = pending
      if (unseen === MAX_UNSEEN)
        throw new SetupError(
          `Schema "${schema}" was migrated, but that cannot be read back. Connect to the primary.`,
        )
      await applyNext(connections, known)
    }
  }
  await retry(applyAll, {
    isRetryable: (error) => error instanceof Obstacle,
    ...{ baseMs: 50, maxMs: 1_000, minMs: 10 },
    resetsDelay: () => hasProgressed,
    onRetry: (error) => {
      const { subject, isLoss, details } = error as Obstacle
      if (isLoss && ++losses === MAX_LOSSES) throw explainApplyError(details.cause, schema, details.migration)
      const waitedMs = performance.now() - progressAt
      if (waitedMs > waitMs) throw new BusyError(subject, waitedMs, 1000, { cause: details.cause })
      emit('dibs:migration.waiting', { ...origin, subject, waitedMs })
    },
  })
}

/** Refuses a database that this release cannot work on, and changes nothing. */
export async function checkMigrations(connections: Connections, known: readonly Migration[]): Promise<void> {
  const { schema } = connections
  const applied = await connections.use((checkout) => selectApplied(checkout, schema))
  const pending = checkApplied(schema, applied, known)
  if (pending.length === 0) return
  const state = applied.length === 0 ? 'is not there yet' : `is at version ${applied.length}`
  throw new SchemaVersionError(
    `Schema "${schema}" ${state} and this release needs version ${known.length}. Run \`dibs migrate\`, or open once with migrate: 'auto', as a user who may create tables.`,
    schema,
    applied.length,
    known.length,
  )
}

/**
 * Tries the lock, reads again which migrations are applied, and applies the next one. Throws an `Obstacle` if it cannot
 * yet.
 *
 * The lock is tried and not waited for. A process that waits inside `pg_advisory_xact_lock` holds a snapshot. CREATE
 * INDEX CONCURRENTLY of the lock's holder would wait for that snapshot: a deadlock. The lock belongs to the
 * transaction: behind a pooler, the lock of a session would stay on a connection that another user gets.
 */
async function applyNext(connections: Connections, known: readonly Migration[]): Promise<void> {
  const { schema, origin } = connections
  const checkout = await connections.take()
  checkout.bound(ANSWER_MS)
  let migration: Migration | undefined
  try {
    await checkout.client.query('begin isolation level read committed read write')
    if (!(await tryLock(checkout, schema)))
      throw new Obstacle(`another process that migrates schema "${schema}"`)
    await prepareSession(checkout)
    await createMigrationTable(checkout, schema)
    ;[migration] = checkApplied(schema, await selectApplied(checkout, schema), known) // guard: migration.recheck
    if (!migration) return // another process has applied it
    const startedAt = performance.now()
    checkout.bound(Number.POSITIVE_INFINITY) // no time limit: a migration may take long
    if (migration.transactional) await applyHere(checkout, schema, migration)
    else if (!(await runOutsideTransaction(connections, migration)))
      throw new Obstacle(`index "${migration.index}" to be built by another session`)
    checkout.bound(ANSWER_MS)
    await recordMigration(checkout, schema, migration)
    const { command } = await checkout.client.query('commit')
    if (command !== 'COMMIT') throw new RolledBackError('transaction')
    const { version, name } = migration
    emit('dibs:migration.applied', {
      ...origin,
      version,
      migration: name,
      elapsedMs: performance.now() - startedAt,
    })
  } catch (error) {
    if (error instanceof Obstacle) throw error
    if (isUnusable(error)) checkout.broken ??= error
    // Also after a lost connection: the next read shows whether the migration was kept, and whether the server is
    // available.
    if (!isTransient(error)) throw explainApplyError(error, schema, migration)
    const subject = migration
      ? `what migration ${migration.version} (${migration.name}) changes`
      : 'the migrations'
    throw new Obstacle(`${subject} of schema "${schema}"`, { cause: error, migration })
  } finally {
    await checkout.rollback()
  }
}

/** Applies a migration. Refuses one that has ended the transaction: the lock ended with it, and writes may be kept or lost. */
async function applyHere(checkout: Checkout, schema: string, { text, file }: Migration): Promise<void> {
  const { client } = checkout
  const rendered = renderSchema(await enableYieldPoints(checkout, schema, text), schema)
  const control = watchControl(client)
  try {
    await client.query(rendered)
  } finally {
    control.stop()
  }
  // guard: migration.own-transaction
  if (control.transactionCommands > 0)
    throw new SetupError(`sql/${file} begins or ends a transaction, which it must not.`)
}

async function tryLock({ client }: Checkout, schema: string): Promise<boolean> {
  const rows = await queryText(
    client,
    'select pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended($1::text, 0))::text as locked',
    [`dibs.migrate:${schema}`],
  )
  return rows[0]?.locked === 'true' // guard: migration.lock
}

/** Sets an empty search path, since migrations qualify all names, and lifts the time limits of the user. */
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

/** True if a table is locked, two processes have met, or the connection was lost. */
function isTransient(error: unknown): boolean {
  const fault = readFault(error)
  if (!fault || fault.sqlState === '25P03' || fault.sqlState === '25P04') return false // a timeout that is too short
  if (fault.kind === 'conflict' || fault.kind === 'connection' || fault.kind === 'retryable') return true
  return fault.sqlState === '55P03' || /tuple concurrently (updated|deleted)/.test(fault.message)
}
