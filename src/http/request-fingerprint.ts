import { createHash } from 'node:crypto'
import { brotliDecompressSync, gunzipSync, inflateSync } from 'node:zlib'
import { writeCanonical } from '../claims/fingerprint.js'

/** The body of a request: as it came, or as a parser before us has left it. */
export type RequestBody = Uint8Array | { readonly value: unknown } | undefined

/** What of a request must be the same in a repetition. */
export interface FingerprintedRequest {
  readonly method: string
  /** Path and query, as they came. */
  readonly target: string
  /** Those that the application has chosen. */
  readonly headers: readonly (readonly [string, string])[]
  readonly type: string
  readonly encoding: string
  readonly body: RequestBody
}

/** What a compressed body may grow to before it is compared as it is. */
const MAX_INFLATED_BYTES = 64 * 1_048_576

const sha256 = (data: string | Uint8Array): string => createHash('sha256').update(data).digest('hex')

/** Tells two requests apart: the same for the same request, however its JSON is written, its parts are bounded, its bytes are packed. */
export async function fingerprintRequest(request: FingerprintedRequest): Promise<string> {
  const { method, target, headers, body } = request
  const canonical =
    body instanceof Uint8Array ? await canonicalBytes(request, body) : canonicalValue(body?.value)
  return sha256(JSON.stringify([method, target, headers, canonical]))
}

async function canonicalBytes({ type, encoding }: FingerprintedRequest, packed: Uint8Array): Promise<string> {
  const bytes = unpack(packed, encoding)
  if (bytes.length === 0) return canonicalValue(undefined)
  if (/^application\/(?:[^;]+\+)?json\b/i.test(type)) return canonicalJson(bytes)
  if (/^multipart\/form-data\b/i.test(type)) return await canonicalParts(bytes, type)
  return `bytes ${sha256(bytes)}`
}

function unpack(bytes: Uint8Array, encoding: string): Uint8Array {
  const limits = { maxOutputLength: MAX_INFLATED_BYTES }
  try {
    switch (encoding.trim().toLowerCase()) {
      case 'gzip':
      case 'x-gzip':
        return gunzipSync(bytes, limits)
      case 'deflate':
        return inflateSync(bytes, limits)
      case 'br':
        return brotliDecompressSync(bytes, limits)
    }
  } catch {
    // Whoever reads it will say what is wrong with it.
  }
  return bytes
}

/** A number that JavaScript would round: two of them could be taken for one. */
const LONG_NUMBER = /\d[\d.]{15,}|\d[eE][+-]?\d{3}/
const STRINGS = /"(?:[^"\\]|\\.)*"/g

function canonicalJson(bytes: Uint8Array): string {
  const text = Buffer.from(bytes).toString()
  if (!LONG_NUMBER.test(text.replace(STRINGS, ''))) {
    try {
      return `json ${writeCanonical(JSON.parse(text))}`
    } catch {
      // not JSON, or nested too deep
    }
  }
  return `bytes ${sha256(bytes)}`
}

/** By parts: the boundary between them is made anew each time. */
async function canonicalParts(bytes: Uint8Array, type: string): Promise<string> {
  try {
    const form = await new Response(new Uint8Array(bytes), { headers: { 'content-type': type } }).formData()
    const parts: unknown[] = []
    for (const [name, value] of form) {
      if (typeof value === 'string') parts.push([name, value])
      else parts.push([name, value.name, value.type, sha256(new Uint8Array(await value.arrayBuffer()))])
    }
    return `parts ${JSON.stringify(parts)}`
  } catch {
    return `bytes ${sha256(bytes)}`
  }
}

/** What a parser has made of a body; bytes in it by their hash. */
export function canonicalValue(value: unknown): string {
  return `json ${value === undefined ? 'null' : writeCanonical(plain(value, 0))}`
}

const MAX_DEPTH = 1_000

function plain(value: unknown, depth: number): unknown {
  if (value instanceof Uint8Array) return { bytes: sha256(value) }
  if (typeof value === 'bigint') return String(value)
  if (typeof value !== 'object' || value === null) return value ?? null
  if (depth > MAX_DEPTH) throw new RangeError(`The body is nested deeper than ${MAX_DEPTH} levels.`)
  if ('toJSON' in value && typeof value.toJSON === 'function') return plain(value.toJSON(), depth + 1)
  if (Array.isArray(value)) return value.map((inner) => plain(inner, depth + 1))
  const fields = Object.entries(value).filter(
    ([, inner]) => inner !== undefined && typeof inner !== 'function',
  )
  return Object.fromEntries(fields.map(([name, inner]) => [name, plain(inner, depth + 1)]))
}
