import { readPid, readStatus, type TransactionStatus } from './backend.js'
import { CANCEL_REQUEST, codeOf, GSS_REQUEST, SSL_REQUEST, startupWith, TLS_HANDSHAKE } from './frontend.js'
import { type Message, MessageReader } from './message-reader.js'
import { Request } from './request.js'

/** Where the bytes go. */
export interface WirePorts {
  toServer(bytes: Buffer): void
  toClient(bytes: Buffer): void
}

export interface WireOptions {
  /** Settings that every session begins with. */
  readonly settings?: Readonly<Record<string, string>> | undefined
  /** `refuse`: the client is told that there is no TLS. `pass`: it may speak TLS with the server, unread by us. */
  readonly tls?: 'refuse' | 'pass' | undefined
}

/** Who decides what happens to a client's requests. */
export interface WireOwner {
  /** The session is there: authenticated, and ready for its first request. */
  onOpen(): void
  /** A request is there and nothing of it was sent. Comes again only after `next()`. */
  onRequest(request: Request): void
  /** The client says goodbye; the message was handed on. */
  onTerminate(): void
}

/** What becomes of the answer to one thing that was asked. */
export interface Asked {
  onMessage(message: Message): void
  onReady(status: TransactionStatus): void
}

/** Messages that the server may send at any time and that belong to no request: notifications, parameter changes. */
const isUnasked = (type: string): boolean => type === 'A' || type === 'S'

/**
 * One client's connection, understood: bytes of both sides come in, requests come out, one at a time. Requests that the
 * client pipelines wait here for their turn, so that each can be held, cut or put in order.
 */
export class Wire {
  /** The server's process; 0 until it is known. */
  pid = 0
  status: TransactionStatus = 'I'
  readonly #ports: WirePorts
  readonly #options: WireOptions
  readonly #owner: WireOwner
  readonly #fromClient = new MessageReader({ isUntyped: true })
  readonly #fromServer = new MessageReader()
  /** SQL by prepared name. */
  readonly #prepared = new Map<string, string>()
  readonly #asked: Asked[] = []
  readonly #requests: Request[] = []
  /** The request that the owner has and that `next()` ends. */
  #current: Request | undefined
  /** The owner has sent what there was of the current request: the rest follows at once. */
  #isFlowing = false
  #isOpen = false
  #isCopying = false
  /** An SSL request was passed on: the server's one byte decides. */
  #awaitsTlsAnswer = false
  /** The rest is TLS, or a cancel request: bytes pass unread. */
  #isOpaque = false

  constructor(ports: WirePorts, owner: WireOwner, options: WireOptions = {}) {
    this.#ports = ports
    this.#owner = owner
    this.#options = options
  }

  fromClient(chunk: Buffer): void {
    // Nothing else begins so: a startup message of that length would be refused.
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

  /** Sends something of our own, or a request, and has its answer. Answers come in the order of the questions. */
  ask(bytes: Buffer, asked: Asked): void {
    this.#asked.push(asked)
    this.#ports.toServer(bytes)
  }

  /** Sends the current request; what is still to come of it follows by itself. */
  send(asked: Asked, bytes = this.#current?.bytes ?? Buffer.alloc(0)): void {
    this.#isFlowing = true
    this.ask(bytes, asked)
  }

  /** The current request is done with; the next one may come. */
  next(): void {
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
        return void this.#owner.onTerminate()
      case 'p': // a password
        return void this.#ports.toServer(message.bytes)
      case 'd': // COPY data, its end, its failure
      case 'c':
      case 'f':
        return void this.#onCopyMessage(message)
    }
    const last = this.#requests.at(-1) ?? this.#current
    const open = last?.isClosed ? undefined : last
    // The server ignores the Sync of a COPY's own exchange and answers to the one after its data: they are one request.
    if (this.#isCopying && !open && message.type === 'S') return void this.#ports.toServer(message.bytes)
    const request = open ?? new Request()
    if (request !== open) this.#requests.push(request)
    request.add(message, this.#prepared)
    if (request === this.#current && this.#isFlowing) this.#ports.toServer(message.bytes)
    // Whoever flushes waits for an answer before it goes on: its request counts as there though it is not complete.
    if (request.isClosed || message.type === 'H') this.#offer()
  }

  /** A client that does not wait to be told that it may send: its data stays behind the request. */
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
    this.#owner.onRequest(request)
  }

  #onServerMessage(message: Message): void {
    if (!this.#isOpen) return void this.#onGreeting(message)
    if (message.type === 'G') this.#isCopying = true
    // Not at its end or its failure: the client's Sync may still be on its way.
    if (message.type === 'Z') this.#isCopying = false
    if (isUnasked(message.type)) return void this.#ports.toClient(message.bytes)
    const asked = this.#asked[0]
    // Nobody asked: the server says why it ends the connection.
    if (!asked) return void this.#ports.toClient(message.bytes)
    if (message.type !== 'Z') return void asked.onMessage(message)
    this.#asked.shift()
    this.status = readStatus(message.bytes)
    asked.onReady(this.status)
  }

  #onGreeting(message: Message): void {
    this.#ports.toClient(message.bytes)
    if (message.type === 'K') this.pid = readPid(message.bytes)
    if (message.type !== 'Z') return
    this.#isOpen = true
    this.#owner.onOpen()
    this.#offer()
  }
}
