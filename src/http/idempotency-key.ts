/** What stands in the header, read; or what is wrong with it. */
export type ReadKey = { readonly key: string } | { readonly problem: string }

const MAX_LENGTH = 255

/** RFC 8941: a String in quotes, with parameters that say nothing to us. */
const QUOTED =
  /^"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"(?:[ \t]*;[ \t]*[a-z*][a-z0-9_.*-]*(?:=(?:"(?:[^"\\]|\\.)*"|[^",;\s]+))?)*$/

/** What many clients send in place of it. Without quotes a comma parts two values, and a semicolon begins parameters. */
const BARE = /^[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+$/

/**
 * Reads the value of an `Idempotency-Key` header. Several of them arrive as one value with commas, which is refused: which one
 * would be meant?
 */
export function readIdempotencyKey(value: string, pattern?: RegExp): ReadKey {
  const text = value.trim()
  if (text === '' || text === '""') return { problem: 'is empty' }
  const quoted = QUOTED.exec(text)?.[1]?.replace(/\\(["\\])/g, '$1')
  const key = quoted ?? (BARE.test(text) ? text : undefined)
  if (key === undefined) return { problem: explain(text) }
  if (key.length > MAX_LENGTH)
    return { problem: `has ${key.length} characters, and at most ${MAX_LENGTH} are allowed` }
  if (pattern && !matches(pattern, key))
    return { problem: 'does not have the form that this service asks for' }
  return { key }
}

/** Also with a pattern that remembers where it was (`/g`, `/y`). */
function matches(pattern: RegExp, key: string): boolean {
  pattern.lastIndex = 0
  return pattern.test(key)
}

function explain(text: string): string {
  if (/[^\x20-\x7e]/.test(text)) return 'has characters other than printable ASCII'
  if (text.includes(',') && !/^"[^"]*"$/.test(text)) return 'has several values; send one'
  return 'is neither a text in quotes, as RFC 8941 has it, nor a bare word'
}
