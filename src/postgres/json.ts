import { types } from 'node:util'
import { InvalidInputError, InvalidOutcomeError } from '../errors.js'
import { nameGiven, showError, showGiven } from './name-given.js'
import { refuseValue } from './refuse-value.js'

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

/** The type of a part that cannot be stored as JSON. No value has it, so the compiler reports that part, with the reason. */
export interface NotStorable<Reason extends string> {
  readonly [notStorable]: Reason
}

/**
 * `T` where JSON can represent it. A part that JSON cannot represent has the type `NotStorable`, so passing it does not compile. Such parts are a bigint, a
 * function or a symbol, also as the method of a class instance, a Map, a Set, and binary data. A `Date` and other objects with `toJSON` are storable.
 * `unknown` is storable too, because Dibs checks the value when it stores it.
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

/** An array of any length is written as such: a mapped type is not lazy there, and would not end for a recursive type. */
type StorableParts<T> = T extends readonly (infer Item)[]
  ? number extends T['length']
    ? readonly Storable<Item>[]
    : { [K in keyof T]: Storable<T[K]> }
  : T extends object
    ? { [K in keyof T]: K extends TypeOnly ? T[K] : Storable<T[K]> }
    : T

/** The maximum size of a stored value, as JSON in UTF-8. */
export const MAX_JSON_BYTES = 1_048_576

/** PostgreSQL limits the depth by its stack, far above this. */
const MAX_DEPTH = 500

/** The number of characters that a message shows of either end of a long path. */
const MAX_PATH_END = 200

/** Deeper data takes the careful path, which recognizes a cycle. */
const PLAIN_DEPTH = 20

/** Says where in a value, and why, it cannot be stored as JSON. */
class JsonProblem extends Error {
  constructor(
    /** The path from the value down: `.items[3].photo`. Empty for the value itself. */
    readonly path: string,
    /** The reason, in a form that follows the path: `is a Map, which JSON cannot store`. */
    readonly problem: string,
  ) {
    super(problem)
  }
}

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

/** Writes what a function returned as JSON. A refusal is `InvalidOutcomeError`, since the function made the mistake, not the caller. */
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

const tooLarge = (maxBytes: number, size: string): JsonProblem =>
  new JsonProblem(
    '',
    `must be at most ${maxBytes} bytes as JSON, and is ${size}; store it elsewhere and keep its address here`,
  )

/** The fast path: data in which `JSON.stringify` changes nothing, as most data is. Undefined for all other values. */
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

/** Checks every value. Throws a `JsonProblem` with the path of the first value that JSON would destroy. */
function writeCarefully(value: unknown, maxBytes: number): string {
  const copy = new JsonCopier(maxBytes).run(value)
  if (copy === undefined) throw new JsonProblem('', `must be JSON, not ${nameGiven(value)}`)
  try {
    return JSON.stringify(copy)
  } catch {
    throw tooLarge(maxBytes, 'longer than the longest string')
  }
}

