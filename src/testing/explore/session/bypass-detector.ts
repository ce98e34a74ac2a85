import { Socket, type SocketConnectOpts } from 'node:net'
import pg from 'pg'
import { ExplorationError } from '../../../errors.js'
import { currentActor } from '../../gate/actor.js'
import { callSite } from '../../gate/call-site.js'
import { GatedSocket } from '../../gate/gated-socket.js'

/** The two methods through which all writes of all sockets of the process go. */
const socketWrites = Socket.prototype as unknown as Record<
  '_write' | '_writev',
  (this: Socket, ...parameters: unknown[]) => unknown
>

/**
 * Detects actors that reach the database past the gate. The explorer cannot schedule such requests, so it would miss their
 * races. The detector watches the sockets that an actor opens to the server's port, writes to such sockets, and the
 * statements that an actor sends through other clients of `pg`.
 */
export class BypassDetector {
  readonly #port: number
  readonly #address: string | undefined
  readonly #connect = Socket.prototype.connect
  readonly #query = pg.Client.prototype.query
  readonly #write = socketWrites._write
  readonly #writev = socketWrites._writev
  /** True while actors run. Only then a bypass counts. */
  isRunning = false
  #firstBypass: ExplorationError | undefined

  constructor(port: number, address: string | undefined) {
    this.#port = port
    this.#address = address
    const detector = this
    Socket.prototype.connect = function (this: Socket, ...parameters: unknown[]) {
      if (!(this instanceof GatedSocket)) detector.#onConnect(this, parameters)
      return (detector.#connect as (...parameters: unknown[]) => Socket).apply(this, parameters)
    } as typeof Socket.prototype.connect
    pg.Client.prototype.query = function (this: pg.Client, ...parameters: unknown[]) {
      // A client that connects to an actor's own port is gated too.
      const isGated = this.connection?.stream instanceof GatedSocket || this.port !== detector.#port
      if (!isGated) detector.#onQuery(parameters[0])
      return (detector.#query as (...parameters: unknown[]) => unknown).apply(this, parameters)
    } as typeof pg.Client.prototype.query
    this.#watchWrites()
  }

  /** Watches the writes of drivers that connected before the exploration. */
  #watchWrites(): void {
    const detector = this
    for (const name of ['_write', '_writev'] as const) {
      const original = name === '_write' ? this.#write : this.#writev
      socketWrites[name] = function (this: Socket, ...parameters: unknown[]) {
        const isServer = this.remotePort === detector.#port && this.remoteAddress === detector.#address
        if (isServer && !(this instanceof GatedSocket)) detector.#onWrite()
        return original.apply(this, parameters)
      }
    }
  }

  /** Throws if an actor has reached the database past the gate. */
  check(): void {
    if (this.#firstBypass) throw this.#firstBypass
  }

  /** Called when code that belongs to no actor uses the pool that is explored. */
  readonly onForeignUse = ([query]: readonly unknown[]): void => {
    if (!this.isRunning) return
    this.#firstBypass ??= new ExplorationError(
      `Code that runs for none of the actors used the pool that is explored${describeQuery(query)}, at ${callSite(new Error()) ?? 'a place unknown'}. ` +
        'The explorer cannot schedule that, so it would miss a race there. If the code works for an actor, its async context was lost: ' +
        'work behind a server or a queue in this process does not belong to the actor that requested it. Call the code itself in place of the server.',
      'outside',
    )
  }

  close(): void {
    Socket.prototype.connect = this.#connect
    pg.Client.prototype.query = this.#query
    socketWrites._write = this.#write
    socketWrites._writev = this.#writev
  }

  #onConnect(socket: Socket, parameters: readonly unknown[]): void {
    const actor = currentActor()
    if (!actor) return
    const [first] = [parameters].flat(2)
    const port =
      typeof first === 'object' && first !== null
        ? (first as SocketConnectOpts & { port?: number }).port
        : first
    const report = (): void =>
      this.#report(actor.name, `opened a connection of its own to port ${this.#port}`)
    if (Number(port) === actor.port) {
      actor.sockets.add(socket)
      socket.once('close', () => actor.sockets.delete(socket))
    }
    if (String(port).endsWith(`.s.PGSQL.${this.#port}`)) report()
    // Another host may use the same port.
    if (Number(port) === this.#port)
      socket.once('connect', () => socket.remoteAddress === this.#address && report())
  }

  #onWrite(): void {
    const actor = currentActor()
    if (actor) this.#report(actor.name, `sent something through another connection to port ${this.#port}`)
  }

  #onQuery(query: unknown): void {
    const actor = currentActor()
    if (!actor) return
    this.#report(actor.name, `used another pool or client${describeQuery(query)}`)
  }

  #report(actor: string, did: string): void {
    if (!this.isRunning) return // setup and the invariant may use any connection
    this.#firstBypass ??= new ExplorationError(
      `${actor} ${did}. The explorer cannot schedule that, so it would miss a race there. ` +
        'Use the handle that the function is given, or pass the pool that the code uses as `pool`; drivers other than pg connect to `db.url`.',
      'outside',
      actor,
    )
  }
}

/** The end of a sentence with the statement that was sent, if the argument of `query` has one. */
function describeQuery(query: unknown): string {
  const text = typeof query === 'string' ? query : (query as { text?: unknown } | undefined)?.text
  return typeof text === 'string' ? ` to send ${JSON.stringify(text)}` : ''
}
