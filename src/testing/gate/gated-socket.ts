import { Socket } from 'node:net'
import type { WirePorts } from '../wire/wire.js'
import { type Actor, runAs, runAsNobody } from './actor.js'

/** Both directions of a connection, seen from between. */
export interface Between {
  fromClient(chunk: Buffer): void
  fromServer(chunk: Buffer): void
  onClose(): void
  takeOver(): void
  handOver(queued: number): void
}

/** Closes a socket, and nobody who listens to it hears of it. */
export function abandonSocket(socket: Socket, onClose: () => void = () => {}): void {
  socket.removeAllListeners()
  socket.on('error', () => {})
  socket.once('close', onClose)
  socket.destroy()
}

/**
 * A socket to the server as `pg` expects it in its `stream` option, with a gate in it: no second connection, and so no
 * second hop through the network.
 */
export class GatedSocket extends Socket {
  readonly #between: Between

  constructor(owner: Actor, open: (ports: WirePorts, socket: GatedSocket) => Between) {
    super()
    this.#between = open(
      {
        // One packet for what is sent at once, a BEGIN of ours and the statement after it: the server wakes up once.
        toServer: (bytes) => {
          this.cork()
          super.write(bytes)
          process.nextTick(() => this.uncork())
        },
        // What its client makes of it, in listeners too, is its owner's doing.
        toClient: (bytes) => void runAs(owner, () => super.push(bytes)),
      },
      this,
    )
    this.once('close', () => runAsNobody(() => this.#between.onClose()))
  }

  // biome-ignore lint/suspicious/noExplicitAny: all of net's overloads at once
  override connect(...parameters: any[]): this {
    // @ts-expect-error: the overloads are net's own
    super.connect(...parameters)
    // Node puts its own `write` on a socket that has another one when it connects.
    Reflect.deleteProperty(this, 'write')
    return this
  }

  /** Closes it without the client hearing of it: whoever waits for an answer waits for ever, in place of failing. */
  abandon(): void {
    abandonSocket(this, () => runAsNobody(() => this.#between.onClose()))
  }

  /** The client is new, and its owner may do something to it. */
  takeOver(): void {
    this.#between.takeOver()
  }

  /** The client is handed out, with so many requests of its owner still to be sent. */
  handOver(queued: number): void {
    this.#between.handOver(queued)
  }

  override write(chunk: Uint8Array | string, ...rest: unknown[]): boolean {
    // What the gate does about it is not the actor's doing.
    runAsNobody(() => this.#between.fromClient(Buffer.from(chunk as string)))
    const written = rest.at(-1)
    if (typeof written === 'function') process.nextTick(written as () => void)
    return true
  }

  override push(chunk: unknown): boolean {
    if (!Buffer.isBuffer(chunk)) return super.push(chunk) // null: the end
    runAsNobody(() => this.#between.fromServer(chunk))
    return true
  }
}
