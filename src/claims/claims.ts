import { InProgressError, InvalidInputError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import { nameGiven } from '../postgres/name-given.js'
import { statement } from '../postgres/statement.js'
import { dateFromMicros, type TextRow } from '../postgres/text-values.js'
import { checkOptions } from './check-options.js'
import type { ClaimStatus } from './claim-row.js'
import { checkKey, keyOf } from './key.js'
import { readScope } from './once-spec.js'

/** A claim, for a person to look at. */
export interface ClaimRecord {
  readonly scope: string
  readonly key: string
  readonly id: string
  /** `pending`: begun; `active`: has its outcome; `failed`: has ended for good without one. */
  readonly status: ClaimStatus
  /** Of a pending claim: someone works on it, nobody does any more, or its holder gave it back. */
  readonly held?: 'held' | 'abandoned' | 'released'
  readonly attempt: number
  /** Attempts that ended without a word. */
  readonly lost: number
  readonly fence: number
  /** Who works on it, or did last: host, process and call. */
  readonly holder: string
  readonly leaseUntil?: Date
  /** What is replayed; of a failed claim, its error. */
  readonly outcome?: unknown
  /** Of an operation. */
  readonly operation?: string
  readonly input?: unknown
  /** Names of the recovery points that were recorded. */
  readonly steps: readonly string[]
  readonly createdAt: Date
  readonly completedAt?: Date
  readonly expiresAt?: Date
}

/** Which claim: its scope, or the name of its operation, and its key. */
export type ClaimAddress =
  | { readonly scope: string | readonly (string | number | bigint)[]; readonly key: string }
  | { readonly operation: string; readonly key: string }

export interface ListClaimsOptions {
  readonly scope?: string | readonly (string | number | bigint)[] | undefined
  readonly operation?: string | undefined
  readonly status?: ClaimStatus | undefined
  /** Pending claims that are held, that nobody holds any more, or that were given back. */
  readonly held?: ClaimRecord['held'] | undefined
  /** Where the page before ended. */
  readonly after?: { readonly scope: string; readonly key: string } | undefined
  /** Default 100, at most 1,000. */
  readonly limit?: number | undefined
}

const micros = (column: string): string => `(extract(epoch from ${column}) * 1000000)::bigint::text`

const columns = `
  c.scope::text as scope, c.key::text as key, c.id::text as id, c.status::text as status, c.attempt::text as attempt,
  c.lost::text as lost, c.fence::text as fence, c.holder::text as holder,
  case
    when c.status <> 'pending' then null
    when c.lease_until = '-infinity' then 'released'
    when c.lease_until > t.now then 'held'
    else 'abandoned'
  end::text as held,
  case when c.lease_until > '-infinity' then ${micros('c.lease_until')} end as lease_until,
  c.outcome::text as outcome, c.input::text as input,
  (select pg_catalog.json_agg(s.step order by s.step) from pg_catalog.jsonb_object_keys(c.steps) s (step))::text as steps,
  ${micros('c.created_at')} as created_at, ${micros('c.completed_at')} as completed_at,
  ${micros('c.expires_at')} as expires_at`

/** What is expired counts as absent, as everywhere. */
const live = `
  from {schema}.claim c, (select {schema}.clock() as now) t
  where coalesce(not {schema}.claim_is_over(c, t.now), true)`

const getClaim = statement(
  `select ${columns} ${live} and c.scope = $1::text::text and c.key = $2::text::text`,
  { readOnly: true },
)

const listClaims = statement(
  `select * from (
     select ${columns} ${live}
       and ($1::text::text is null or c.scope = $1::text::text)
       and ($2::text::text is null or c.status = $2::text::{schema}.claim_status)
       and ($3::text::text is null or (c.scope, c.key) > ($3::text::text, $4::text::text))
   ) found
   where $5::text::text is null or held = $5::text::text
   order by scope collate "C", key collate "C"
   limit $6::text::integer`,
  { readOnly: true },
)

const forgetClaim = statement(`
  select f.state::text as state, f.left_ms::text as left_ms, (f.claim).id::text as id
  from {schema}.claim_forget($1::text::text, $2::text::text, $3::text::boolean) f`)

const statuses: readonly unknown[] = [undefined, 'pending', 'active', 'failed']
const holds: readonly unknown[] = [undefined, 'held', 'abandoned', 'released']

/** The claims that are kept, for operators. */
export class Claims {
  readonly #database: Database

  constructor(database: Database) {
    this.#database = database
  }

  /**
   * One claim, or undefined.
   *
   * @example
   * const claim = await dibs.claims.get({ scope: 'payments', key: `order-${id}` })
   * if (claim?.held === 'abandoned') console.log(`attempt ${claim.attempt} ended without a word`)
   */
  async get(address: ClaimAddress): Promise<ClaimRecord | undefined> {
    const [row] = await this.#database.send(getClaim, readAddress(address))
    return row && readRecord(row)
  }

  /**
   * Claims in order of scope and key, a page at a time; `next` is missing on the last page.
   *
   * @example
   * const { claims, next } = await dibs.claims.list({ status: 'pending', held: 'abandoned', limit: 50 })
   * const rest = next ? await dibs.claims.list({ status: 'pending', held: 'abandoned', after: next }) : undefined
   */
  async list(options: ListClaimsOptions = {}): Promise<{
    readonly claims: readonly ClaimRecord[]
    readonly next?: { readonly scope: string; readonly key: string }
  }> {
    checkOptions(options, ['scope', 'operation', 'status', 'held', 'after', 'limit'])
    const { scope, operation, status, held, after, limit = 100 } = options
    if (!statuses.includes(status))
      throw new InvalidInputError('status', "must be 'pending', 'active' or 'failed'")
    if (!holds.includes(held))
      throw new InvalidInputError('held', "must be 'held', 'abandoned' or 'released'")
    if (!(Number.isSafeInteger(limit) && limit >= 1 && limit <= 1_000))
      throw new InvalidInputError('limit', `must be a whole number from 1 to 1000, not ${limit}`)
    if (scope !== undefined && operation !== undefined)
      throw new InvalidInputError('operation', 'and `scope` are two ways to say which; give one')
    const wanted =
      operation === undefined ? (scope === undefined ? null : readScope(scope)) : scopeOfOperation(operation)
    const from = after ? [checkKey('after', after.scope), checkKey('after', after.key)] : [null, null]
    const values = [wanted, status ?? null, ...from, held ?? null, String(limit + 1)]
    const rows = await this.#database.send(listClaims, values)
    const claims = rows.slice(0, limit).map(readRecord)
    const last = claims.at(-1)
    return rows.length > limit && last ? { claims, next: { scope: last.scope, key: last.key } } : { claims }
  }

  /**
   * Removes a claim, so that its key is new; false if there is none. One that is held is `InProgressError`, unless `force` is
   * given: then its holder finds out at its next write, and what it has done outside is done.
   *
   * @example
   * await dibs.claims.forget({ scope: 'payments', key: `order-${id}` })
   */
  async forget(
    address: ClaimAddress,
    { force = false }: { readonly force?: boolean } = {},
  ): Promise<boolean> {
    const [scope, key] = readAddress(address)
    if (typeof force !== 'boolean')
      throw new InvalidInputError('force', `must be true or false, not ${nameGiven(force)}`)
    const [row] = await this.#database.send(forgetClaim, [scope, key, String(force)])
    if (row?.state !== 'in progress') return row?.state === 'forgotten'
    throw new InProgressError(`key "${key}" in scope "${scope}"`, Number(row.left_ms), `${row.id}`)
  }
}

/** The empty first part is what no caller of `once` can name. */
export function scopeOfOperation(name: string): string {
  return checkKey('operation', `:${keyOf(checkKey('operation', name))}`)
}

function readAddress(address: ClaimAddress): [string, string] {
  if (typeof address !== 'object' || address === null)
    throw new InvalidInputError(
      'address',
      `must be an object such as { scope, key }, not ${nameGiven(address)}`,
    )
  const key = checkKey('key', address.key)
  return ['operation' in address ? scopeOfOperation(address.operation) : readScope(address.scope), key]
}

function readRecord(row: TextRow): ClaimRecord {
  const scope = `${row.scope}`
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
    holder: `${row.holder}`,
    ...(row.lease_until ? { leaseUntil: dateFromMicros(row.lease_until) } : {}),
    ...(row.outcome ? { outcome: JSON.parse(row.outcome) } : {}),
    ...(scope.startsWith(':')
      ? { operation: scope.slice(1).replaceAll('%3A', ':').replaceAll('%25', '%') }
      : {}),
    ...(row.input ? { input: JSON.parse(row.input) } : {}),
    steps,
    createdAt: dateFromMicros(`${row.created_at}`),
    ...(row.completed_at ? { completedAt: dateFromMicros(row.completed_at) } : {}),
    ...(row.expires_at ? { expiresAt: dateFromMicros(row.expires_at) } : {}),
  }
}
