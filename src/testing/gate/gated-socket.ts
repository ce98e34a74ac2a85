import { Socket } from 'node:net'
import type { WirePorts } from '../wire/wire-connection.js'
import { type Actor, runAs, runOutsideActors } from './actor.js'

/** The gate between a client's socket and the server. */
export interface SocketGate {
  fromClient(chunk: Buffer): void
  fromServer(chunk: Buffer): void
  onClose(): void
  takeOver(): void
  handOver(queued: number): void
}

/** Closes a socket without emitting an event to its listeners. */
export function abandonSocket(socket: Socket, onClose: () => void = () => {}): void {
  socket.removeAllListeners()
  socket.on('error', () => {})
  socket.once('close', onClose)
  socket.destroy()
}

/**
 * A socket for the `stream` option of `pg`, with a gate in it. Unlike a proxy, the gate needs no second connection.
 */
export class GatedSocket extends Socket {
  readonly #gate: SocketGate

  constructor(owner: Actor, open: (ports: WirePorts, socket: GatedSocket) => SocketGate) {
    super()
    this.#gate = open(
      {
        // Joins the writes of one tick, such as the gate's BEGIN and a statement, in one packet: the server wakes up once.
        toServer: (bytes) => {
          this.cork()
          super.write(bytes)
          process.nextTick(() => this.uncork())
        },
        // The client's callbacks and listeners are code of the actor.
        toClient: (bytes) => void runAs(owner, () => super.push(bytes)),
      },
      this,
    )
    this.once('close', () => runOutsideActors(() => this.#gate.onClose()))
  }

  // biome-ignore lint/suspicious/noExplicitAny: all of net's overloads at once
  override connect(...parameters: any[]): this {
    // @ts-expect-error: the overloads are net's own
    super.connect(...parameters)
    // While connecting, Node sets its own `write` on a socket that overrides it.
    Reflect.deleteProperty(this, 'write')
    return this
  }

  /** Closes the socket without an event. A query that waits for its response never settles. */
  abandon(): void {
    abandonSocket(this, () => runOutsideActors(() => this.#gate.onClose()))
  }

  /** Called for a new client, before the pool's owner sets it up. */
  takeOver(): void {
    this.#gate.takeOver()
  }

  /** Called when the pool hands out the client. `queued` requests of the pool's owner are still to be sent. */
  handOver(queued: number): void {
    this.#gate.handOver(queued)
  }

  override write(chunk: Uint8Array | string, ...rest: unknown[]): boolean {
    runOutsideActors(() => this.#gate.fromClient(Buffer.from(chunk as string)))
    const written = rest.at(-1)
    if (typeof written === 'function') process.nextTick(written as () => void)
    return true
  }

  override push(chunk: unknown): boolean {
    if (!Buffer.isBuffer(chunk)) return super.push(chunk) // null: the end
    runOutsideActors(() => this.#gate.fromServer(chunk))
    return true
  }
}
