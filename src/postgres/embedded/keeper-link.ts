import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { type HoldMessage, type KeeperMessage, onMessage, sendMessage } from './keeper-messages.js'

/** A process's connection to a keeper. */
export class KeeperLink {
  readonly #socket: Socket
  readonly #queue: KeeperMessage[] = []
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

  /** Undefined if nobody listens there. */
  static async connect(address: string): Promise<KeeperLink | undefined> {
    const socket = connect(address)
    try {
      await once(socket, 'connect')
      return new KeeperLink(socket)
    } catch {
      return undefined
    }
  }

  /** The next message; undefined when the connection has ended, or after `withinMs`. */
  async next(withinMs?: number): Promise<KeeperMessage | undefined> {
    if (this.#queue.length === 0 && !this.#socket.destroyed) {
      await new Promise<void>((resolve) => {
        const timer = withinMs === undefined ? undefined : setTimeout(resolve, withinMs).unref()
        this.#wake = () => {
          clearTimeout(timer)
          resolve()
        }
      })
    }
    return this.#queue.shift()
  }

  get isOpen(): boolean {
    return !this.#socket.destroyed
  }

  hold(message: Omit<HoldMessage, 'type'>): void {
    sendMessage(this.#socket, { type: 'hold', ...message })
  }

  /** From now on it does not keep this process from ending. */
  unref(): void {
    this.#socket.unref()
  }

  destroy(): void {
    this.#socket.destroy()
  }

  /** Says goodbye, and tells whether the keeper did the same: else it may be gone. */
  async leave(withinMs: number): Promise<boolean> {
    if (!this.#socket.destroyed) {
      this.#socket.ref()
      this.#socket.end()
      const force = setTimeout(() => this.#socket.destroy(), withinMs)
      await new Promise((resolve) => this.#socket.once('close', resolve)) // an error comes before it, and is no matter
      clearTimeout(force)
    }
    return this.#saidGoodbye
  }
}
