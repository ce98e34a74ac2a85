import type { Tx } from '../postgres/executor.js'
import type { Json } from '../postgres/json.js'
import type { PageOptions } from '../postgres/page.js'
import type { FieldPath } from './kv-input.js'

/** The entry of a key. */
export interface KvEntry<T = Json> {
  readonly value: T
  /** Grows with each write of the key, by steps of any size. */
  readonly version: number
  /** The key does not exist from this time on. Missing if the key never expires. */
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
  /** `current` is the entry that is there instead, or undefined if there is none. */
  | { readonly ok: false; readonly current: KvEntry<T> | undefined }

export type KvDeletion<T = Json> =
  | { readonly ok: true }
  /** `current` is the entry that is there, or undefined if there is none. */
  | { readonly ok: false; readonly current: KvEntry<T> | undefined }

/** Some fields of `T`, also of its nested objects. `kv.patch` takes them if you name the type of the value. */
export type KvFields<T> = T extends readonly unknown[]
  ? T
  : T extends object
    ? { readonly [K in keyof T]?: KvFields<T[K]> }
    : T

export interface KvReadOptions {
  /** Your own open transaction, to read what it has written. */
  readonly tx?: Tx | undefined
}

export interface KvWriteOptions {
  /** How long the entry lives, by the database's clock. `Infinity` means forever. */
  readonly ttlMs?: number | undefined
  /** Your own open transaction. The write commits or rolls back with it. */
  readonly tx?: Tx | undefined
}

export interface KvDeleteOptions {
  /** Delete only this version. */
  readonly ifVersion?: number | undefined
  readonly tx?: Tx | undefined
}

export interface KvPatchOptions extends KvWriteOptions {
  /** Fields to remove: names, or paths such as `['checks', 'risk']`. Removal comes first, so a removed field that is also given is replaced as a whole. */
  readonly remove?: readonly FieldPath[] | undefined
}

/** Selects the keys that `kv.list` returns. */
export interface KvFilter {
  /** Only keys that begin with this. Default: all. */
  readonly prefix?: string | undefined
}

export interface KvListOptions extends PageOptions {
  /** Your own open transaction, to read what it wrote. */
  readonly tx?: Tx | undefined
}
