import { InProgressError, InvalidInputError } from '../errors.js'
import { lifetimeText } from '../options/check-duration.js'
import { nameGiven } from '../options/name-given.js'
import { lifetime } from '../options/number-options.js'
import { unchecked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { boolean, oneOf } from '../options/value-options.js'
import type { Database } from '../postgres/database.js'
import { type Storable, toJson } from '../postgres/json.js'
import { checkKey, nameScope, scopeOfOperation, scopeOfSingleton } from '../postgres/key.js'
import { orBusy } from '../postgres/or-busy.js'
import { ANY_TEXT, decodeCursor, type Page, type PageOptions, pageOptions, toPage } from '../postgres/page.js'
import { statement } from '../postgres/statement.js'
import { readHeld } from '../postgres/this-process.js'
import { type ClaimRecord, readRecord, recordColumns } from './claim-record.js'
import { type ClaimStatus, readResult } from './claim-result.js'
import { decideClaim } from './claim-statements.js'
import { GIVEN_UP } from './once/once-call.js'
import { readScope, type Scope } from './read-scope.js'

/** The address of a claim: its key, and its scope or the name of its operation or singleton. The key of a singleton is the period. */
export type ClaimAddress =
  | {
      readonly scope: Scope
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
      readonly singleton: Scope
      readonly key: string
      readonly scope?: undefined
      readonly operation?: undefined
    }
  /** A claim of `claims.list`. */
  | ClaimRecord

/** Selects the claims that `claims.list` returns. */
export interface ClaimFilter {
  /** Claims of this scope and of scopes below it: `orders` also finds `['orders', tenant]`. */
  readonly scope?: Scope | undefined
  readonly operation?: string | undefined
  /** Slots of this singleton and of singletons below it, as with `scope`. */
  readonly singleton?: Scope | undefined
  readonly status?: ClaimStatus | undefined
  /** Only pending claims in this state. */
  readonly held?: ClaimRecord['held'] | undefined
  /** True: only failed claims that were given up, after too many attempts without a recorded outcome. */
  readonly gaveUp?: boolean | undefined
}

/** Expired claims count as absent, as everywhere. */
const live = `
  from {schema}.claim c, (select {schema}.clock() as now) t
  where coalesce(c.expires_at > t.now, true)`

const getClaim = statement(
  `select ${recordColumns} ${live} and c.scope = $1::text::text and c.key = $2::text::text`,
  { readOnly: true },
)

/** A scope includes the scopes below it, which begin with the scope and `:`. The next character after `:` is `;`. */
const listClaims = statement(
  `select * from (
     select ${recordColumns} ${live}
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

const DAY_MS = 24 * 3_600_000

export const claimFilter = optionTable<ClaimFilter>()('dibs.claims.list, filter', {
  scope: unchecked(), // by `readScope`
  operation: unchecked(),
  singleton: unchecked(),
  status: oneOf(['pending', 'active', 'failed']),
  held: oneOf(['held', 'resting', 'abandoned', 'released']),
  gaveUp: boolean({ default: false }),
})

export interface ForgetClaimOptions {
  /** True: removes a claim that is held, too. Default false. */
  readonly force?: boolean | undefined
}

export const forgetClaimOptions = optionTable<ForgetClaimOptions>()('dibs.claims.forget', {
  force: boolean({ default: false }),
})

export interface ResolveClaimOptions {
  /** How long the outcome is kept. After that, the key is new. `Infinity` keeps it forever. Default 24 hours. */
  readonly keepMs?: number | undefined
}

export const resolveClaimOptions = optionTable<ResolveClaimOptions>()('dibs.claims.resolve', {
  keepMs: lifetime({ default: DAY_MS }),
})

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
    const { scope, operation, singleton, status, held, gaveUp } = claimFilter.read(filter)
    const { limit, cursor } = pageOptions.read(page)
    const names = { scope, operation, singleton }
    const wanted = checkOneName(names) ? scopeOf(names) : null
    const from = decodeCursor('claims', cursor, [ANY_TEXT, ANY_TEXT]) ?? [null, null]
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
  async forget(address: ClaimAddress, options: ForgetClaimOptions = {}): Promise<ClaimDecision> {
    const { force } = forgetClaimOptions.read(options)
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
    options: ResolveClaimOptions = {},
  ): Promise<ClaimDecision> {
    const keepMs = lifetimeText(resolveClaimOptions.read(options).keepMs)
    if (verdict === 'retry') return await this.#decide(address, 'retry', null, keepMs, false)
    if (typeof verdict !== 'object' || verdict === null || !('outcome' in verdict))
      throw new InvalidInputError('verdict', "must be 'retry' or { outcome }")
    const outcome = verdict.outcome === undefined ? null : toJson('outcome', verdict.outcome)
    return await this.#decide(address, 'done', outcome, keepMs, false)
  }

  async #decide(
    address: ClaimAddress,
    action: 'forget' | 'retry' | 'done',
    outcome: string | null,
    keepMs: string | null,
    force: boolean,
  ): Promise<ClaimDecision> {
    const [scope, key] = readAddress(address)
    const subject = `key "${key}" ${nameScope(scope)}`
    const values = [scope, key, action, outcome, keepMs, String(force)]
    const [row] = await orBusy(
      `a transaction that works on ${subject}`,
      () => this.#database.send(decideClaim, values),
      { retryAfterMs: 1_000 },
    )
    const result = readResult(row)
    const { state, leftMs, id } = result
    if (state === 'in progress') {
      const retryAfterMs = leftMs ?? 1_000
      const force = action === 'forget' ? ', or pass force: true' : ''
      const message = `Another caller works on ${subject} just now, so nothing was changed. Call again in ${retryAfterMs} ms${force}.`
      throw new InProgressError(subject, retryAfterMs, id, { ...readHeld(result), message })
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
  // A record of `claims.list` has the stored scope in addition to the name of its operation or singleton.
  const isRecord = checkOneName(named) && scopeOf(named) === scope
  const names = isRecord ? named : { scope, ...named }
  checkOneName(names)
  return [scopeOf(names), checkKey('key', address.key)]
}

/** Returns false if the caller names no claims. Refuses two ways to name them. */
function checkOneName(names: object): boolean {
  const [first, second] = Object.entries(names).filter(([, value]) => value !== undefined)
  if (second)
    throw new InvalidInputError(second[0], `must not be given with \`${first?.[0]}\`: give one of them`)
  return first !== undefined
}

/** The scope of claims, in whichever way they are named. */
function scopeOf(named: {
  readonly scope?: unknown
  readonly operation?: string | undefined
  readonly singleton?: unknown
}): string {
  if (named.operation !== undefined) return scopeOfOperation(named.operation)
  return named.singleton === undefined ? readScope(named.scope) : scopeOfSingleton(readScope(named.singleton))
}
