import { BusyError, InProgressError, InvalidInputError } from '../errors.js'
import { checkLifetime } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { type Storable, toJson } from '../postgres/json.js'
import {
  checkKey,
  nameScope,
  operationOf,
  scopeOfOperation,
  scopeOfSingleton,
  singletonOf,
} from '../postgres/key.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import {
  ANY_TEXT,
  checkPageLimit,
  decodeCursor,
  PAGE_OPTIONS,
  type Page,
  type PageOptions,
  toPage,
} from '../postgres/page.js'
import { statement } from '../postgres/statement.js'
import { dateFromMicros, type TextRow } from '../postgres/text-values.js'
import { nameHolder, readHeld } from '../postgres/this-process.js'
import { decideClaim } from './claim-statements.js'
import { GIVEN_UP } from './once-call.js'
import { readScope } from './once-spec.js'
import { type ClaimStatus, readTold } from './told-claim.js'

/** A stored claim, as operators see it. */
export interface ClaimRecord {
  readonly scope: string
  readonly key: string
  readonly id: string
  /** `pending`: begun. `active`: has its outcome. `failed`: ended for good without one. */
  readonly status: ClaimStatus
  /**
   * The state of a pending claim. `held`: a caller works on it. `resting`: it failed after a takeover and will be tried again. `abandoned`: its holder is
   * gone, or did not know what it had done. `released`: its holder gave it back.
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

/** The address of a claim: its key, and its scope or the name of its operation or singleton. The key of a singleton is the period. */
export type ClaimAddress =
  | {
      readonly scope: string | readonly (string | number | bigint)[]
      readonly key: string
      readonly operation?: undefined
      readonly singleton?: undefined
    }
  | {
      readonly operation: string
      readonly key: string
      readonly scope?: undefined
      readonly singleton?: undefined
    }
  | {
      readonly singleton: string | readonly (string | number | bigint)[]
      readonly key: string
      readonly scope?: undefined
      readonly operation?: undefined
    }
  /** A claim of `claims.list`. */
  | ClaimRecord

/** Selects the claims that `claims.list` returns. */
export interface ClaimFilter {
  /** Claims of this scope and of scopes below it: `orders` also finds `['orders', tenant]`. */
  readonly scope?: string | readonly (string | number | bigint)[] | undefined
  readonly operation?: string | undefined
  /** Slots of this singleton and of singletons below it, as with `scope`. */
  readonly singleton?: string | readonly (string | number | bigint)[] | undefined
  readonly status?: ClaimStatus | undefined
  /** Only pending claims in this state. */
  readonly held?: ClaimRecord['held'] | undefined
  /** True: only failed claims that were given up, after too many attempts without a recorded outcome. */
  readonly gaveUp?: boolean | undefined
}

const columns = `
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

/** Expired claims count as absent, as everywhere. */
const live = `
  from {schema}.claim c, (select {schema}.clock() as now) t
  where coalesce(c.expires_at > t.now, true)`

const getClaim = statement(
  `select ${columns} ${live} and c.scope = $1::text::text and c.key = $2::text::text`,
  { readOnly: true },
)

/** A scope includes the scopes below it, which begin with the scope and `:`. The next character after `:` is `;`. */
const listClaims = statement(
  `select * from (
     select ${columns} ${live}
       and ($1::text::text is null or c.scope = $1::text::text
         or c.scope > $1::text::text || ':' and c.scope < $1::text::text || ';')
       and ($2::text::text is null or c.status = $2::text::{schema}.claim_status)
       and ($3::text::text is null or (c.scope, c.key) > ($3::text::text, $4::text::text))
       and ($5::text::text is null or c.status = 'failed' and (c.outcome ->> 'name' = $5::text::text))
   ) found
   where $6::text::text is null or held = $6::text::text
   order by scope collate "C", key collate "C"
   limit $7::text::integer`,
  { readOnly: true },
)

const statuses: readonly unknown[] = [undefined, 'pending', 'active', 'failed']
const holds: readonly unknown[] = [undefined, 'held', 'resting', 'abandoned', 'released']
const DAY_MS = 24 * 3_600_000

/** Result of `claims.forget` and `claims.resolve`. */
export interface ClaimDecision {
  /** True if this call made the change. */
  readonly ok: boolean
}

/** Stored claims, for operators: `dibs.claims`. */
export class Claims {
  readonly #database: Database

  constructor(database: Database) {
    this.#database = database
  }

  /**
   * Returns a claim, or undefined if there is none.
   *
   * @example
   * const claim = await dibs.claims.get({ scope: 'payments', key: `order-${id}` })
   * if (claim?.held === 'abandoned') console.log(`attempt ${claim.attempt} has no recorded outcome`)
   */
  async get(address: ClaimAddress): Promise<ClaimRecord | undefined> {
    const [row] = await this.#database.send(getClaim, readAddress(address))
    return row && readRecord(row)
  }

  /**
   * Lists claims, ordered by scope and key.
   *
   * @example
   * const filter = { status: 'pending', held: 'abandoned' } as const
   * const { items, nextCursor } = await dibs.claims.list(filter, { limit: 50 })
   * const rest = nextCursor ? await dibs.claims.list(filter, { cursor: nextCursor }) : undefined
   */
  async list(filter: ClaimFilter = {}, page: PageOptions = {}): Promise<Page<ClaimRecord>> {
    checkOptions(filter, ['scope', 'operation', 'singleton', 'status', 'held', 'gaveUp'])
    checkOptions(page, PAGE_OPTIONS)
    const { scope, operation, singleton, status, held, gaveUp = false } = filter
    if (!statuses.includes(status))
      throw new InvalidInputError('status', "must be 'pending', 'active' or 'failed'")
    if (!holds.includes(held))
      throw new InvalidInputError('held', "must be 'held', 'resting', 'abandoned' or 'released'")
    if (typeof gaveUp !== 'boolean')
      throw new InvalidInputError('gaveUp', `must be true or false, not ${showGiven(gaveUp)}`)
    const ways = { scope, operation, singleton }
    const wanted = checkOneWay(ways) ? scopeOf(ways) : null
    const limit = checkPageLimit(page.limit)
    const from = decodeCursor('claims', page.cursor, [ANY_TEXT, ANY_TEXT]) ?? [null, null]
    const values = [
      wanted,
      status ?? null,
      ...from,
      gaveUp ? GIVEN_UP : null,
      held ?? null,
      String(limit + 1),
    ]
    const rows = await this.#database.send(listClaims, values)
    return toPage('claims', rows, limit, (row) => [`${row.scope}`, `${row.key}`], readRecord)
  }

  /**
   * Removes a claim, so that its key is new. `ok` is false if there is no such claim. If the claim is held, `forget` throws `InProgressError`.
   *
   * With `force: true`, `forget` removes a held claim too. Its holder learns of the loss at its next write. What the holder did outside of the database
   * remains.
   *
   * @example
   * const { ok } = await dibs.claims.forget({ scope: 'payments', key: `order-${id}` })
   */
  async forget(
    address: ClaimAddress,
    options: { readonly force?: boolean | undefined } = {},
  ): Promise<ClaimDecision> {
    checkOptions(options, ['force'])
    const { force = false } = options
    if (typeof force !== 'boolean')
      throw new InvalidInputError('force', `must be true or false, not ${nameGiven(force)}`)
    return await this.#decide(address, 'forget', null, null, force)
  }

  /**
   * Decides about a claim whose last attempt has no recorded outcome. With `{ outcome }`, the work was done, and callers get this outcome from now on.
   * With `'retry'`, the work was not done, and the next caller runs it.
   *
   * `ok` is false if there is no such claim, or if it already has its outcome. If the claim is held, `resolve` throws `InProgressError`.
   *
   * @example
   * const found = await bank.find(id)
   * await dibs.claims.resolve({ operation: 'charge', key }, found ? { outcome: found } : 'retry')
   */
  async resolve<T = undefined>(
    address: ClaimAddress,
    verdict: 'retry' | { readonly outcome: T & Storable<T> },
    options: { readonly keepMs?: number | undefined } = {},
  ): Promise<ClaimDecision> {
    checkOptions(options, ['keepMs'])
    const keepMs = checkLifetime('keepMs', options.keepMs ?? DAY_MS)
    if (verdict === 'retry') return await this.#decide(address, 'retry', null, keepMs, false)
    if (typeof verdict !== 'object' || verdict === null || !('outcome' in verdict))
      throw new InvalidInputError('verdict', "must be 'retry' or { outcome }")
    const outcome = verdict.outcome === undefined ? null : toJson('outcome', verdict.outcome)
    return await this.#decide(address, 'done', outcome, keepMs, false)
  }

  async #decide(
    address: ClaimAddress,
    what: 'forget' | 'retry' | 'done',
    outcome: string | null,
    keepMs: string | null,
    force: boolean,
  ): Promise<ClaimDecision> {
    const [scope, key] = readAddress(address)
    const subject = `key "${key}" ${nameScope(scope)}`
    const startedAt = performance.now()
    const values = [scope, key, what, outcome, keepMs, String(force)]
    const rows = await this.#database.send(decideClaim, values).catch((error) => {
      if (!hasWaitedInVain(error)) throw error
      throw new BusyError(`a transaction that works on ${subject}`, performance.now() - startedAt, 1_000, {
        cause: error,
      })
    })
    const told = readTold(rows[0])
    const { state, leftMs, id } = told
    if (state === 'in progress') {
      const retryAfterMs = leftMs ?? 1_000
      const force = what === 'forget' ? ', or pass force: true' : ''
      const message = `Another caller works on ${subject} just now, so nothing was changed. Call again in ${retryAfterMs} ms${force}.`
      throw new InProgressError(subject, retryAfterMs, id, { ...readHeld(told), message })
    }
    return { ok: state === 'done' }
  }
}

function readAddress(address: ClaimAddress): [string, string] {
  if (typeof address !== 'object' || address === null)
    throw new InvalidInputError(
      'address',
      `must be an object such as { scope, key }, not ${nameGiven(address)}`,
    )
  const { scope, operation, singleton } = address
  const named = { operation, singleton }
  // A record of `claims.list` has the stored scope beside the name of its operation or singleton.
  const isRecord = checkOneWay(named) && scopeOf(named) === scope
  const ways = isRecord ? named : { scope, ...named }
  checkOneWay(ways)
  return [scopeOf(ways), checkKey('key', address.key)]
}

/** Returns false if no way to name claims is given. Refuses two of them. */
function checkOneWay(ways: object): boolean {
  const [first, second] = Object.entries(ways).filter(([, value]) => value !== undefined)
  if (second)
    throw new InvalidInputError(second[0], `must not be given with \`${first?.[0]}\`: give one of them`)
  return first !== undefined
}

/** The scope of claims, however they are named. */
function scopeOf(named: {
  readonly scope?: unknown
  readonly operation?: string | undefined
  readonly singleton?: unknown
}): string {
  if (named.operation !== undefined) return scopeOfOperation(named.operation)
  return named.singleton === undefined ? readScope(named.scope) : scopeOfSingleton(readScope(named.singleton))
}

function readRecord(row: TextRow): ClaimRecord {
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
