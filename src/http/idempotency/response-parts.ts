import { nameGiven } from '../../options/name-given.js'
import type { Json } from '../../postgres/json.js'
import { UnstorableResponseError } from './unstorable-response-error.js'

/** The complete response of a handler, before anything of it is sent. */
export interface ResponseParts {
  readonly status: number
  readonly headers: Headers
  /** Null if the body is too long to keep. */
  readonly body: Uint8Array | null
}

/** A response as it is stored. */
export interface StoredResponse {
  readonly status: number
  readonly headers: readonly (readonly [string, string])[]
  readonly text?: string
  readonly base64?: string
  /** In place of a body that is too long: the reference from which `large.rebuild` makes the response. */
  readonly reference?: Json
}

/** Statuses without a body, for which the constructor of `Response` refuses one. */
export const bodiless: ReadonlySet<number> = new Set([101, 204, 205, 304])

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** Headers that are still true in a replay. */
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

/** Headers that belong to one connection or one client, or that each response sets itself. */
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

/** @param body the bytes of the body, or a reference to them */
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

/** Stores the body as text if it is UTF-8 that JSON escapes little, otherwise in base64. Both return the same bytes. */
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

function storedBody({ text, base64 }: StoredResponse): Uint8Array<ArrayBuffer> {
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

/** Reads a response to its end. The body is null if it is longer than `maxBytes` allows. */
export async function readResponse(
  response: Response,
  maxBytes: (status: number) => number,
): Promise<ResponseParts> {
  const { status, headers, body } = response
  return { status, headers, body: body ? await readBytes(body, maxBytes(status)) : new Uint8Array() }
}

/** Reads a stream to its end. Returns null if it is longer than `maxBytes`. */
export async function readBytes(
  stream: ReadableStream<unknown>,
  maxBytes: number,
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
      if (length > maxBytes) return null
      chunks.push(bytes)
    }
  } finally {
    reader.cancel().catch(() => {}) // has no effect if the stream has ended
  }
}

/** Servers such as @hono/node-server send strings of a stream as UTF-8. `Response` itself accepts bytes only. */
export const toByteStream = (stream: ReadableStream<unknown>): ReadableStream<Uint8Array> =>
  stream.pipeThrough(
    new TransformStream<unknown, Uint8Array>({
      transform: (chunk, controller) => controller.enqueue(toBytes(chunk)),
    }),
  )

function toBytes(chunk: unknown): Uint8Array {
  if (typeof chunk === 'string') return Buffer.from(chunk)
  if (chunk instanceof Uint8Array) return chunk
  throw new UnstorableResponseError(
    `The response is a stream with ${nameGiven(chunk)} as a chunk. Enqueue strings or Uint8Arrays.`,
  )
}

/** True if the headers announce a stream, which may never end. */
export function isStream(headers: { get(name: string): string | null }): boolean {
  const type = headers.get('content-type') ?? ''
  return (
    /^\s*(?:text\/event-stream|multipart\/x-mixed-replace)\b/i.test(type) ||
    headers.get('transfer-encoding') !== null
  )
}
