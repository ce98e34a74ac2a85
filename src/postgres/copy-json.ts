import { types } from 'node:util'
import { nameGiven, showError, showGiven } from '../options/name-given.js'

/** PostgreSQL limits the depth by its stack, far above this. */
const MAX_DEPTH = 500

/** The number of characters that a message shows of either end of a long path. */
const MAX_PATH_END = 200

/** The reason why a value cannot be stored as JSON, and the path to the part that cannot. */
export class JsonProblem extends Error {
  constructor(
    /** The path from the value down: `.items[3].photo`. Empty for the value itself. */
    readonly path: string,
    /** The reason, in a form that follows the path: `is a Map, which JSON cannot store`. */
    readonly problem: string,
  ) {
    super(problem)
  }
}

export const tooLarge = (maxBytes: number, size: string): JsonProblem =>
  new JsonProblem(
    '',
    `must be at most ${maxBytes} bytes as JSON, and is ${size}; store it elsewhere and keep its address here`,
  )

/** Checks every value. Throws a `JsonProblem` with the path of the first value that JSON would destroy. */
export function writeCarefully(value: unknown, maxBytes: number): string {
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

/** Keeps both ends of a long path, which say the most about where a value is. */
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
  // A class instance without properties keeps its data in private fields, as URLSearchParams, Headers and Blob do.
  // `Object.prototype` is recognized by having no prototype itself, because each realm has its own.
  const prototype = Object.getPrototypeOf(value)
  return prototype !== null && Object.getPrototypeOf(prototype) !== null
}
