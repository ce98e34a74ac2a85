import { BusyError, RolledBackError, SchemaVersionError, SetupError } from '../../errors.js'
import { fullJitterMs } from '../backoff.js'
import { ANSWER_MS, type Checkout, type Connections } from '../connections.js'
import { emit } from '../events.js'
import { isUnusable, readFault } from '../fault.js'
import { renderSchema } from '../identifier.js'
import { queryText } from '../session.js'
import { sleep } from '../sleep.js'
import { watchControl } from '../watch-control.js'
import { buildApart } from './build-apart.js'
import { checkApplied } from './check-applied.js'
import { explainApply } from './explain.js'
import type { Migration } from './read-migrations.js'
import { createRegister, record, selectApplied } from './register.js'
import { openPoints } from './yield-points.js'

export interface MigrateOptions {
  /** How long to wait for another process that migrates, or for a table that is locked. Default 60,000. */
  readonly waitMs?: number | undefined
}

/** After so many lost connections in a row, what is in the way is no accident. */
const MAX_LOSSES = 3

/** How often what was applied may not show in the next look, as where reads go to a replica. */
const MAX_UNSEEN = 10

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
  let losses = 0
  let unseen = 0
  for (let tries = 1; ; tries++) {
    const applied = await connections.use((checkout) => selectApplied(checkout, schema))
    const pending = checkApplied(schema, applied, known).length
    if (pending === 0) return
    if (pending < pendingBefore) {
      waitingSince = performance.now()
      tries = 1
      losses = 0
      unseen = 0
    }
    pendingBefore = pending
    const obstacle = await applyNext(connections, known)
    if (obstacle?.isLoss && ++losses >= MAX_LOSSES)
      throw explainApply(obstacle.cause, schema, obstacle.migration)
    if (obstacle === undefined) {
      if (++unseen < MAX_UNSEEN) continue
      throw new SetupError(
        `Schema "${schema}" was migrated, but that cannot be read back. Connect to the primary.`,
      )
    }
    const waitedMs = performance.now() - waitingSince
    if (waitedMs > waitMs) throw new BusyError(obstacle.subject, waitedMs, 1000, { cause: obstacle.cause })
    emit('dibs:migration.waiting', { ...connections.origin, subject: obstacle.subject, waitedMs })
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
    `Schema "${schema}" ${state} and this release needs version ${known.length}. Run \`dibs migrate\`, or open once with migrate: 'auto', as a user who may create tables.`,
    schema,
    applied.length,
    known.length,
  )
}

/** What stood in the way; it is worth another look after a while. */
interface Obstacle {
  readonly subject: string
  readonly cause?: unknown
  readonly migration?: Migration | undefined
  readonly isLoss?: boolean
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
  checkout.bound(ANSWER_MS)
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
    checkout.bound(Number.POSITIVE_INFINITY) // a file takes as long as it takes
    if (migration.transactional) await applyHere(checkout, schema, migration)
    else if (!(await buildApart(connections, migration))) {
      return { subject: `index "${migration.index}" to be built by another session` }
    }
    checkout.bound(ANSWER_MS)
    await record(checkout, schema, migration)
    const { command } = await checkout.client.query('commit')
    if (command !== 'COMMIT') throw new RolledBackError('transaction')
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
    const isLoss = readFault(error)?.kind === 'connection'
    return { subject: `${subject} of schema "${schema}"`, cause: error, migration, isLoss }
  } finally {
    await checkout.rollback()
  }
}

/** Refuses a file that has ended the transaction, and with it the lock, and so may have kept or lost anything. */
async function applyHere(checkout: Checkout, schema: string, { text, file }: Migration): Promise<void> {
  const { client } = checkout
  const rendered = renderSchema(await openPoints(checkout, schema, text), schema)
  const control = watchControl(client)
  try {
    await client.query(rendered)
  } finally {
    control.stop()
  }
  if (control.seen > 0) throw new SetupError(`sql/${file} begins or ends a transaction, which it must not.`)
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
  if (!fault || fault.sqlState === '25P03' || fault.sqlState === '25P04') return false // a timeout that is set too low
  if (fault.kind === 'conflict' || fault.kind === 'connection' || fault.kind === 'retryable') return true
  return fault.sqlState === '55P03' || /tuple concurrently (updated|deleted)/.test(fault.message)
}
