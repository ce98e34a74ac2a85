import type { Json } from '../../postgres/json.js'

/** The entry of a key. */
export interface KvEntry<T = Json> {
  readonly value: T
  /** Grows with each write of the key, by steps of any size. */
  readonly version: number
  /** From this time on, the key does not exist. Missing if the key never expires. */
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
