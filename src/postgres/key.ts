import { createHash } from 'node:crypto'
import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../options/name-given.js'
import { refuseValue } from '../options/refuse-value.js'

/** The longest key, in UTF-8. A scope and a key of this length fit into one index entry of PostgreSQL. */
export const MAX_KEY_BYTES = 512

/**
 * Makes one key of several parts. A `:` or `%` inside a part is escaped, so two different lists of parts never make the
 * same key. `dibs.kv.list({ prefix: 'order:' })` finds exactly the keys that begin with the part `order`.
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
    const shown = typeof part === 'number' ? String(part) : nameGiven(part)
    throw new InvalidInputError('parts', `must be strings or whole numbers, not ${shown}`)
  }
  if (part === '') throw new InvalidInputError('parts', 'must not contain an empty string')
  return part.replaceAll('%', '%25').replaceAll(':', '%3A')
}

/** Refuses a key that PostgreSQL would change, or could not store in an index. */
export function checkKey(field: string, key: unknown): string {
  if (typeof key !== 'string') throw new InvalidInputError(field, `must be a string, not ${nameGiven(key)}`)
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

/** A string that may be empty, such as a prefix. */
export function checkText(field: string, text: unknown): string {
  if (typeof text !== 'string') throw new InvalidInputError(field, `must be a string, not ${nameGiven(text)}`)
  checkCharacters(field, text)
  return text
}

export function checkCharacters(field: string, text: string): void {
  if (text.includes('\0')) throw refuseValue(field, 'must not hold a NUL character')
  if (/\p{Surrogate}/u.test(text))
    throw refuseValue(field, 'must not hold half of a surrogate pair, which is no character')
}

/** The scope of an operation. The scope begins with an empty part, which no caller of `once` can name. */
export function scopeOfOperation(name: string): string {
  return checkKey('operation', `:${escapePart(checkKey('operation', name))}`)
}

/** The scope of a singleton: two empty parts, which no caller can name and no operation has. */
export function scopeOfSingleton(name: string): string {
  return checkKey('scope', `::${name}`)
}

/** The name of the singleton that a scope belongs to. */
export function singletonOf(scope: string): string | undefined {
  return scope.startsWith('::') ? scope.slice(2) : undefined
}

/** The name of the operation that a scope belongs to. */
export function operationOf(scope: string): string | undefined {
  return scope.startsWith(':') && !scope.startsWith('::')
    ? scope.slice(1).replaceAll('%3A', ':').replaceAll('%25', '%')
    : undefined
}

/** The address of a claim, for `dibs.claims`. */
export function addressOf(scope: string, key: string): object {
  const singleton = singletonOf(scope)
  if (singleton !== undefined) return { singleton, key }
  const operation = operationOf(scope)
  return operation === undefined ? { scope, key } : { operation, key }
}

/** Describes a scope for a message. */
export function nameScope(scope: string): string {
  const operation = operationOf(scope)
  if (operation !== undefined) return `of operation "${operation}"`
  const singleton = singletonOf(scope)
  return singleton === undefined ? `in scope "${scope}"` : `of singleton "${singleton}"`
}

/** The first part of a key, and a star for each further part: `order:*`. For metrics and logs. */
export function templateOf(key: string): string {
  const singleton = singletonOf(key)
  if (singleton !== undefined) return `singleton:${templateOf(singleton)}`
  if (key.startsWith(':')) return `operation${key}`
  const [name, ...values] = key.split(':')
  return [name, ...values.map(() => '*')].join(':')
}

/** A hash that tells keys apart in a log. A key may hold a name or an address, so logs do not show it. */
export function hashKey(key: string): string {
  return createHash('sha256').update(key).digest('hex').slice(0, 16)
}
