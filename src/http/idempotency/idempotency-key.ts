import { type List, parseList } from 'structured-headers'

/** The key in the header, or the problem with it. */
export type ReadKey = { readonly key: string } | { readonly problem: string }

const MAX_LENGTH = 255

/** Many clients send a key without quotes. There, a comma separates two values and a semicolon starts parameters. */
const UNQUOTED = /^[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+$/

/**
 * Reads the value of an `Idempotency-Key` header: a String of RFC 9651, or a word without quotes. HTTP joins several headers of that name
 * with commas. Such a value is refused, because no key is the obvious one.
 */
export function readIdempotencyKey(value: string, pattern?: RegExp): ReadKey {
  const text = value.trim()
  if (text === '' || text === '""') return { problem: 'is empty' }
  const values = tryParse(text)
  const quoted = values?.length === 1 ? values[0]?.[0] : undefined
  const key = typeof quoted === 'string' ? quoted : UNQUOTED.test(text) ? text : undefined
  if (key === undefined) return { problem: explain(text, values) }
  if (key.length > MAX_LENGTH)
    return { problem: `has ${key.length} characters, and at most ${MAX_LENGTH} are allowed` }
  if (pattern && !matches(pattern, key))
    return { problem: 'does not have the form that this service requires' }
  return { key }
}

function tryParse(text: string): List | undefined {
  try {
    return parseList(text)
  } catch {
    return undefined
  }
}

/** Patterns with the flags `g` or `y` keep their last position. */
function matches(pattern: RegExp, key: string): boolean {
  pattern.lastIndex = 0
  return pattern.test(key)
}

function explain(text: string, values: List | undefined): string {
  if (/[^\x20-\x7e]/.test(text)) return 'has characters other than printable ASCII'
  const isList = values ? values.length > 1 : !text.startsWith('"') && text.includes(',')
  if (isList) return 'has several values; send one'
  return 'is neither a string in quotes, as RFC 9651 defines it, nor a single word'
}
