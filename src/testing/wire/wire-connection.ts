import { readPid, readStatus, type TransactionStatus } from './backend.js'
import { CANCEL_REQUEST, codeOf, GSS_REQUEST, SSL_REQUEST, startupWith, TLS_HANDSHAKE } from './frontend.js'
import { type Message, MessageReader } from './message-reader.js'
import { Request } from './request.js'

/** The two sides of a connection. */
export interface WirePorts {
  toServer(bytes: Buffer): void
  toClient(bytes: Buffer): void
}

export interface WireOptions {
  /** The settings that every session starts with. */
  readonly settings?: Readonly<Record<string, string>> | undefined
  /** `refuse`: the client learns that there is no TLS. `pass`: the client may use TLS with the server, unread here. */
  readonly tls?: 'refuse' | 'pass' | undefined
}

/** Decides what happens to a client's requests. */
export interface RequestHandler {
  /** Called once the session is authenticated and ready for its first request. */
  onOpen(): void
  /** Called with a request of which nothing was sent. The next call follows `finishRequest()`. */
  onRequest(request: Request): void
  /** Called after the client's Terminate message was passed on. */
  onTerminate(): void
}

/** Gets the messages of one response. */
export interface ResponseHandler {
  onMessage(message: Message): void
  onReady(status: TransactionStatus): void
}

/** True for the messages that belong to no response: notifications and parameter changes. */
const isAsynchronous = (type: string): boolean => type === 'A' || type === 'S'

/**
 * Reads the protocol of one client's connection, and passes its requests to the handler one at a time. Pipelined requests
 * wait here, so that the handler can delay or cut each one.
 */
export class WireConnection {
  /** The process id of the backend. 0 until it is known. */
  pid = 0
  status: TransactionStatus = 'I'
  readonly #ports: WirePorts
  readonly #options: WireOptions
  readonly #requestHandler: RequestHandler
  readonly #fromClient = new MessageReader({ isUntyped: true })
  readonly #fromServer = new MessageReader()
  /** The SQL of each prepared statement, by name. */
  readonly #prepared = new Map<string, string>()
  /** The handlers of the responses that the server still owes, in order. */
  readonly #pending: ResponseHandler[] = []
  readonly #requests: Request[] = []
  /** The request that the handler has, until `finishRequest()`. */
  #current: Request | undefined
  /** True once the handler has sent the current request. Its later messages are passed on at once. */
  #isFlowing = false
  #isOpen = false
  #isCopying = false
  /** True after an SSL request. The server accepts or refuses TLS with its next byte. */
  #awaitsTlsAnswer = false
  /** True for TLS and for a cancel request. Bytes are passed on unread. */
  #isOpaque = false

  constructor(ports: WirePorts, requestHandler: RequestHandler, options: WireOptions = {}) {
    this.#ports = ports
    this.#requestHandler = requestHandler
    this.#options = options
  }

