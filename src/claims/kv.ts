import { BusyError, DatabaseError, InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import type { Tx } from '../postgres/executor.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { type Json, MAX_JSON_BYTES, type Storable, type Stored, toJson } from '../postgres/json.js'
import { checkKey, hashKey, templateOf } from '../postgres/key.js'
import { trackJoinedMethods } from '../postgres/open-calls.js'
import { ANY_TEXT, checkPageLimit, decodeCursor, PAGE_OPTIONS, type Page, toPage } from '../postgres/page.js'
import type { Statement } from '../postgres/statement.js'
import { dateFromMicros, type TextRow, type TextValue, textArray } from '../postgres/text-values.js'
import {
  checkFields,
  checkNewTtl,
  checkPaths,
  checkTtl,
  checkVersion,
  MAX_KEYS,
  prefixRange,
} from './kv-input.js'
import * as statements from './kv-statements.js'
import type {
  KvClaim,
  KvDeleteOptions,
  KvDeletion,
  KvEntry,
  KvFields,
  KvFilter,
  KvListedEntry,
  KvListOptions,
  KvPatchOptions,
  KvReadOptions,
  KvSwap,
  KvWriteOptions,
} from './kv-types.js'

/** The SQLSTATE that the functions raise if a key was deleted and made again at each of their tries. */
const GAVE_UP = 'DB503'
const RETRY_MS = 100
/** How long a call outside of a transaction waits for another call that writes the same key. */
const WAIT_MS = 5_000
/**
 * Values by key, each with a version and an optional expiry: `dibs.kv`. Each call is one round trip, alone or in your `tx`.
 *
 * @example
 * const claim = await dibs.kv.setIfAbsent(keyOf('coupon', sku), { owner: 'ann' }, { ttlMs: 60_000 })
 * if (!claim.ok) console.log(`${claim.current.value.owner} was first`)
 */
export class Kv {
  readonly #database: Database

  constructor(database: Database) {
    this.#database = database
  }

  /**
   * Stores a value if the key has none. Of any number of callers, one stores its value (`ok: true`). The others get that entry as `current`.
   *
   * @example
   * const claim = await dibs.kv.setIfAbsent('report:today', { owner: 'pod-1' }, { ttlMs: 60_000 })
   * console.log(claim.ok ? 'ours' : `${claim.current.value.owner} has it`)
   */
  async setIfAbsent<T = Json>(
    key: string,
    value: T & Storable<T>,
    options: KvWriteOptions = {},
  ): Promise<KvClaim<Stored<T>>> {
    checkOptions(options, ['ttlMs', 'tx'])
    const values = [checkKey('key', key), toJson('value', value), checkTtl(options.ttlMs)]
    const row = await this.#ask(statements.setIfAbsent, values, key, options.tx)
    if (row.outcome === 'claimed') return { ok: true, version: Number(row.version) }
    this.#tellConflict('setIfAbsent', key)
    return { ok: false, current: toEntry(row) }
  }

  /**
   * Returns the entry of a key. Returns undefined if there is none, or if it has expired.
   *
   * @example
   * const entry = await dibs.kv.get<{ owner: string }>('report:today')
   * console.log(entry?.value.owner, entry?.expiresAt)
   */
  async get<T = Json>(key: string, options: KvReadOptions = {}): Promise<KvEntry<T> | undefined> {
    checkOptions(options, ['tx'])
    const [row] = await this.#database.send(statements.get, [checkKey('key', key)], options.tx)
    return row && toEntry(row)
  }

  /**
   * Returns the entries of many keys at once, in the order of `keys`. At most 1,000 keys.
   *
   * @example
   * const [ann, bob] = await dibs.kv.getMany<{ name: string }>(['user:ann', 'user:bob'])
   * console.log(ann?.value.name ?? 'nobody', bob?.value.name ?? 'nobody')
   */
  async getMany<T = Json>(
    keys: readonly string[],
    options: KvReadOptions = {},
  ): Promise<(KvEntry<T> | undefined)[]> {
    checkOptions(options, ['tx'])
    if (!Array.isArray(keys) || keys.length > MAX_KEYS) {
      throw new InvalidInputError('keys', `must be an array of at most ${MAX_KEYS} keys; ask in parts`)
    }
    const asked = keys.map((key, n) => checkKey(`keys[${n}]`, key))
    if (asked.length === 0) return []
    const rows = await this.#database.send(statements.getMany, [textArray([...new Set(asked)])], options.tx)
    const found = new Map(rows.map((row) => [row.key, toEntry<T>(row)]))
    return asked.map((key) => found.get(key))
  }

  /**
   * Stores a value, whatever is there: the last write wins. Without `ttlMs` the key never expires, even if its old entry had an expiry.
   *
   * @example
   * const { version } = await dibs.kv.set('feature:checkout', { on: true })
   */
  async set<T = Json>(
    key: string,
    value: T & Storable<T>,
    options: KvWriteOptions = {},
  ): Promise<{ version: number }> {
    checkOptions(options, ['ttlMs', 'tx'])
    const values = [checkKey('key', key), toJson('value', value), checkTtl(options.ttlMs)]
    const row = await this.#ask(statements.set, values, key, options.tx)
    return { version: Number(row.version) }
  }

  /**
   * Stores a value if the key still has this version, which means that nobody has written since you read it. Otherwise returns the entry that is there, as
   * `current`. Keeps the expiry unless `ttlMs` is given. `Infinity` removes the expiry.
   *
   * @example
   * const cart = await dibs.kv.get<{ items: string[] }>('cart:7')
   * if (cart) {
   *   const items = [...cart.value.items, sku]
   *   const swap = await dibs.kv.compareAndSet('cart:7', cart.version, { items })
   *   if (!swap.ok) console.log('somebody else changed it', swap.current)
   * }
   */
  async compareAndSet<T = Json>(
    key: string,
    version: number,
    value: T & Storable<T>,
    options: KvWriteOptions = {},
  ): Promise<KvSwap<Stored<T>>> {
    checkOptions(options, ['ttlMs', 'tx'])
    const seen = checkVersion('version', version)
    const values = [checkKey('key', key), seen, toJson('value', value), ...checkNewTtl(options.ttlMs)]
    const row = await this.#ask(statements.compareAndSet, values, key, options.tx)
    if (row.outcome === 'set') return { ok: true, version: Number(row.version) }
    this.#tellConflict('compareAndSet', key)
    return { ok: false, current: toCurrent(row) }
  }

  /**
   * Deletes a key. With `ifVersion`, deletes only that version, so that a value that another caller has written meanwhile is not deleted.
   *
   * @example
   * const claim = await dibs.kv.setIfAbsent('report:today', { owner: 'pod-1' })
   * if (claim.ok) await dibs.kv.delete('report:today', { ifVersion: claim.version })
   */
  async delete<T = Json>(key: string, options: KvDeleteOptions = {}): Promise<KvDeletion<T>> {
    checkOptions(options, ['ifVersion', 'tx'])
    const { ifVersion, tx } = options
    const version = ifVersion === undefined ? null : checkVersion('ifVersion', ifVersion)
    const row = await this.#ask(statements.remove, [checkKey('key', key), version], key, tx)
    if (row.outcome === 'deleted') return { ok: true }
    if (version !== null) this.#tellConflict('delete', key)
    return { ok: false, current: toCurrent(row) }
  }

  /**
   * Changes fields of an object, also in nested objects, and leaves the other fields as they are. A value that is not an object replaces the old value.
   * Returns the whole value, or undefined if there is no such key.
   *
   * Two patches of different fields cannot erase each other.
   *
   * @example
   * await dibs.kv.set('payment:7', { status: 'checking', checks: {} })
   * await dibs.kv.patch('payment:7', { checks: { risk: 'ok' } })
   * const both = await dibs.kv.patch('payment:7', { checks: { fraud: 'ok' } }, { remove: ['status'] })
   * console.log(both?.value) // { checks: { risk: 'ok', fraud: 'ok' } }
   */
  async patch<T = Json, F extends object = KvFields<T> & object>(
    key: string,
    fields: F & Storable<F>,
    options: KvPatchOptions = {},
  ): Promise<{ value: T; version: number } | undefined> {
    checkOptions(options, ['remove', 'ttlMs', 'tx'])
    const { remove = [], ttlMs, tx } = options
    const change = [checkKey('key', key), checkFields(fields), checkPaths(remove), ...checkNewTtl(ttlMs)]
    const row = await this.#ask(statements.patch, [...change, String(MAX_JSON_BYTES)], key, tx)
    if (row.outcome === 'patched') return { value: parse(row), version: Number(row.version) }
    if (row.outcome === 'absent') return undefined
    if (row.outcome === 'too large') {
      throw new InvalidInputError(
        'fields',
        `would make the value larger than ${MAX_JSON_BYTES} bytes as JSON`,
      )
    }
    throw new InvalidInputError(
      'key',
      `must be that of an object to be patched, and what is there is ${row.outcome === 'null' ? 'null' : `a JSON ${row.outcome}`}; use compareAndSet`,
    )
  }

  /**
   * Lists the keys that begin with a prefix, in byte order. Each page is read by itself: a key that is written between two pages may or may not be seen.
   *
   * @example
   * let cursor: string | undefined
   * do {
   *   const page = await dibs.kv.list<{ name: string }>({ prefix: 'user:' }, { cursor, limit: 500 })
   *   for (const { key, value } of page.items) console.log(key, value.name)
   *   cursor = page.nextCursor
   * } while (cursor !== undefined)
   */
  async list<T = Json>(filter: KvFilter = {}, page: KvListOptions = {}): Promise<Page<KvListedEntry<T>>> {
    checkOptions(filter, ['prefix'])
    checkOptions(page, [...PAGE_OPTIONS, 'tx'])
    const { prefix = '' } = filter
    const { from, below } = prefixRange(prefix)
    const limit = checkPageLimit(page.limit)
    const [after = ''] = decodeCursor('kv', page.cursor, [ANY_TEXT]) ?? []
    // One more than `limit` shows whether there is a next page.
    const values = [from, after, String(limit + 1)]
    const rows = await (below === undefined
      ? this.#database.send(statements.scanToEnd, values, page.tx)
      : this.#database.send(statements.scanRange, [...values, below], page.tx))
    return toPage('kv', rows, limit, (row) => [`${row.key}`], toListedEntry<T>)
  }

  /** Sends a statement that calls a function and returns one row. */
  async #ask(statement: Statement, values: readonly TextValue[], key: string, tx?: Tx): Promise<TextRow> {
    const startedAt = performance.now()
    try {
      const waitMs = tx === undefined ? String(WAIT_MS) : null
      const [row] = await this.#database.send(statement, [...values, waitMs], tx)
      return row ?? {}
    } catch (error) {
      const isGivenUp = error instanceof DatabaseError && error.sqlState === GAVE_UP
      const hasWaited = tx === undefined && hasWaitedInVain(error)
      if (!isGivenUp && !hasWaited) throw error
      const waitedMs = Math.max(1, performance.now() - startedAt)
      throw new BusyError(`a turn at the key ${templateOf(key)}`, waitedMs, RETRY_MS, { cause: error })
    }
  }

  #tellConflict(call: 'setIfAbsent' | 'compareAndSet' | 'delete', key: string): void {
    const { origin } = this.#database
    emit('dibs:kv.conflict', { ...origin, call, template: templateOf(key), keyHash: hashKey(key) })
  }
}

trackJoinedMethods(Kv, 'kv', {
  ...{ get: 1, getMany: 1, list: 1, delete: 1 },
  ...{ set: 2, setIfAbsent: 2, patch: 2, compareAndSet: 3 },
})

/** Callers agree on the type of a stored value. Nothing can check it here. */
function parse<T>(row: TextRow): T {
  return JSON.parse(`${row.value}`)
}

function toEntry<T>(row: TextRow): KvEntry<T> {
  const entry = { value: parse<T>(row), version: Number(row.version) }
  return typeof row.expires === 'string' ? { ...entry, expiresAt: dateFromMicros(row.expires) } : entry
}

function toListedEntry<T>(row: TextRow): KvListedEntry<T> {
  return { key: `${row.key}`, ...toEntry<T>(row) }
}

function toCurrent<T>(row: TextRow): KvEntry<T> | undefined {
  return row.outcome === 'absent' ? undefined : toEntry(row)
}
