import { createHash } from 'node:crypto'
import { promisify } from 'node:util'
import { brotliDecompress, gunzip, inflate } from 'node:zlib'
import { writeCanonical } from '../../claims/once/fingerprint.js'
import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import type { RequestBody } from './exchange.js'
import { bodyTooDeep, requestTooLarge } from './refusals.js'

/** The parts of a request that must be the same in a repetition. */
export interface FingerprintedRequest {
  readonly method: string
  /** Path and query. */
  readonly target: string
  /** The headers that the option `fingerprintHeaders` names. */
  readonly headers: readonly (readonly [string, string])[]
  readonly type: string
  readonly encoding: string
  readonly body: RequestBody
  /** The maximum size of a decompressed body. */
  readonly maxBytes: number
}

const sha256 = (data: string | Uint8Array): string => createHash('sha256').update(data).digest('hex')

/** Returns the same hash for the same request, whatever its JSON formatting, its multipart boundary or its compression. */
export async function fingerprintRequest(request: FingerprintedRequest): Promise<string> {
  const { method, target, headers, body } = request
  const canonical =
    body instanceof Uint8Array ? await canonicalBytes(request, body) : await canonicalValue(body?.value)
  return sha256(JSON.stringify([method, target, headers, canonical]))
}

async function canonicalBytes(
  { type, encoding, maxBytes }: FingerprintedRequest,
  compressed: Uint8Array,
): Promise<string> {
  const bytes = await decompress(compressed, encoding, maxBytes)
  if (bytes.length === 0) return EMPTY
  if (/^application\/(?:[^;]+\+)?json\b/i.test(type)) return canonicalJson(bytes)
  if (/^multipart\/form-data\b/i.test(type)) return await canonicalForm(bytes, type)
  return `bytes ${sha256(bytes)}`
}

const EMPTY = 'json null'

const decompressors: Readonly<Record<string, (bytes: Uint8Array, limits: object) => Promise<Buffer>>> = {
  gzip: promisify(gunzip),
  'x-gzip': promisify(gunzip),
  deflate: promisify(inflate),
  br: promisify(brotliDecompress),
}

async function decompress(bytes: Uint8Array, encoding: string, maxBytes: number): Promise<Uint8Array> {
  try {
    const name = encoding.trim().toLowerCase()
    const decompressor = Object.hasOwn(decompressors, name) ? decompressors[name] : undefined
    return decompressor ? await decompressor(bytes, { maxOutputLength: Math.max(1, maxBytes) }) : bytes
  } catch (error) {
    if ((error as { code?: string }).code === 'ERR_BUFFER_TOO_LARGE') throw requestTooLarge(maxBytes)
    return bytes // decompressed before, or broken, which its reader will report
  }
}

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

function canonicalJson(bytes: Uint8Array): string {
  try {
    const text = decoder.decode(bytes)
    const value: unknown = JSON.parse(text)
    if (!hasLongNumber(text)) return `json ${writeCanonical(value)}`
  } catch {
    // not UTF-8, not JSON, or nested too deep: the bytes are compared
  }
  return `bytes ${sha256(bytes)}`
}

/** True if the JSON has a number that JavaScript may round. Two different requests could look the same then. */
function hasLongNumber(json: string): boolean {
  let digits = 0
  for (let at = 0; at < json.length; at++) {
    const code = json.charCodeAt(at)
    if (code === QUOTE) {
      at = endOfString(json, at)
      digits = 0
    } else if (digits > 0 && (code | 32) === EXPONENT) {
      if (/^[eE][+-]?\d{3}/.test(json.slice(at, at + 5))) return true
    } else if ((code >= ZERO && code <= ZERO + 9) || code === POINT) {
      if (++digits > 15) return true
    } else digits = 0
  }
  return false
}

const QUOTE = 0x22
const POINT = 0x2e
const ZERO = 0x30
const EXPONENT = 0x65
const BACKSLASH = 0x5c

/** The position of the quote that ends the string which starts here. */
function endOfString(json: string, start: number): number {
  for (let at = start + 1; at < json.length; at++) {
    const code = json.charCodeAt(at)
    if (code === BACKSLASH) at++
    else if (code === QUOTE) return at
  }
  return json.length
}

/** Compares the parts, because clients choose a new boundary for each request. */
async function canonicalForm(bytes: Uint8Array, type: string): Promise<string> {
  try {
    const form = await new Response(new Uint8Array(bytes), { headers: { 'content-type': type } }).formData()
    const parts = await partsOf(form)
    // Invalid UTF-8 was replaced by U+FFFD, so different bytes could look the same.
    if (!parts.flat().some((text) => text?.includes('\ufffd'))) return `parts ${JSON.stringify(parts)}`
  } catch {
    // not a valid form: the bytes are compared
  }
  return `bytes ${sha256(bytes)}`
}

async function partsOf(form: FormData): Promise<(readonly [string, ...(string | undefined)[]])[]> {
  const parts: (readonly [string, ...(string | undefined)[]])[] = []
  for (const [name, value] of form) {
    if (typeof value === 'string') parts.push([name, value])
    else
      parts.push([name, undefined, value.name, value.type, sha256(new Uint8Array(await value.arrayBuffer()))])
  }
  return parts
}

/** A body as a parser left it. Bytes in it are replaced by their hash. */
async function canonicalValue(value: unknown): Promise<string> {
  if (value === undefined || value === null) return EMPTY
  if (value instanceof FormData) return `parts ${JSON.stringify(await partsOf(value))}`
  if (value instanceof URLSearchParams) return `pairs ${JSON.stringify([...value])}`
  return `json ${writeCanonical(plain(value, []))}`
}

const MAX_DEPTH = 1_000

/** @param parents the objects that contain this value */
function plain(value: unknown, parents: object[]): unknown {
  // These names are unlikely in the JSON of a client.
  if (value instanceof ArrayBuffer) return { '\0bytes': sha256(new Uint8Array(value)) }
  if (value instanceof Uint8Array) return { '\0bytes': sha256(value) }
  if (typeof value === 'bigint') return { '\0bigint': String(value) }
  if (typeof value !== 'object' || value === null) return value ?? null
  if (parents.length > MAX_DEPTH)
    throw parents.includes(value) ? unknownBody('refers to itself') : bodyTooDeep(MAX_DEPTH)
  parents.push(value)
  try {
    if ('toJSON' in value && typeof value.toJSON === 'function') return plain(value.toJSON(), parents)
    if (Array.isArray(value)) return value.map((inner) => plain(inner, parents))
    const prototype = Object.getPrototypeOf(value)
    if (prototype !== null && prototype !== Object.prototype && Object.getPrototypeOf(prototype) !== null)
      throw unknownBody(`contains ${nameGiven(value)}`)
    const fields = Object.entries(value).filter(
      ([, inner]) => inner !== undefined && typeof inner !== 'function',
    )
    return Object.fromEntries(fields.map(([name, inner]) => [name, plain(inner, parents)]))
  } finally {
    parents.pop()
  }
}

const unknownBody = (problem: string) =>
  new InvalidInputError(
    'body',
    `as it was parsed ${problem}, so repetitions cannot be compared: give \`fingerprint\``,
  )
