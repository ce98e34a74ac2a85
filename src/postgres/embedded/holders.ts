import { EventEmitter, once } from 'node:events'
import type { Socket } from 'node:net'
import { type HoldMessage, onMessage, type SupervisorMessage, sendMessage } from './supervisor-messages.js'

interface HoldersOptions {
  /** True if a holder that leaves waits for `close`: a temporary server is removed by then. */
  readonly leaveAtClose: boolean
  /** A process said what it needs of the server. */
  readonly onHold: (socket: Socket, request: HoldMessage) => void
  readonly onChange: () => void
}

/** The processes that keep a server running, each by its connection to the supervisor. */
export class Holders {
  readonly #options: HoldersOptions
  /** Each connection, with the request of its process once that has sent it. */
  readonly #requests = new Map<Socket, HoldMessage | undefined>()
  /** Connections that said goodbye and wait for `close`. */
  readonly #leaving = new Set<Socket>()
  readonly #events = new EventEmitter()

  constructor(options: HoldersOptions) {
    this.#options = options
  }

  get isEmpty(): boolean {
    return this.#requests.size === 0
  }

  /** The connections whose process has said what it needs. */
  get requests(): readonly (readonly [Socket, HoldMessage])[] {
    return [...this.#requests].flatMap(([socket, request]) => (request ? [[socket, request] as const] : []))
  }

  add(socket: Socket): void {
    this.#requests.set(socket, undefined)
    this.#events.emit('added')
    this.#options.onChange()
    socket.on('error', () => {}) // 'close' follows
    socket.once('close', () => this.#remove(socket))
    socket.once('end', () => {
      this.#remove(socket)
      if (this.#options.leaveAtClose) this.#leaving.add(socket)
      else sayGoodbye(socket)
    })
    onMessage(socket, (message) => {
      if (message.type !== 'hold') return
      this.#requests.set(socket, message)
      this.#options.onHold(socket, message)
    })
  }

  send(message: SupervisorMessage): void {
    for (const socket of this.#requests.keys()) sendMessage(socket, message)
  }

  /** Waits until there is a holder, at most `ms`. */
  async whenAny(ms: number): Promise<void> {
    if (this.isEmpty) await once(this.#events, 'added', { signal: AbortSignal.timeout(ms) }).catch(() => {})
  }

  close(): void {
    for (const socket of this.#leaving) sayGoodbye(socket)
    for (const socket of this.#requests.keys()) socket.end()
  }

  #remove(socket: Socket): void {
    this.#requests.delete(socket)
    this.#options.onChange()
  }
}

function sayGoodbye(socket: Socket): void {
  sendMessage(socket, { type: 'goodbye' })
  socket.end()
}
