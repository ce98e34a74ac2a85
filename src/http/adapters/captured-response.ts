import { type OutgoingHttpHeader, type OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { MaxBytesFor } from '../idempotency/exchange.js'
import { isStream, type ResponseParts } from '../idempotency/response-parts.js'
import { streamNotStorable, UnstorableResponseError } from '../idempotency/unstorable-response-error.js'
import { endWith, hasStatusMessage, sendResponse, writeHead } from './send-response.js'

type HeaderPairs = readonly (readonly [string, OutgoingHttpHeader])[]

/** Headers that describe the handler's body, and no other. */
const bodyHeaders = new Set([
  'content-type',
  'content-length',
  'content-encoding',
  'etag',
  'transfer-encoding',
  'last-modified',
])

/**
 * Replaces the methods of a `ServerResponse`, so that the response of the handler is kept in memory. To the handler, the
 * response appears to be sent. When the response is complete, `send` sends it, or `sendOther` sends another one.
 */
export class CapturedResponse {
  /** Resolves when the handler has ended its response. Rejects if the response is a stream. */
  readonly completed: Promise<ResponseParts>
  readonly #response: ServerResponse
  readonly #maxBytes: MaxBytesFor
  /** The headers before the handler was called. */
  readonly #before: HeaderPairs
  readonly #chunks: Buffer[] = []
  readonly #callbacks: (() => void)[] = []
  /** The properties that earlier middleware had defined in the same places. */
  readonly #replaced = new Map<string, PropertyDescriptor | undefined>()
  #length = 0
  #head: { readonly statusCode: number; readonly statusMessage?: string } | undefined
  #hasEnded = false
  #resolve!: (parts: ResponseParts) => void
  #reject!: (error: Error) => void

  /** @param before headers that the framework has not handed to the response yet */
  constructor(response: ServerResponse, maxBytes: MaxBytesFor, before: OutgoingHttpHeaders = {}) {
    this.#response = response
    this.#maxBytes = maxBytes
    this.#before = [...toPairs(before), ...toPairs(response.getHeaders())]
    this.completed = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    this.completed.catch(() => {}) // the caller may have stopped waiting
    this.#replace()
  }

  /** Replaces all methods of this response that a framework may send with. */
  #replace(): void {
    this.#define({
      write: (...args: unknown[]) => this.#write(args),
      end: (...args: unknown[]) => this.#end(args),
      writeHead: (...args: unknown[]) => this.#writeHead(args),
      flushHeaders: () => this.#reject(streamNotStorable()),
      destroy: (error?: Error) => this.#destroy(error),
      addTrailers: () => this.#reject(streamNotStorable()),
      setTrailer: () => this.#reject(streamNotStorable()), // HTTP/2
    })
    this.#guardHeaders(this.#response)
    const getters = {
      headersSent: () => this.#head !== undefined,
      writableEnded: () => this.#hasEnded,
      finished: () => this.#hasEnded,
    }
    for (const [name, get] of Object.entries(getters)) this.#put(name, { get, set: () => {} })
    this.#response.on('pipe', this.#onPipe)
  }

  /** Refuses changes of the headers after the response has begun, as Node does. */
  #guardHeaders(target: ServerResponse): void {
    for (const name of ['setHeader', 'setHeaders', 'appendHeader', 'removeHeader'] as const) {
      const method = target[name] as ((...args: unknown[]) => unknown) | undefined
      if (!method) continue // HTTP/2 lacks some of these
      const guarded = (...args: unknown[]): unknown => {
        if (this.#head) throw headersSent(name === 'removeHeader' ? 'remove' : 'set')
        return method.apply(target, args)
      }
      this.#define({ [name]: guarded })
    }
  }

  /** Gives a handler that still writes another response, which is sent nowhere. */
  #divert(headers: OutgoingHttpHeaders): void {
    const unsent = new ServerResponse(this.#response.req)
    Object.assign(unsent, headOf(this.#response))
    for (const [name, value] of toPairs(headers)) unsent.setHeader(name, value)
    this.#replace()
    this.#guardHeaders(unsent)
    for (const name of ['getHeader', 'getHeaders', 'getHeaderNames', 'hasHeader'] as const)
      this.#define({ [name]: unsent[name].bind(unsent) })
    for (const name of ['statusCode', 'statusMessage'] as const) {
      const set = (value: never): void => {
        unsent[name] = value
      }
      this.#put(name, { get: () => unsent[name], set })
    }
  }

  #define(methods: Record<string, unknown>): void {
    for (const [name, value] of Object.entries(methods)) this.#put(name, { value, writable: true })
  }

  #put(name: string, descriptor: PropertyDescriptor): void {
    this.#replaced.set(name, Object.getOwnPropertyDescriptor(this.#response, name))
    Object.defineProperty(this.#response, name, { ...descriptor, configurable: true })
  }

  #destroy(error: Error | undefined): ServerResponse {
    if (!this.#hasEnded)
      this.#reject(
        new UnstorableResponseError('The handler destroyed its response.', {
          cause: error,
          isOutcome: false,
        }),
      )
    this.#restore()
    return this.#response.destroy(error)
  }

  /** A piped response is a stream without a known end, unless a compressor pipes. */
  readonly #onPipe = (source: NodeJS.ReadableStream & { destroy?: () => void }): void => {
    if (this.#response.getHeader('content-encoding') !== undefined) return
    source.unpipe(this.#response)
    source.destroy?.()
    this.#reject(streamNotStorable())
  }

  #writeHead(args: unknown[]): ServerResponse {
    if (this.#head) throw headersSent('write')
    const response = this.#response
    const [status, ...rest] = args
    if (!(Number(status) >= 100 && Number(status) <= 999))
      throw Object.assign(new RangeError(`Invalid status code: ${status}`), {
        code: 'ERR_HTTP_INVALID_STATUS_CODE',
      })
    response.statusCode = Math.floor(Number(status))
    if (typeof rest[0] === 'string') response.statusMessage = rest.shift() as string
    const named = new Set<string>()
    for (const [name, value] of pairsOf(rest[0])) {
      // A header that occurs several times gets several values, which replace its earlier value.
      if (named.has(name.toLowerCase())) response.appendHeader(name, value as string)
      else response.setHeader(name, value)
      named.add(name.toLowerCase())
    }
    this.#head = headOf(response)
    if (isStream({ get: (name) => textOf(response.getHeader(name)) })) this.#reject(streamNotStorable())
    return response
  }

  /** Calls the public method, because other middleware may have replaced it to add headers. */
  #beginBody(): void {
    if (!this.#head) this.#response.writeHead(this.#response.statusCode)
  }

  #write(args: unknown[]): boolean {
    const [chunk, encoding] = args
    const callback = args.findLast((arg) => typeof arg === 'function') as
      | ((error?: Error) => void)
      | undefined
    if (this.#hasEnded) {
      const error = Object.assign(new Error('write after end'), { code: 'ERR_STREAM_WRITE_AFTER_END' })
      if (callback) process.nextTick(callback, error)
      return false
    }
    this.#beginBody()
    this.#keep(chunk, encoding)
    if (callback) process.nextTick(callback)
    return true
  }

  #keep(chunk: unknown, encoding: unknown): void {
    if (chunk === undefined || chunk === null || typeof chunk === 'function') return
    if (typeof chunk !== 'string' && !(chunk instanceof Uint8Array))
      throw new TypeError(
        `The "chunk" argument must be of type string or an instance of Buffer or Uint8Array.`,
      )
    const bytes =
      typeof chunk === 'string'
        ? Buffer.from(chunk, (typeof encoding === 'string' ? encoding : 'utf8') as BufferEncoding)
        : Buffer.from(chunk)
    this.#length += bytes.length
    if (this.#fits) this.#chunks.push(bytes)
    else this.#chunks.length = 0
  }

  #end(args: unknown[]): ServerResponse {
    const callback = args.findLast((arg) => typeof arg === 'function') as (() => void) | undefined
    if (this.#hasEnded) {
      if (callback) process.nextTick(callback)
      return this.#response
    }
    this.#beginBody()
    this.#keep(args[0], args[1])
    if (callback) this.#callbacks.push(callback)
    this.#hasEnded = true
    this.#resolve({
      status: this.#head?.statusCode ?? this.#response.statusCode,
      headers: this.#headers(),
      body: this.#fits ? Buffer.concat(this.#chunks) : null,
    })
    return this.#response
  }

  get #fits(): boolean {
    return this.#length <= this.#maxBytes(this.#response.statusCode)
  }

  #headers(): Headers {
    const headers = new Headers()
    for (const [name, value] of toPairs(this.#response.getHeaders()))
      for (const one of [value].flat()) headers.append(name, String(one))
    return headers
  }

  /** Sends the handler's response. */
  send(parts: ResponseParts): void {
    this.#restore()
    const response = this.#response
    Object.assign(response, this.#head)
    this.#callBack()
    response.end(parts.body ?? undefined)
  }

  /** Calls the callbacks of `end`. The callbacks wait for `close`, because without a client there is no `finish`. */
  #callBack(): void {
    const response = this.#response
    for (const callback of this.#callbacks.splice(0)) {
      if (response.destroyed) process.nextTick(callback)
      else response.once('close', callback)
    }
  }

  /**
   * Sends another response, with the headers from before the handler, or with the current ones if `keepsHeaders`. A handler that still writes goes on
   * without effect.
   */
  async sendOther(other: Response, keepsHeaders = false): Promise<void> {
    const response = this.#response
    const late = this.#hasEnded ? undefined : Buffer.from(await other.arrayBuffer())
    const headers = response.getHeaders()
    this.#restore()
    for (const name of response.getHeaderNames()) response.removeHeader(name)
    for (const [name, value] of keepsHeaders ? toPairs(headers) : this.#before)
      if (!bodyHeaders.has(name)) response.setHeader(name, value)
    this.#callBack()
    if (!late) return await sendResponse(response, other)
    // In one step, so that nothing else can write in between.
    writeHead(response, other)
    endWith(response, late)
    this.#divert(headers)
  }

  #restore(): void {
    for (const [name, before] of this.#replaced) {
      if (before) Object.defineProperty(this.#response, name, before)
      else Reflect.deleteProperty(this.#response, name)
    }
    this.#response.off('pipe', this.#onPipe)
  }
}

const headOf = (
  response: ServerResponse,
): { readonly statusCode: number; readonly statusMessage?: string } => {
  const { statusCode } = response
  return hasStatusMessage(response) ? { statusCode, statusMessage: response.statusMessage } : { statusCode }
}

const textOf = (value: OutgoingHttpHeader | undefined): string | null =>
  value === undefined ? null : String(value)

const toPairs = (headers: OutgoingHttpHeaders): HeaderPairs =>
  Object.entries(headers).flatMap(([name, value]) => (value === undefined ? [] : [[name, value] as const]))

/** Reads headers as `writeHead` accepts them: an object, a list of pairs, or names and values in turn. */
function pairsOf(headers: unknown): HeaderPairs {
  if (!Array.isArray(headers)) return toPairs((headers ?? {}) as OutgoingHttpHeaders)
  if (Array.isArray(headers[0])) return headers
  return headers.flatMap((name, n) => (n % 2 === 0 ? [[String(name), headers[n + 1]] as const] : []))
}

const headersSent = (what: string): Error =>
  Object.assign(new Error(`Cannot ${what} headers after they are sent to the client`), {
    code: 'ERR_HTTP_HEADERS_SENT',
  })
