import { createHash } from 'node:crypto'
import { promisify } from 'node:util'
import { brotliDecompress, gunzip, inflate } from 'node:zlib'
import { writeCanonical } from '../claims/fingerprint.js'
import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../postgres/name-given.js'
import { bodyTooDeep, requestTooLarge } from './refuse-request.js'
import type { RequestBody } from './request-body.js'

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
  /** What a packed body may grow to. */
  readonly mostBytes: number
}

const sha256 = (data: string | Uint8Array): string => createHash('sha256').update(data).digest('hex')

/** Tells two requests apart: the same for the same request, however its JSON is written, its parts are bounded, its bytes are packed. */
export async function fingerprintRequest(request: FingerprintedRequest): Promise<string> {
  const { method, target, headers, body } = request
  const canonical =
    body instanceof Uint8Array ? await canonicalBytes(request, body) : await canonicalValue(body?.value)
  return sha256(JSON.stringify([method, target, headers, canonical]))
}

async function canonicalBytes(
  { type, encoding, mostBytes }: FingerprintedRequest,
  packed: Uint8Array,
): Promise<string> {
  const bytes = await unpack(packed, encoding, mostBytes)
  if (bytes.length === 0) return NOTHING
  if (/^application\/(?:[^;]+\+)?json\b/i.test(type)) return canonicalJson(bytes)
  if (/^multipart\/form-data\b/i.test(type)) return await canonicalForm(bytes, type)
  return `bytes ${sha256(bytes)}`
}

const NOTHING = 'json null'

const unpackers: Readonly<Record<string, (bytes: Uint8Array, limits: object) => Promise<Buffer>>> = {
  gzip: promisify(gunzip),
  'x-gzip': promisify(gunzip),
  deflate: promisify(inflate),
  br: promisify(brotliDecompress),
}

async function unpack(bytes: Uint8Array, encoding: string, mostBytes: number): Promise<Uint8Array> {
  try {
    const name = encoding.trim().toLowerCase()
    const unpacker = Object.hasOwn(unpackers, name) ? unpackers[name] : undefined
    return unpacker ? await unpacker(bytes, { maxOutputLength: Math.max(1, mostBytes) }) : bytes
  } catch (error) {
    if ((error as { code?: string }).code === 'ERR_BUFFER_TOO_LARGE') throw requestTooLarge(mostBytes)
    return bytes // it was unpacked before; or else whoever reads it will say what is wrong with it
  }
}

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

function canonicalJson(bytes: Uint8Array): string {
  try {
    const text = decoder.decode(bytes)
    const value: unknown = JSON.parse(text)
    if (!hasLongNumber(text)) return `json ${writeCanonical(value)}`
  } catch {
    // not UTF-8, not JSON, or nested too deep
  }
  return `bytes ${sha256(bytes)}`
}

/** Whether JSON has a number that JavaScript may have rounded, so that two of them would be taken for one. */
function hasLongNumber(json: string): boolean {
  let digits = 0
  for (let at = 0; at < json.length; at++) {
    const code = json.charCodeAt(at)
    if (code === QUOTE) {
      at = endOfText(json, at)
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

/** Where the text ends that begins here. */
function endOfText(json: string, start: number): number {
  for (let at = start + 1; at < json.length; at++) {
    const code = json.charCodeAt(at)
    if (code === BACKSLASH) at++
    else if (code === QUOTE) return at
  }
  return json.length
}

/** By parts: the boundary between them is made anew each time. */
async function canonicalForm(bytes: Uint8Array, type: string): Promise<string> {
  try {
    const form = await new Response(new Uint8Array(bytes), { headers: { 'content-type': type } }).formData()
    const parts = await partsOf(form)
    // What is no UTF-8 has become one and the same mark.
    if (!parts.flat().some((text) => text?.includes('\ufffd'))) return `parts ${JSON.stringify(parts)}`
  } catch {
    // not what it says it is
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

/** What a parser has made of a body; bytes in it by their hash. */
async function canonicalValue(value: unknown): Promise<string> {
  if (value === undefined || value === null) return NOTHING
  if (value instanceof FormData) return `parts ${JSON.stringify(await partsOf(value))}`
  if (value instanceof URLSearchParams) return `pairs ${JSON.stringify([...value])}`
  return `json ${writeCanonical(plain(value, []))}`
}

const MAX_DEPTH = 1_000

/** @param above what it is part of */
function plain(value: unknown, above: object[]): unknown {
  // By names that no JSON is likely to have.
  if (value instanceof ArrayBuffer) return { '\0bytes': sha256(new Uint8Array(value)) }
  if (value instanceof Uint8Array) return { '\0bytes': sha256(value) }
  if (typeof value === 'bigint') return { '\0bigint': String(value) }
  if (typeof value !== 'object' || value === null) return value ?? null
  if (above.length > MAX_DEPTH)
    throw above.includes(value) ? unknownBody('refers to itself') : bodyTooDeep(MAX_DEPTH)
  above.push(value)
  try {
    if ('toJSON' in value && typeof value.toJSON === 'function') return plain(value.toJSON(), above)
    if (Array.isArray(value)) return value.map((inner) => plain(inner, above))
    const prototype = Object.getPrototypeOf(value)
    if (prototype !== null && prototype !== Object.prototype && Object.getPrototypeOf(prototype) !== null)
      throw unknownBody(`has ${nameGiven(value)} in it`)
    const fields = Object.entries(value).filter(
      ([, inner]) => inner !== undefined && typeof inner !== 'function',
    )
    return Object.fromEntries(fields.map(([name, inner]) => [name, plain(inner, above)]))
  } finally {
    above.pop()
  }
}

const unknownBody = (problem: string) =>
  new InvalidInputError('body', `as it was parsed ${problem}, which cannot be compared: give \`fingerprint\``)