  fromClient(chunk: Buffer): void {
    // No startup message begins with this byte: PostgreSQL would refuse its length.
    if (this.#fromClient.isUntyped && chunk[0] === TLS_HANDSHAKE && this.#options.tls === 'pass')
      this.#isOpaque = true
    if (this.#isOpaque) return void this.#ports.toServer(chunk)
    for (const message of this.#fromClient.read(chunk)) {
      if (message.type === '') this.#onUntyped(message)
      else this.#onClientMessage(message)
      if (this.#isOpaque) return void this.#ports.toServer(this.#fromClient.takeRest())
    }
  }

  fromServer(chunk: Buffer): void {
    if (this.#awaitsTlsAnswer) {
      this.#awaitsTlsAnswer = false
      this.#isOpaque = chunk[0] !== 'N'.charCodeAt(0)
      this.#ports.toClient(chunk.subarray(0, 1))
      chunk = chunk.subarray(1)
    }
    if (this.#isOpaque) {
      if (chunk.length > 0) this.#ports.toClient(chunk)
      return
    }
    for (const message of this.#fromServer.read(chunk)) this.#onServerMessage(message)
  }

  /** Sends a message. Its handler gets the response. Responses come in the order of the messages. */
  send(bytes: Buffer, handler: ResponseHandler): void {
    this.#pending.push(handler)
    this.#ports.toServer(bytes)
  }

  /** Sends the current request. If it is incomplete, its later messages are passed on as they come. */
  sendRequest(handler: ResponseHandler, bytes = this.#current?.bytes ?? Buffer.alloc(0)): void {
    this.#isFlowing = true
    this.send(bytes, handler)
  }

  /** Ends the current request. The handler gets the next one. */
  finishRequest(): void {
    this.#current = undefined
    this.#isFlowing = false
    this.#offer()
  }

  #onUntyped({ bytes }: Message): void {
    const code = codeOf(bytes)
    if (code === SSL_REQUEST || code === GSS_REQUEST) {
      if (this.#options.tls !== 'pass') return void this.#ports.toClient(Buffer.from('N'))
      this.#awaitsTlsAnswer = true
      return void this.#ports.toServer(bytes)
    }
    if (code === CANCEL_REQUEST) {
      this.#isOpaque = true
      return void this.#ports.toServer(bytes)
    }
    this.#fromClient.isUntyped = false
    this.#ports.toServer(this.#options.settings ? startupWith(bytes, this.#options.settings) : bytes)
  }

  #onClientMessage(message: Message): void {
    switch (message.type) {
      case 'X':
        this.#ports.toServer(message.bytes)
        return void this.#requestHandler.onTerminate()
      case 'p': // a password
        return void this.#ports.toServer(message.bytes)
      case 'd': // COPY data, its end, its failure
      case 'c':
      case 'f':
        return void this.#onCopyMessage(message)
    }
    const last = this.#requests.at(-1) ?? this.#current
    const open = last?.isClosed ? undefined : last
    // The server ignores a Sync during COPY and responds to the Sync after the data. Both belong to one request.
    if (this.#isCopying && !open && message.type === 'S') return void this.#ports.toServer(message.bytes)
    const request = open ?? new Request()
    if (request !== open) this.#requests.push(request)
    request.add(message, this.#prepared)
    if (request === this.#current && this.#isFlowing) this.#ports.toServer(message.bytes)
    // After a Flush the client waits for a response, so the handler gets the incomplete request.
    if (request.isClosed || message.type === 'H') this.#offer()
  }

  /** Keeps COPY data behind its request, if the client sends the data before the server is ready for it. */
  #onCopyMessage(message: Message): void {
    const waiting = this.#requests.at(-1) ?? (this.#isFlowing ? undefined : this.#current)
    if (waiting) waiting.add(message, this.#prepared)
    else this.#ports.toServer(message.bytes)
  }

  #offer(): void {
    if (this.#current || !this.#isOpen) return
    const request = this.#requests[0]
    if (!request) return
    if (!request.isClosed && !request.isFlushed) return
    this.#requests.shift()
    this.#current = request
    this.#requestHandler.onRequest(request)
  }

  #onServerMessage(message: Message): void {
    if (!this.#isOpen) return void this.#onGreeting(message)
    if (message.type === 'G') this.#isCopying = true
    // CommandComplete or an error does not end the COPY here: the client's Sync may still be on its way.
    if (message.type === 'Z') this.#isCopying = false
    if (isAsynchronous(message.type)) return void this.#ports.toClient(message.bytes)
    const handler = this.#pending[0]
    // An error that responds to no request: the server says why it ends the connection.
    if (!handler) return void this.#ports.toClient(message.bytes)
    if (message.type !== 'Z') return void handler.onMessage(message)
    this.#pending.shift()
    this.status = readStatus(message.bytes)
    handler.onReady(this.status)
  }

  #onGreeting(message: Message): void {
    this.#ports.toClient(message.bytes)
    if (message.type === 'K') this.pid = readPid(message.bytes)
    if (message.type !== 'Z') return
    this.#isOpen = true
    this.#requestHandler.onOpen()
    this.#offer()
  }
}
