import { InvalidInputError } from '../../errors.js'
import { lifetimeText } from '../../options/check-duration.js'
import type { Database } from '../../postgres/database.js'
import { emit } from '../../postgres/events.js'
import type { Tx } from '../../postgres/executor.js'
import { type Json, MAX_JSON_BYTES, type Storable, type Stored, toJson } from '../../postgres/json.js'
import { checkKey, hashKey, templateOf } from '../../postgres/key.js'
import { trackJoinedMethods } from '../../postgres/open-calls.js'
import { orBusy } from '../../postgres/or-busy.js'
import { ANY_TEXT, decodeCursor, type Page, toPage } from '../../postgres/page.js'
import type { Statement } from '../../postgres/statement.js'
import { dateFromMicros, type TextRow, type TextValue, textArray } from '../../postgres/text-values.js'
import {
  checkFields,
  checkPaths,
  checkVersion,
  type KvDeleteOptions,
  type KvFilter,
  type KvListOptions,
  type KvPatchOptions,
  type KvReadOptions,
  type KvWriteOptions,
  kvDeleteOptions,
  kvFilter,
  kvListOptions,
  kvPatchOptions,
  kvReadOptions,
  kvWriteOptions,
} from './kv-options.js'
import * as statements from './kv-statements.js'
import type { KvClaim, KvDeletion, KvEntry, KvFields, KvListedEntry, KvSwap } from './kv-types.js'

/** How long a call outside of a transaction waits for another call that writes the same key. */
const WAIT_MS = 5_000

