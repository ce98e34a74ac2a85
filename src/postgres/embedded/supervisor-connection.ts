import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { withTimeout } from '../with-timeout.js'
import { type HoldMessage, onMessage, type SupervisorMessage, sendMessage } from './supervisor-messages.js'

/** The connection of a process to a supervisor. */
export class SupervisorConnection {
  readonly #socket: Socket
  readonly #queue: SupervisorMessage[] = []
  #saidGoodbye = false
  #wake: () => void = () => {}

  private constructor(socket: Socket) {
    this.#socket = socket
    socket.on('error', () => {}) // 'close' follows
    socket.once('close', () => this.#wake())
    onMessage(socket, (message) => {
      if (message.type === 'goodbye') this.#saidGoodbye = true
      else if (message.type !== 'hold') this.#queue.push(message)
      this.#wake()
    })
  }

  /** Returns undefined if no process listens at `address`. */
  static async connect(address: string): Promise<SupervisorConnection | undefined> {
    const socket = connect(address)
    try {
      await once(socket, 'connect')
      return new SupervisorConnection(socket)
    } catch {
      return undefined
    }
  }

  /** Returns the next message, or undefined when the connection has ended or after `withinMs`. Only the connection keeps the process alive. */
  async next(withinMs = Number.POSITIVE_INFINITY): Promise<SupervisorMessage | undefined> {
    if (this.#queue.length === 0 && !this.#socket.destroyed) {
      const woken = new Promise<void>((resolve) => {
        this.#wake = resolve
      })
      await withTimeout(woken, withinMs, () => {}, undefined, { ref: false })
    }
    return this.#queue.shift()
  }

  get isOpen(): boolean {
    return !this.#socket.destroyed
  }

  hold(message: Omit<HoldMessage, 'type'>): void {
    sendMessage(this.#socket, { type: 'hold', ...message })
  }

  /** Lets this process end although the connection is open. */
  unref(): void {
    this.#socket.unref()
  }

  destroy(): void {
    this.#socket.destroy()
  }

  /** Says goodbye. Returns true if the supervisor answered; otherwise it may be gone. */
  async leave(withinMs: number): Promise<boolean> {
    if (!this.#socket.destroyed) {
      this.#socket.ref()
      this.#socket.end()
      const closed = new Promise<void>((resolve) => this.#socket.once('close', () => resolve()))
      await withTimeout(closed, withinMs, () => void this.#socket.destroy())
    }
    return this.#saidGoodbye
  }
}
