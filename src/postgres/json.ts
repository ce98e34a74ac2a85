import { InvalidInputError, InvalidOutcomeError } from '../errors.js'
import { nameGiven } from './name-given.js'

/** What JSON can say. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json }

/**
 * What comes back of a value that was stored as JSON: a `Date` as its text, an object without its functions. For plain data
 * it is the same type.
 */
export type Stored<T> = T extends Json | undefined
  ? T // first of all, since `Json` itself would never end
  : T extends { toJSON(): infer J }
    ? Stored<J>
    : T extends (...args: never[]) => unknown
      ? never
      : T extends readonly unknown[]
        ? { [K in keyof T]: Stored<T[K]> } // without `as`, which would make an object of an array
        : T extends object
          ? { [K in keyof T as T[K] extends (...args: never[]) => unknown ? never : K]: Stored<T[K]> }
          : T

/** The most that a value, or an outcome, may take as JSON, in UTF-8. */
export const MAX_JSON_BYTES = 1_048_576

/** PostgreSQL's own limit depends on its stack; this is well within. */
const MAX_DEPTH = 500

/**
 * A value as JSON text that PostgreSQL takes and gives back the same. What JSON.stringify would change without a word (NaN,
 * a Map, a function) is refused; an absent field (`undefined`) is absent.
 */
export function toJson(field: string, value: unknown): string {
  const refuse = (problem: string): Error => new InvalidInputError(field, problem)
  const plain = plainText(value)
  if (plain !== undefined) {
    checkText(plain, refuse)
    return plain
  }
  let text: string | undefined
  let problem: string | undefined
  try {
    text = JSON.stringify(value, function (this: unknown, _: string, inner: unknown) {
      problem ??= findProblem(inner, Array.isArray(this))
      return inner
    })
  } catch (error) {
    // A bigint, or a circle.
    problem ??= findAt(value)?.problem
    if (!problem)
      throw refuse(`must be JSON: ${error instanceof Error ? error.message.split('\n')[0] : error}`)
  }
  if (problem !== undefined) {
    const { path = '', problem: said = problem } = findAt(value) ?? {}
    throw refuse(`must be JSON, and holds ${said}${path === '' ? '' : ` at \`${path}\``}`)
  }
  if (text === undefined) throw refuse(`must be JSON, not ${nameGiven(value)}`)
  checkText(text, refuse)
  return text
}

/** How deep data is looked through before it is taken for something else: a circle, say. */
const PLAIN_DEPTH = 20

/** Of data with nothing in it that `JSON.stringify` would change, or ask: most often so, and then that need not look at each value, which takes it several times as long. */
function plainText(value: unknown): string | undefined {
  try {
    return isPlain(value, PLAIN_DEPTH) ? JSON.stringify(value) : undefined
  } catch {
    return undefined // whatever is wrong is found out with more care
  }
}

function isPlain(value: unknown, depth: number): boolean {
  if (typeof value === 'string' || typeof value === 'boolean' || value === null) return true
  if (typeof value === 'number') return Number.isFinite(value)
  if (typeof value !== 'object' || depth === 0 || 'toJSON' in value) return false
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

interface Found {
  readonly path: string
  readonly problem: string
}

/** Where the first of them is. Looked for only once it is known that there is one. */
function findAt(value: unknown): Found | undefined {
  try {
    return findDeep(value)
  } catch {
    return undefined // a getter that throws
  }
}

function findDeep(
  value: unknown,
  path = '',
  isInArray = false,
  above: readonly unknown[] = [],
): Found | undefined {
  const problem = findProblem(value, isInArray)
  if (problem) return { path, problem }
  if (typeof value !== 'object' || value === null || above.includes(value) || above.length > MAX_DEPTH)
    return undefined
  for (const [name, inner] of Object.entries(value)) {
    const found = findDeep(inner, path === '' ? name : `${path}.${name}`, Array.isArray(value), [
      ...above,
      value,
    ])
    if (found) return found
  }
  return undefined
}

function findProblem(value: unknown, isInArray: boolean): string | undefined {
  if (typeof value === 'number') return Number.isFinite(value) ? undefined : String(value)
  if (typeof value === 'bigint' || typeof value === 'symbol' || typeof value === 'function')
    return nameGiven(value)
  if (value instanceof Map || value instanceof Set) return nameGiven(value)
  if (value === undefined && isInArray) return 'undefined in an array'
  return undefined
}

function checkText(text: string, refuse: (problem: string) => Error): void {
  const bytes = Buffer.byteLength(text)
  if (bytes > MAX_JSON_BYTES) {
    throw refuse(
      `must be at most ${MAX_JSON_BYTES} bytes as JSON, and is ${bytes}; store it elsewhere and keep its address here`,
    )
  }
  // JSON.stringify escapes these two, and nothing else that begins with `\u0000` or `\ud`.
  const escaped = text.match(/(?<!\\)(?:\\\\)*\\u(0000|d[89a-f]..)/)?.[1]
  if (escaped === '0000') throw refuse('must not hold a NUL character')
  if (escaped) throw refuse('must not hold half of a surrogate pair, which is no character')
  // Each level takes two characters at least.
  if (text.length > 2 * MAX_DEPTH && depthOf(text) > MAX_DEPTH)
    throw refuse(`must not be nested deeper than ${MAX_DEPTH} levels`)
}

function depthOf(text: string): number {
  let depth = 0
  let deepest = 0
  for (const [mark] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[{\]}]/g)) {
    if (mark === '[' || mark === '{') deepest = Math.max(deepest, ++depth)
    else if (mark === ']' || mark === '}') depth--
  }
  return deepest
}

/** The same for what a function returned: not the caller's mistake. */
export function toOutcome(field: string, value: unknown): string {
  try {
    return toJson(field, value)
  } catch (error) {
    if (!(error instanceof InvalidInputError)) throw error
    throw new InvalidOutcomeError(field, error.message.slice(field.length + 3, -1), { cause: error })
  }
}
