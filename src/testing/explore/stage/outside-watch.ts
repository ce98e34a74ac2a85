import { Socket, type SocketConnectOpts } from 'node:net'
import pg from 'pg'
import { ExplorationError } from '../../../errors.js'
import { currentActor } from '../../gate/actor.js'
import { callSite } from '../../gate/call-site.js'
import { GatedSocket } from '../../gate/gated-socket.js'

/** Where every write of every socket comes by, whoever made the socket and when. */
const socketWrites = Socket.prototype as unknown as Record<
  '_write' | '_writev',
  (this: Socket, ...parameters: unknown[]) => unknown
>

/**
 * Sees actors reach the database past the gate: what they do there has no place in any schedule, so that a race in it
 * would never be found. Looks at sockets that an actor opens to the server's port and at statements that it sends through
 * clients of `pg` made elsewhere.
 */
export class OutsideWatch {
  readonly #port: number
  readonly #address: string | undefined
  readonly #connect = Socket.prototype.connect
  readonly #query = pg.Client.prototype.query
  readonly #write = socketWrites._write
  readonly #writev = socketWrites._writev
  /** Actors run: now nobody else may use their pool. */
  isRunning = false
  #seen: ExplorationError | undefined

  constructor(port: number, address: string | undefined) {
    this.#port = port
    this.#address = address
    const watch = this
    Socket.prototype.connect = function (this: Socket, ...parameters: unknown[]) {
      if (!(this instanceof GatedSocket)) watch.#onConnect(this, parameters)
      return (watch.#connect as (...parameters: unknown[]) => Socket).apply(this, parameters)
    } as typeof Socket.prototype.connect
    pg.Client.prototype.query = function (this: pg.Client, ...parameters: unknown[]) {
      // Through the port of an actor it is gated as well.
      const isGated = this.connection?.stream instanceof GatedSocket || this.port !== watch.#port
      if (!isGated) watch.#onQuery(parameters[0])
      return (watch.#query as (...parameters: unknown[]) => unknown).apply(this, parameters)
    } as typeof pg.Client.prototype.query
    this.#watchWrites()
  }

  /** Of drivers that were connected before. */
  #watchWrites(): void {
    const watch = this
    for (const name of ['_write', '_writev'] as const) {
      const original = name === '_write' ? this.#write : this.#writev
      socketWrites[name] = function (this: Socket, ...parameters: unknown[]) {
        const isServer = this.remotePort === watch.#port && this.remoteAddress === watch.#address
        if (isServer && !(this instanceof GatedSocket)) watch.#onWrite()
        return original.apply(this, parameters)
      }
    }
  }

  /** Throws if an actor went past the gate. */
  check(): void {
    if (this.#seen) throw this.#seen
  }

  /** Somebody who is no actor has used the pool that is explored. */
  readonly onStranger = ([query]: readonly unknown[]): void => {
    if (!this.isRunning) return
    this.#seen ??= new ExplorationError(
      `Code that runs for none of the actors used the pool that is explored${sent(query)}, at ${callSite(new Error()) ?? 'a place unknown'}. ` +
        'Nobody has a say over that, so what goes wrong there would be missed. If it works for an actor, it has lost its way: ' +
        'work behind a server or a queue in this process does not know who asked for it. Call the code itself in place of the server.',
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
    // Another host may have something else on that port.
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
    this.#report(actor.name, `used another pool or client${sent(query)}`)
  }

  #report(actor: string, did: string): void {
    if (!this.isRunning) return // setup and the invariant may go where they like
    this.#seen ??= new ExplorationError(
      `${actor} ${did}. Nobody has a say over that, so what goes wrong there would be missed. ` +
        'Use the handle that the function is given, or pass the pool that the code uses as `pool`; drivers other than pg connect to `db.url`.',
      'outside',
      actor,
    )
  }
}

/** What was sent, if the argument tells. */
function sent(query: unknown): string {
  const text = typeof query === 'string' ? query : (query as { text?: unknown } | undefined)?.text
  return typeof text === 'string' ? ` to send ${JSON.stringify(text)}` : ''
}
