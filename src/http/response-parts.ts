import type { Json } from '../postgres/json.js'
import { nameGiven } from '../postgres/name-given.js'
import { UnstorableResponse } from './unstorable-response.js'

/** A response that is whole: what a handler has made, before anything of it is sent. */
export interface ResponseParts {
  readonly status: number
  readonly headers: Headers
  /** Null: it was longer than is kept. */
  readonly body: Uint8Array | null
}

/** A response as it is stored. */
export interface StoredResponse {
  readonly status: number
  readonly headers: readonly (readonly [string, string])[]
  readonly text?: string
  readonly base64?: string
  /** In place of a body that is too long: what it is made from again. */
  readonly reference?: Json
}

/** Statuses that have no body, and for which `Response` takes none. */
export const bodiless: ReadonlySet<number> = new Set([101, 204, 205, 304])

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** Headers that say the same in a replay. */
export const replayedHeaders = [
  'allow',
  'cache-control',
  'content-disposition',
  'content-encoding',
  'content-language',
  'content-location',
  'content-type',
  'deprecation',
  'etag',
  'last-modified',
  'link',
  'location',
  'retry-after',
  'sunset',
  'vary',
] as const

/** What belongs to one connection, to one client, or is made anew. */
const unrepeatable = new Set([
  'connection',
  'content-length',
  'date',
  'idempotency-replayed',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'set-cookie',
  'set-cookie2',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
])

export const isRepeatable = (name: string): boolean => !unrepeatable.has(name)

/** What is stored of a response: with its bytes, or with what they can be made from again. */
export function toStored(
  { status, headers }: ResponseParts,
  kept: readonly string[],
  body: Uint8Array | { readonly reference: Json },
): StoredResponse {
  const pairs = kept.flatMap((name) => {
    const value = headers.get(name)
    return value === null ? [] : [[name, value] as const]
  })
  return { status, headers: pairs, ...(body instanceof Uint8Array ? toJsonBody(body) : body) }
}

/** As text if it is one that JSON and PostgreSQL take without growing much; else in base64. Either way the same bytes come back. */
function toJsonBody(body: Uint8Array): Pick<StoredResponse, 'text' | 'base64'> {
  if (body.length === 0) return {}
  try {
    const text = decoder.decode(body)
    if (!text.includes('\0') && Buffer.byteLength(JSON.stringify(text)) <= body.length * 1.3 + 64)
      return { text }
  } catch {
    // not UTF-8
  }
  return { base64: Buffer.from(body).toString('base64') }
}

/** The bytes of what was stored. */
export function storedBody({ text, base64 }: StoredResponse): Uint8Array<ArrayBuffer> {
  return new Uint8Array(base64 === undefined ? Buffer.from(text ?? '') : Buffer.from(base64, 'base64'))
}

export function toResponse({ status, headers, body }: ResponseParts): Response {
  const bytes = bodiless.has(status) || body === null ? null : new Uint8Array(body)
  return new Response(bytes, { status, headers })
}

export function fromStored(stored: StoredResponse): ResponseParts {
  const headers = new Headers(stored.headers.map(([name, value]): [string, string] => [name, value]))
  return { status: stored.status, headers, body: storedBody(stored) }
}

/** Reads a response whole; its body is null if it is longer than may be. */
export async function readResponse(
  response: Response,
  mostBytes: (status: number) => number,
): Promise<ResponseParts> {
  const { status, headers, body } = response
  return { status, headers, body: body ? await readBytes(body, mostBytes(status)) : new Uint8Array() }
}

/** Reads a stream to its end. Null: it is longer than `mostBytes`. */
export async function readBytes(
  stream: ReadableStream<unknown>,
  mostBytes: number,
): Promise<Uint8Array | null> {
  const chunks: Uint8Array[] = []
  let length = 0
  const reader = stream.getReader()
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return chunks.length === 1 ? (chunks[0] as Uint8Array) : Buffer.concat(chunks)
      const bytes = toBytes(value)
      length += bytes.byteLength
      if (length > mostBytes) return null
      chunks.push(bytes)
    }
  } finally {
    reader.cancel().catch(() => {}) // nothing happens if the stream has ended
  }
}

/** Servers such as @hono/node-server send the strings of a stream as UTF-8. `Response` itself takes bytes alone. */
export const toByteStream = (stream: ReadableStream<unknown>): ReadableStream<Uint8Array> =>
  stream.pipeThrough(
    new TransformStream<unknown, Uint8Array>({
      transform: (chunk, controller) => controller.enqueue(toBytes(chunk)),
    }),
  )

function toBytes(chunk: unknown): Uint8Array {
  if (typeof chunk === 'string') return Buffer.from(chunk)
  if (chunk instanceof Uint8Array) return chunk
  throw new UnstorableResponse(
    `The response is a stream with ${nameGiven(chunk)} as a chunk. Enqueue strings or Uint8Arrays.`,
  )
}

/** It says itself that it is a stream: there is no end of it to wait for. */
export function isStream(headers: { get(name: string): string | null }): boolean {
  const type = headers.get('content-type') ?? ''
  return (
    /^\s*(?:text\/event-stream|multipart\/x-mixed-replace)\b/i.test(type) ||
    headers.get('transfer-encoding') !== null
  )
}
