import type { Tx } from '../postgres/executor.js'
import type { Json } from '../postgres/json.js'
import type { PageOptions } from '../postgres/page.js'
import type { FieldPath } from './kv-input.js'

/** What stands under a key. */
export interface KvEntry<T = Json> {
  readonly value: T
  /** Grows with each write of the key, not by one. */
  readonly version: number
  /** From then on there is no such key; absent: it never expires. */
  readonly expiresAt?: Date
}

export interface KvListedEntry<T = Json> extends KvEntry<T> {
  readonly key: string
}

export type KvClaim<T = Json> =
  | { readonly ok: true; readonly version: number }
  /** Another caller was first, and stored `current`. */
  | { readonly ok: false; readonly current: KvEntry<T> }

export type KvSwap<T = Json> =
  | { readonly ok: true; readonly version: number }
  /** What is there instead; undefined: nothing. */
  | { readonly ok: false; readonly current: KvEntry<T> | undefined }

export type KvDeletion<T = Json> =
  | { readonly ok: true }
  /** What is there; undefined: nothing. */
  | { readonly ok: false; readonly current: KvEntry<T> | undefined }

/** Some fields of `T`, also of the objects in it: what `kv.patch` takes if you name the type of the value. */
export type KvFields<T> = T extends object
  ? { readonly [K in keyof T]?: T[K] extends readonly unknown[] ? T[K] : KvFields<T[K]> }
  : T

export interface KvReadOptions {
  /** Your own open transaction, to read what it has written. */
  readonly tx?: Tx | undefined
}

export interface KvWriteOptions {
  /** How long it lives, by the database's clock; `Infinity` for ever. */
  readonly ttlMs?: number | undefined
  /** Your own open transaction, with which this is committed or rolled back. */
  readonly tx?: Tx | undefined
}

export interface KvDeleteOptions {
  /** Delete this version alone. */
  readonly ifVersion?: number | undefined
  readonly tx?: Tx | undefined
}

export interface KvPatchOptions extends KvWriteOptions {
  /** Fields to take away: names, or paths such as `['checks', 'risk']`. Done first, so a field given too is replaced whole. */
  readonly remove?: readonly FieldPath[] | undefined
}

/** Which keys. */
export interface KvFilter {
  /** Only keys that begin with this. Default: all. */
  readonly prefix?: string | undefined
}

export interface KvListOptions extends PageOptions {
  /** Your own open transaction, to read what it wrote. */
  readonly tx?: Tx | undefined
}
