import { operationOf, singletonOf } from '../postgres/key.js'
import { dateFromMicros, type TextRow } from '../postgres/text-values.js'
import { nameHolder } from '../postgres/this-process.js'
import type { ClaimStatus } from './claim-result.js'

/** A stored claim, as operators see it. */
export interface ClaimRecord {
  readonly scope: string
  readonly key: string
  readonly id: string
  /** `pending`: begun. `active`: has its outcome. `failed`: ended for good without one. */
  readonly status: ClaimStatus
  /**
   * The state of a pending claim. `held`: a caller works on it. `resting`: it failed after a takeover and will be tried again. `abandoned`: its holder is
   * gone, or did not know what it had done. `released`: its holder released it.
   */
  readonly held?: 'held' | 'resting' | 'abandoned' | 'released'
  readonly attempt: number
  /** The number of attempts without a recorded outcome. */
  readonly lost: number
  readonly fence: number
  /** The caller that works on the claim, or worked on it last. For a singleton, its option `holder` if that was given. Otherwise host and process. */
  readonly holder: string
  readonly leaseUntil?: Date
  /** The outcome that later callers get. For a failed claim, its error. */
  readonly outcome?: unknown
  /** The error of the last attempt that ended with an error that may pass. */
  readonly lastError?: { readonly name: string; readonly message: string }
  /** The name of the operation, for a claim of an operation. */
  readonly operation?: string
  readonly input?: unknown
  /** The scope of the singleton, as the caller named it, for a claim of a slot. `key` is then the period. */
  readonly singleton?: string
  /** The names of the recorded steps. */
  readonly steps: readonly string[]
  readonly createdAt: Date
  readonly completedAt?: Date
  readonly expiresAt?: Date
}

/** The columns that `readRecord` reads, for a claim `c` and the time `t.now`. */
export const recordColumns = `
  c.scope::text as scope, c.key::text as key, c.id::text as id, c.status::text as status, c.attempt::text as attempt,
  c.lost::text as lost, c.fence::text as fence, c.holder::text as holder,
  case
    when c.status <> 'pending' then null
    when c.lease_until = '-infinity' then 'released'
    when c.lease_until <= t.now then 'abandoned'
    when c.holder = 'nobody' then 'resting'
    else 'held'
  end::text as held,
  case when c.lease_until > '-infinity' then {schema}.micros(c.lease_until) end::text as lease_until,
  c.outcome::text as outcome, c.last_error::text as last_error, c.input::text as input,
  (select pg_catalog.json_agg(s.step order by s.step) from pg_catalog.jsonb_object_keys(c.steps) s (step))::text as steps,
  {schema}.micros(c.created_at)::text as created_at, {schema}.micros(c.completed_at)::text as completed_at,
  {schema}.micros(c.expires_at)::text as expires_at`

/** Makes a record of a row with `recordColumns`. */
export function readRecord(row: TextRow): ClaimRecord {
  const scope = `${row.scope}`
  const operation = operationOf(scope)
  const singleton = singletonOf(scope)
  const input = row.input ? JSON.parse(row.input) : undefined
  const steps: string[] = row.steps ? JSON.parse(row.steps) : []
  return {
    scope,
    key: `${row.key}`,
    id: `${row.id}`,
    status: row.status as ClaimStatus,
    ...(row.held ? { held: row.held as NonNullable<ClaimRecord['held']> } : {}),
    attempt: Number(row.attempt),
    lost: Number(row.lost),
    fence: Number(row.fence),
    holder: singleton !== undefined && input?.by ? input.by : nameHolder(`${row.holder}`),
    ...(row.lease_until ? { leaseUntil: dateFromMicros(row.lease_until) } : {}),
    ...(row.outcome ? { outcome: JSON.parse(row.outcome) } : {}),
    ...(row.last_error ? { lastError: readError(row.last_error) } : {}),
    ...(operation === undefined ? {} : { operation }),
    ...(singleton === undefined ? { ...(row.input ? { input } : {}) } : { singleton }),
    steps,
    createdAt: dateFromMicros(`${row.created_at}`),
    ...(row.completed_at ? { completedAt: dateFromMicros(row.completed_at) } : {}),
    ...(row.expires_at ? { expiresAt: dateFromMicros(row.expires_at) } : {}),
  }
}

function readError(text: string): { readonly name: string; readonly message: string } {
  const { name, message } = JSON.parse(text)
  return { name, message }
}
