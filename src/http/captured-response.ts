import { type OutgoingHttpHeader, type OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { BytesOf } from './exchange.js'
import { isStream, type ResponseParts } from './response-parts.js'
import { endWith, hasStatusMessage, sendResponse, writeHead } from './send-response.js'
import { refuseStream, UnstorableResponse } from './unstorable-response.js'

type HeaderPairs = readonly (readonly [string, OutgoingHttpHeader])[]

/** Describes the body as the handler made it, and not as another one. */
const ofBody = new Set([
  'content-type',
  'content-length',
  'content-encoding',
  'etag',
  'transfer-encoding',
  'last-modified',
])

/**
 * Stands between a handler and its `ServerResponse`: whatever is sent is kept, and looks to the handler as if it were sent. When it is
 * whole, `send` lets it go as it is, or `sendOther` sends something else.
 */
export class CapturedResponse {
  /** Resolves when the handler has ended its response, rejects when that is a stream. */
  readonly whole: Promise<ResponseParts>
  readonly #response: ServerResponse
  readonly #mostBytes: BytesOf
  /** As it was before the handler had it. */
  readonly #before: HeaderPairs
  readonly #chunks: Buffer[] = []
  readonly #callbacks: (() => void)[] = []
  /** What others before us have put in the same places. */
  readonly #replaced = new Map<string, PropertyDescriptor | undefined>()
  #length = 0
  #head: { readonly statusCode: number; readonly statusMessage?: string } | undefined
  #hasEnded = false
  #resolve!: (parts: ResponseParts) => void
  #reject!: (error: Error) => void

  /** @param before headers that the framework has not handed to the response yet */
  constructor(response: ServerResponse, mostBytes: BytesOf, before: OutgoingHttpHeaders = {}) {
    this.#response = response
    this.#mostBytes = mostBytes
    this.#before = [...toPairs(before), ...toPairs(response.getHeaders())]
    this.whole = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    this.whole.catch(() => {}) // somebody may have stopped to wait for it
    this.#replace()
  }

  /** Everything that a framework may use to send, on this one response. */
  #replace(): void {
    this.#define({
      write: (...args: unknown[]) => this.#write(args),
      end: (...args: unknown[]) => this.#end(args),
      writeHead: (...args: unknown[]) => this.#writeHead(args),
      flushHeaders: () => this.#reject(refuseStream()),
      destroy: (error?: Error) => this.#destroy(error),
      addTrailers: () => this.#reject(refuseStream()),
      setTrailer: () => this.#reject(refuseStream()), // HTTP/2
    })
    this.#guardHeaders(this.#response)
    const asks = {
      headersSent: () => this.#head !== undefined,
      writableEnded: () => this.#hasEnded,
      finished: () => this.#hasEnded,
    }
    for (const [name, get] of Object.entries(asks)) this.#put(name, { get, set: () => {} })
    this.#response.on('pipe', this.#onPipe)
  }

  /** Headers are kept where they are until the response has begun, and are not changed afterwards. */
  #guardHeaders(where: ServerResponse): void {
    for (const name of ['setHeader', 'setHeaders', 'appendHeader', 'removeHeader'] as const) {
      const method = where[name] as ((...args: unknown[]) => unknown) | undefined
      if (!method) continue // HTTP/2 lacks some of them
      const guarded = (...args: unknown[]): unknown => {
        if (this.#head) throw headersSent(name === 'removeHeader' ? 'remove' : 'set')
        return method.apply(where, args)
      }
      this.#define({ [name]: guarded })
    }
  }

  /** One who comes too late writes to a response that leads nowhere, and is whole some time all the same. */
  #divert(headers: OutgoingHttpHeaders): void {
    const nowhere = new ServerResponse(this.#response.req)
    Object.assign(nowhere, headOf(this.#response))
    for (const [name, value] of toPairs(headers)) nowhere.setHeader(name, value)
    this.#replace()
    this.#guardHeaders(nowhere)
    for (const name of ['getHeader', 'getHeaders', 'getHeaderNames', 'hasHeader'] as const)
      this.#define({ [name]: nowhere[name].bind(nowhere) })
    for (const name of ['statusCode', 'statusMessage'] as const) {
      const set = (value: never): void => {
        nowhere[name] = value
      }
      this.#put(name, { get: () => nowhere[name], set })
    }
  }

  #define(methods: Record<string, unknown>): void {
    for (const [name, value] of Object.entries(methods)) this.#put(name, { value, writable: true })
  }

  #put(name: string, descriptor: PropertyDescriptor): void {
    this.#replaced.set(name, Object.getOwnPropertyDescriptor(this.#response, name))
    Object.defineProperty(this.#response, name, { ...descriptor, configurable: true })
  }

  /** The handler has given up on its response. */
  #destroy(error: Error | undefined): ServerResponse {
    if (!this.#hasEnded)
      this.#reject(
        new UnstorableResponse('The handler has destroyed its response.', { cause: error, isOutcome: false }),
      )
    this.#restore()
    return this.#response.destroy(error)
  }

  /** What is piped has no known end, unless it was only packed on its way. */
  readonly #onPipe = (source: NodeJS.ReadableStream & { destroy?: () => void }): void => {
    if (this.#response.getHeader('content-encoding') !== undefined) return
    source.unpipe(this.#response)
    source.destroy?.()
    this.#reject(refuseStream())
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
      // Given several times, it has several values; whatever it had before is gone.
      if (named.has(name.toLowerCase())) response.appendHeader(name, value as string)
      else response.setHeader(name, value)
      named.add(name.toLowerCase())
    }
    this.#head = headOf(response)
    if (isStream({ get: (name) => textOf(response.getHeader(name)) })) this.#reject(refuseStream())
    return response
  }

  /** By its name, since others may stand in front of it who add their headers now. */
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
    return this.#length <= this.#mostBytes(this.#response.statusCode)
  }

  #headers(): Headers {
    const headers = new Headers()
    for (const [name, value] of toPairs(this.#response.getHeaders()))
      for (const one of [value].flat()) headers.append(name, String(one))
    return headers
  }

  /** Sends what the handler has made. */
  send(parts: ResponseParts): void {
    this.#restore()
    const response = this.#response
    Object.assign(response, this.#head)
    this.#callBack()
    response.end(parts.body ?? undefined)
  }

  /** Those who wait for the end: it may come without a finish, if nobody is there any more. */
  #callBack(): void {
    const response = this.#response
    for (const callback of this.#callbacks.splice(0)) {
      if (response.destroyed) process.nextTick(callback)
      else response.once('close', callback)
    }
  }

  /**
   * Sends something else, with the headers that the response had before the handler; or that it has now, where it was not the
   * handler who made it. One who still writes goes on in vain.
   */
  async sendOther(other: Response, keepsHeaders = false): Promise<void> {
    const response = this.#response
    const late = this.#hasEnded ? undefined : Buffer.from(await other.arrayBuffer())
    const headers = response.getHeaders()
    this.#restore()
    for (const name of response.getHeaderNames()) response.removeHeader(name)
    for (const [name, value] of keepsHeaders ? toPairs(headers) : this.#before)
      if (!ofBody.has(name)) response.setHeader(name, value)
    this.#callBack()
    if (!late) return await sendResponse(response, other)
    // At one go, so that nothing comes between.
    writeHead(response, other)
    endWith(response, late)
    this.#divert(headers)
  }

  #restore(): void {
    for (const [name, before] of this.#replaced) {
      if (before) Object.defineProperty(this.#response, name, before)
      else delete (this.#response as unknown as Record<string, unknown>)[name]
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

/** Headers as `writeHead` takes them: an object, a list of pairs, or names and values in turn. */
function pairsOf(given: unknown): HeaderPairs {
  if (!Array.isArray(given)) return toPairs((given ?? {}) as OutgoingHttpHeaders)
  if (Array.isArray(given[0])) return given as unknown as HeaderPairs
  return given.flatMap((name, n) => (n % 2 === 0 ? [[String(name), given[n + 1]] as const] : []))
}

const headersSent = (what: string): Error =>
  Object.assign(new Error(`Cannot ${what} headers after they are sent to the client`), {
    code: 'ERR_HTTP_HEADERS_SENT',
  })