/** Makes a copy in which every `toJSON` was called once and every value was checked. */
class JsonCopier {
  readonly #maxBytes: number
  /** The objects around the current value, to recognize a cycle. */
  readonly #around = new Set<object>()
  readonly #path: (string | number)[] = []
  /** A lower bound of the size so far. An object whose parts share parts is far larger as JSON than in memory. */
  #bytes = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  run(value: unknown): unknown {
    try {
      return this.#copy(value, '')
    } catch (error) {
      if (error instanceof JsonProblem) throw error
      // The error comes from code of the value itself: a getter, a `toJSON`, a proxy.
      throw this.#problem(`cannot be read: ${showError(error)}`)
    }
  }

  #copy(value: unknown, key: string): unknown {
    if (++this.#bytes > this.#maxBytes) throw tooLarge(this.#maxBytes, 'more')
    if (typeof value === 'object' && (ArrayBuffer.isView(value) || types.isAnyArrayBuffer(value)))
      throw this.#unstorable(value, 'Convert it first, for example to a base64 string')
    const data = this.#callToJson(value, key)
    if (typeof data === 'object' && data !== null) return this.#copyObject(data)
    if (data === null && types.isDate(value))
      throw this.#problem('is an invalid Date, which JSON cannot store')
    if (typeof data === 'string') this.#checkString(data)
    if (typeof data === 'number' && !Number.isFinite(data))
      throw this.#problem(`is ${data}, which JSON cannot store. Use null or a string`)
    if (typeof data === 'bigint') throw this.#unstorable(data, 'Convert it first, for example to a string')
    if (typeof data === 'symbol' || typeof data === 'function') throw this.#unstorable(data, 'Leave it out')
    return data
  }

  /** Calls `toJSON` as `JSON.stringify` does, also for a bigint if the application has added a `toJSON` to that type. */
  #callToJson(value: unknown, key: string): unknown {
    if (value === null || (typeof value !== 'object' && typeof value !== 'bigint')) return value
    const toJson: unknown = Reflect.get(Object(value), 'toJSON')
    return typeof toJson === 'function' ? toJson.call(value, key) : value
  }

  #copyObject(value: object): unknown {
    if (types.isBoxedPrimitive(value)) return this.#copy(value.valueOf(), '')
    if (this.#around.has(value))
      throw this.#problem('refers back to an object that contains it, which JSON cannot store')
    if (this.#around.size === MAX_DEPTH)
      throw new JsonProblem('', `must not be nested deeper than ${MAX_DEPTH} levels`)
    this.#around.add(value)
    const copy = Array.isArray(value) ? this.#copyArray(value) : this.#copyProperties(value)
    this.#around.delete(value)
    return copy
  }

  #copyArray(values: readonly unknown[]): unknown[] {
    const copy: unknown[] = []
    for (let n = 0; n < values.length; n++) {
      this.#path.push(n)
      const inner = this.#copy(values[n], `${n}`)
      if (inner === undefined)
        throw this.#problem('is undefined, which JSON cannot store in an array. Use null')
      copy.push(inner)
      this.#path.pop()
    }
    return copy
  }

  #copyProperties(value: object): object {
    const names = Object.keys(value)
    if (hidesData(value, names)) throw this.#unstorable(value, 'Convert it first, to plain data')
    const copy: Record<string, unknown> = {}
    for (const name of names) {
      this.#path.push(name)
      this.#checkString(name)
      this.#bytes += name.length + '"":'.length
      const inner = this.#copy(Reflect.get(value, name), name)
      // An assignment would set the prototype.
      if (name === '__proto__') Object.defineProperty(copy, name, { value: inner, enumerable: true })
      else copy[name] = inner
      this.#path.pop()
    }
    return copy
  }

  #checkString(text: string): void {
    if (text.includes('\0')) throw this.#problem('must not hold a NUL character')
    if (/\p{Surrogate}/u.test(text))
      throw this.#problem('must not hold half of a surrogate pair, which is no character')
  }

  #unstorable(value: unknown, advice: string): JsonProblem {
    return this.#problem(`is ${nameGiven(value)}, which JSON cannot store. ${advice}`)
  }

  #problem(problem: string): JsonProblem {
    return new JsonProblem(shortenPath(this.#path.map(showKey).join('')), problem)
  }
}

/** The two ends of a path say the most about where a value is. */
const shortenPath = (path: string): string =>
  path.length > 2 * MAX_PATH_END ? `${path.slice(0, MAX_PATH_END)}…${path.slice(-MAX_PATH_END)}` : path

const showKey = (key: string | number): string =>
  typeof key === 'string' && /^[A-Za-z_$][\w$]{0,99}$/.test(key) ? `.${key}` : `[${showGiven(key)}]`

/** True if the data of an object is not in properties that JSON would write. */
function hidesData(value: object, names: readonly string[]): boolean {
  const isKnown =
    types.isMap(value) ||
    types.isSet(value) ||
    types.isRegExp(value) ||
    types.isPromise(value) ||
    types.isNativeError(value) ||
    value instanceof Error
  if (isKnown || names.length > 0) return isKnown
  // An instance of a class without properties keeps its data in private fields, as URLSearchParams, Headers and Blob do.
  // `Object.prototype` is recognized by having no prototype itself, since that of another realm is another object.
  const prototype = Object.getPrototypeOf(value)
  return prototype !== null && Object.getPrototypeOf(prototype) !== null
}