/** The maximum number of keys that `getMany` takes. */
const MAX_KEYS = 1_000

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
   * Stores a value if the key has none. One of any number of callers stores its value (`ok: true`). The others get that entry
   * as `current`.
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
    const { ttlMs, tx } = kvWriteOptions.read(options)
    const values = [checkKey('key', key), toJson('value', value), writeTtl(ttlMs)]
    const row = await this.#send(statements.setIfAbsent, values, key, tx)
    if (row.outcome === 'claimed') return { ok: true, version: Number(row.version) }
    this.#emitConflict('setIfAbsent', key)
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
    const { tx } = kvReadOptions.read(options)
    const [row] = await this.#database.send(statements.get, [checkKey('key', key)], { tx })
    return row && toEntry(row)
  }

  /**
   * Returns the entries of many keys in one round trip, in the order of `keys`. At most 1,000 keys.
   *
   * @example
   * const [ann, bob] = await dibs.kv.getMany<{ name: string }>(['user:ann', 'user:bob'])
   * console.log(ann?.value.name ?? 'nobody', bob?.value.name ?? 'nobody')
   */
  async getMany<T = Json>(
    keys: readonly string[],
    options: KvReadOptions = {},
  ): Promise<(KvEntry<T> | undefined)[]> {
    const { tx } = kvReadOptions.read(options)
    if (!Array.isArray(keys) || keys.length > MAX_KEYS) {
      throw new InvalidInputError('keys', `must be an array of at most ${MAX_KEYS} keys; ask in parts`)
    }
    // A copy: the caller may change its array during the read.
    const wanted = Array.from(keys, (key, n) => checkKey(`keys[${n}]`, key))
    if (wanted.length === 0) return []
    const rows = await this.#database.send(statements.getMany, [textArray([...new Set(wanted)])], { tx })
    const found = new Map(rows.map((row) => [row.key, toEntry<T>(row)]))
    return wanted.map((key) => found.get(key))
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
    const { ttlMs, tx } = kvWriteOptions.read(options)
    const values = [checkKey('key', key), toJson('value', value), writeTtl(ttlMs)]
    const row = await this.#send(statements.set, values, key, tx)
    return { version: Number(row.version) }
  }

  /**
   * Stores a value if the key still has this version, which means that no caller has written since you read it. Otherwise
   * returns the entry that is there, as `current`. Keeps the expiry unless `ttlMs` is given. `Infinity` removes the expiry.
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
    const { ttlMs, tx } = kvWriteOptions.read(options)
    const seen = checkVersion('version', version)
    const values = [checkKey('key', key), seen, toJson('value', value), ...writeNewTtl(ttlMs)]
    const row = await this.#send(statements.compareAndSet, values, key, tx)
    if (row.outcome === 'set') return { ok: true, version: Number(row.version) }
    this.#emitConflict('compareAndSet', key)
    return { ok: false, current: toCurrent(row) }
  }

  /**
   * Deletes a key. With `ifVersion`, deletes only that version, so that the newer value of another caller is kept.
   *
   * @example
   * const claim = await dibs.kv.setIfAbsent('report:today', { owner: 'pod-1' })
   * if (claim.ok) await dibs.kv.delete('report:today', { ifVersion: claim.version })
   */
  async delete<T = Json>(key: string, options: KvDeleteOptions = {}): Promise<KvDeletion<T>> {
    const { ifVersion, tx } = kvDeleteOptions.read(options)
    const version = ifVersion === undefined ? null : String(ifVersion)
    const row = await this.#send(statements.remove, [checkKey('key', key), version], key, tx)
    if (row.outcome === 'deleted') return { ok: true }
    if (version !== null) this.#emitConflict('delete', key)
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
    const { remove, ttlMs, tx } = kvPatchOptions.read(options)
    const change = [checkKey('key', key), checkFields(fields), checkPaths('remove', remove)]
    const values = [...change, ...writeNewTtl(ttlMs), String(MAX_JSON_BYTES)]
    const row = await this.#send(statements.patch, values, key, tx)
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
    const { prefix } = kvFilter.read(filter)
    const { limit, cursor, tx } = kvListOptions.read(page)
    const [after = ''] = decodeCursor('kv', cursor, [ANY_TEXT]) ?? []
    // One more than `limit` shows whether there is a next page.
    const values = [prefix, after, String(limit + 1)]
    const end = endOfPrefix(prefix)
    const rows = await (end === undefined
      ? this.#database.send(statements.scanToEnd, values, { tx })
      : this.#database.send(statements.scanRange, [...values, end], { tx }))
    return toPage('kv', rows, limit, (row) => [`${row.key}`], toListedEntry<T>)
  }

  /** Sends a statement that calls a function and returns one row. */
  async #send(statement: Statement, values: readonly TextValue[], key: string, tx?: Tx): Promise<TextRow> {
    const waitMs = tx === undefined ? String(WAIT_MS) : null
    const send = () => this.#database.send(statement, [...values, waitMs], { tx })
    const [row] = await orBusy(`a turn at the key ${templateOf(key)}`, send, { tx })
    return row ?? {}
  }

  #emitConflict(call: 'setIfAbsent' | 'compareAndSet' | 'delete', key: string): void {
    const { origin } = this.#database
    emit('dibs:kv.conflict', { ...origin, call, template: templateOf(key), keyHash: hashKey(key) })
  }
}

trackJoinedMethods(Kv, 'kv', {
  ...{ get: 1, getMany: 1, list: 1, delete: 1 },
  ...{ set: 2, setIfAbsent: 2, patch: 2, compareAndSet: 3 },
})

/** The lifetime of a new entry. Null means forever. */
const writeTtl = (ttlMs: number | undefined): string | null =>
  ttlMs === undefined ? null : lifetimeText(ttlMs)

/** The new lifetime of an existing entry. The first value says whether the entry keeps its expiry. */
const writeNewTtl = (ttlMs: number | undefined): readonly ['true' | 'false', string | null] => [
  ttlMs === undefined ? 'true' : 'false',
  writeTtl(ttlMs),
]

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

const LAST_CODE_POINT = 0x10ffff

/**
 * Returns the end of the range of strings that begin with a prefix: the smallest string that is greater than all of them. Undefined if there is none.
 *
 * UTF-8 sorts by code point. JavaScript sorts by UTF-16 code unit, so this function increments the last code point.
 */
function endOfPrefix(prefix: string): string | undefined {
  const points = [...prefix].map((character) => character.codePointAt(0) ?? 0)
  while (points.at(-1) === LAST_CODE_POINT) points.pop()
  const last = points.pop()
  if (last === undefined) return undefined
  // Surrogates are not characters: after U+D7FF comes U+E000.
  return String.fromCodePoint(...points, last === 0xd7ff ? 0xe000 : last + 1)
}
