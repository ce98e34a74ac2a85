import { createHash } from 'node:crypto'
import { InvalidInputError } from '../errors.js'
import { nameGiven } from './name-given.js'
import { refuseValue } from './refuse-value.js'

/** In UTF-8. Two of these, a scope and a key, fit into one index entry of PostgreSQL. */
export const MAX_KEY_BYTES = 512

/**
 * Makes one key of several parts. A `:` or `%` inside a part is escaped, so that no two lists of parts make the same key,
 * and `dibs.kv.list({ prefix: 'order:' })` finds what begins with the part `order` and nothing else.
 *
 * @example
 * const key = keyOf('order', 42, 'a:b') // 'order:42:a%3Ab'
 */
export function keyOf(...parts: readonly (string | number | bigint)[]): string {
  if (parts.length === 0) throw new InvalidInputError('parts', 'must not be empty')
  const key = parts.map(escapePart).join(':')
  checkKey('parts', key)
  return key
}

function escapePart(part: unknown): string {
  if (typeof part === 'bigint' || Number.isSafeInteger(part)) return String(part)
  if (typeof part !== 'string') {
    const given = typeof part === 'number' ? String(part) : nameGiven(part)
    throw new InvalidInputError('parts', `must be texts or whole numbers, not ${given}`)
  }
  if (part === '') throw new InvalidInputError('parts', 'must not have an empty text among them')
  return part.replaceAll('%', '%25').replaceAll(':', '%3A')
}

/** Refuses what PostgreSQL could not store as it is, or not in an index. */
export function checkKey(field: string, key: unknown): string {
  if (typeof key !== 'string') throw new InvalidInputError(field, `must be a text, not ${nameGiven(key)}`)
  if (key === '') throw new InvalidInputError(field, 'must not be empty')
  const bytes = Buffer.byteLength(key)
  if (bytes > MAX_KEY_BYTES)
    throw new InvalidInputError(
      field,
      `must be at most ${MAX_KEY_BYTES} bytes long, and is ${bytes}; hash it`,
    )
  checkCharacters(field, key)
  return key
}

export function checkCharacters(field: string, text: string): void {
  if (text.includes('\0')) throw refuseValue(field, 'must not hold a NUL character')
  if (/\p{Surrogate}/u.test(text))
    throw refuseValue(field, 'must not hold half of a surrogate pair, which is no character')
}

/**
 * The scope of an operation. It begins with an empty part, which no caller of `once` can name.
 */
export function scopeOfOperation(name: string): string {
  return checkKey('operation', `:${escapePart(checkKey('operation', name))}`)
}

/** The scope of a singleton: two empty parts, which no caller can name and no operation has. */
export function scopeOfSingleton(name: string): string {
  return checkKey('scope', `::${name}`)
}

/** What a singleton was named, whose scope it is. */
export function singletonOf(scope: string): string | undefined {
  return scope.startsWith('::') ? scope.slice(2) : undefined
}

/** The name of the operation that a scope belongs to. */
export function operationOf(scope: string): string | undefined {
  return scope.startsWith(':') && !scope.startsWith('::')
    ? scope.slice(1).replaceAll('%3A', ':').replaceAll('%25', '%')
    : undefined
}

/** As `dibs.claims` wants it. */
export function addressOf(scope: string, key: string): object {
  const singleton = singletonOf(scope)
  if (singleton !== undefined) return { singleton, key }
  const operation = operationOf(scope)
  return operation === undefined ? { scope, key } : { operation, key }
}

/** A scope as a reader would name it. */
export function nameScope(scope: string): string {
  const operation = operationOf(scope)
  if (operation !== undefined) return `of operation "${operation}"`
  const singleton = singletonOf(scope)
  return singleton === undefined ? `in scope "${scope}"` : `of singleton "${singleton}"`
}

/** A key without what is different in each: `order:42` and `order:43` are both `order:*`. For metrics and logs. */
export function templateOf(key: string): string {
  const singleton = singletonOf(key)
  if (singleton !== undefined) return `singleton:${templateOf(singleton)}`
  if (key.startsWith(':')) return `operation${key}`
  const [name, ...values] = key.split(':')
  return [name, ...values.map(() => '*')].join(':')
}

/** Tells keys apart in a log without showing them: they may hold a name or an address. */
export function hashKey(key: string): string {
  return createHash('sha256').update(key).digest('hex').slice(0, 16)
}
