import { InvalidInputError, InvalidOutcomeError } from '../errors.js'
import { refuseValue } from '../options/refuse-value.js'
import { JsonProblem, tooLarge, writeCarefully } from './copy-json.js'

/** A value that JSON can represent. docs/kv.md has a table of what is stored, left out and refused. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json }

type AnyFunction = (...args: never[]) => unknown

/** A property that exists at compile time only, such as `~result` of a `JobRef`. */
type TypeOnly = `~${string}`

/** The type of a value after it was stored as JSON: a `Date` comes back as a string, an object without its functions. Plain data keeps its type. */
export type Stored<T> = T extends Json | undefined
  ? T // Before all others, since `Json` is recursive.
  : T extends { toJSON(...args: never[]): infer J }
    ? Stored<J>
    : T extends AnyFunction
      ? never
      : T extends readonly unknown[]
        ? { [K in keyof T]: Stored<T[K]> } // Without `as`, which would make an object of an array.
        : T extends object
          ? {
              [K in keyof T as T[K] extends AnyFunction ? never : K extends TypeOnly ? never : K]: Stored<
                T[K]
              >
            }
          : T

declare const notStorable: unique symbol

/** The type of a part that JSON cannot store. No value has this type, so the compiler reports that part, with the reason. */
export interface NotStorable<Reason extends string> {
  readonly [notStorable]: Reason
}

/**
 * `T` where JSON can represent it. A part that JSON cannot represent has the type `NotStorable`, so passing it does not
 * compile. Such parts are a bigint, a function, a symbol, a Map, a Set, binary data, and methods of a class instance. A
 * `Date` and other objects with `toJSON` are storable. `unknown` is storable too, because Dibs checks the value when it
 * stores it.
 *
 * @example
 * import type { Storable } from 'dibs'
 *
 * // A function that stores any value needs the type for its own parameter.
 * async function remember<T>(key: string, value: T & Storable<T>): Promise<void> {
 *   await dibs.kv.set<T>(key, value, { ttlMs: 60_000 })
 * }
 */
export type Storable<T> = unknown extends T
  ? T
  : T extends Json | undefined
    ? T
    : T extends bigint
      ? NotStorable<'JSON has no bigint. Convert it to a string.'>
      : T extends symbol
        ? NotStorable<'JSON has no symbols.'>
        : T extends AnyFunction
          ? NotStorable<'JSON has no functions.'>
          : T extends ArrayBufferView | ArrayBuffer
            ? NotStorable<'JSON has no binary data. Convert it to a base64 string.'>
            : T extends { toJSON(...args: never[]): unknown }
              ? T
              : T extends ReadonlyMap<unknown, unknown> | ReadonlySet<unknown> | RegExp | PromiseLike<unknown>
                ? NotStorable<'JSON cannot represent this object. Convert it to plain data.'>
                : StorableParts<T>

/** An array of any length is written out: a mapped type is not lazy there, and would not end for a recursive type. */
type StorableParts<T> = T extends readonly (infer Item)[]
  ? number extends T['length']
    ? readonly Storable<Item>[]
    : { [K in keyof T]: Storable<T[K]> }
  : T extends object
    ? { [K in keyof T]: K extends TypeOnly ? T[K] : Storable<T[K]> }
    : T

/** The maximum size of a stored value, as JSON in UTF-8. */
export const MAX_JSON_BYTES = 1_048_576

/** Deeper data takes the careful path, which recognizes a cycle. */
const PLAIN_DEPTH = 20

/**
 * Writes a value as JSON that PostgreSQL stores and returns unchanged. A value that `JSON.stringify` would silently destroy (a Map, an Error, NaN, a
 * function) is refused, with the path to it. Properties that are `undefined` and symbol keys are left out. An object with `toJSON` is stored as the value
 * that `toJSON` returns.
 */
export function toJson(field: string, value: unknown): string {
  try {
    return writeJson(value, MAX_JSON_BYTES)
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error
    throw new InvalidInputError(`${field}${error.path}`, error.problem)
  }
}

/** Writes a value as JSON for a column of a user's table. Dibs does not limit its size. */
export function toColumnJson(field: string, value: unknown): string {
  try {
    return writeJson(value, Number.POSITIVE_INFINITY)
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error
    throw refuseValue(`${field}${error.path}`, error.problem)
  }
}

/**
 * Writes the result of a function as JSON. A refusal is `InvalidOutcomeError`, because the function made the mistake,
 * not the caller.
 */
export function toOutcome(field: string, value: unknown): string {
  try {
    return writeJson(value, MAX_JSON_BYTES)
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error
    const { path, problem } = error
    // A field such as `the result of job 7 ("email")` is a phrase, to which no path can be added.
    if (path === '' || !field.startsWith('the ')) throw new InvalidOutcomeError(`${field}${path}`, problem)
    throw new InvalidOutcomeError(field, `cannot be stored: \`result${path}\` ${problem}`)
  }
}

function writeJson(value: unknown, maxBytes: number): string {
  const text = writePlain(value) ?? writeCarefully(value, maxBytes)
  const bytes = Buffer.byteLength(text)
  if (bytes > maxBytes) throw tooLarge(maxBytes, `${bytes}`)
  return text
}

/** The fast path: data that `JSON.stringify` does not change, as most data is. Undefined for all other values. */
function writePlain(value: unknown): string | undefined {
  try {
    if (!isPlain(value, PLAIN_DEPTH)) return undefined
    const text = JSON.stringify(value)
    return text.includes('\\u') && hasBadCharacter(text) ? undefined : text
  } catch {
    return undefined // The careful path finds the reason.
  }
}

function isPlain(value: unknown, depth: number): boolean {
  if (typeof value === 'string' || typeof value === 'boolean' || value === null) return true
  if (typeof value === 'number') return Number.isFinite(value)
  if (typeof value !== 'object' || depth === 0) return false
  if ('toJSON' in value) return isPlainDate(value)
  if (Array.isArray(value)) {
    for (let n = 0; n < value.length; n++) if (!isPlain(value[n], depth - 1)) return false
    return true
  }
  if (Object.getPrototypeOf(value) !== Object.prototype) return false
  for (const name in value) {
    const inner = (value as Record<string, unknown>)[name]
    if (inner !== undefined && !isPlain(inner, depth - 1)) return false
  }
  return true
}

const isPlainDate = (value: { toJSON: unknown }): boolean =>
  value instanceof Date && value.toJSON === Date.prototype.toJSON && !Number.isNaN(value.getTime())

/** `JSON.stringify` escapes NUL and halves of surrogate pairs, and nothing else that begins with `\u0000` or `\ud`. */
const hasBadCharacter = (json: string): boolean => /(?<!\\)(?:\\\\)*\\u(?:0000|d[89a-f]..)/.test(json)
