import type { Socket } from 'node:net'
import { errorResponse } from '../wire/backend.js'
import type { WirePorts } from '../wire/wire-connection.js'
import type { ActiveFault } from './active-fault.js'
import type { ActiveFaults, ChosenCut, FlowDirection } from './active-faults.js'
import type { ConnectionHandler } from './connection-handler.js'
import { type ChannelDestination, OneWayChannel } from './one-way-channel.js'

export interface ConnectionOptions {
  readonly client: Socket
  readonly openServer: () => Socket
  readonly faults: ActiveFaults
  readonly randomOf: (way: FlowDirection) => () => number
  readonly createHandler: (ports: WirePorts, connection: ProxyConnection) => ConnectionHandler
}

const opposite = { toServer: 'toClient', toClient: 'toServer' } as const

/** The sockets to one client and to the server, and a channel in each direction between them. */
export class ProxyConnection {
  /** Resolves when both sockets are closed. */
  readonly closed: Promise<void>
  #setClosed: () => void = () => {}
  readonly #options: ConnectionOptions
  readonly #client: Socket
  #server: Socket | undefined
  readonly #handler: ConnectionHandler
  readonly #channels: Readonly<Record<FlowDirection, OneWayChannel>>
  /** The black holes that have begun with a cut. */
  readonly #silencedBy = new Set<ActiveFault>()
  /** The random part of the jitter. It stays the same until the other side has sent something, however the network splits the bytes. */
  readonly #jitter: Record<FlowDirection, number> = { toServer: 0.5, toClient: 0.5 }
  readonly #needsJitter: Record<FlowDirection, boolean> = { toServer: true, toClient: true }
  /** The bytes that one chunk caused, which are sent together: a result of many rows is not many packets. */
  readonly #gathered: Record<FlowDirection, Buffer[]> = { toServer: [], toClient: [] }
  #isReading = false
  /** True once further bytes of both sides are ignored. */
  #isCut = false
  #isHalfClosed = false

  constructor(options: ConnectionOptions) {
    this.closed = new Promise((resolve) => {
      this.#setClosed = resolve
    })
    this.#options = options
    this.#client = options.client
    this.#channels = {
      toServer: this.#createChannel('toServer', {
        // The server connection opens with the client's first bytes, so that a black hole hides the client from the server.
        // After a cut it must not open, because nothing would close it.
        write: (bytes) => (this.#isCut && !this.#server ? true : this.#openServer().write(bytes)),
        end: () => (this.#server ?? this.#client).end(),
        reset: () => resetSocket(this.#server),
      }),
      toClient: this.#createChannel('toClient', {
        write: (bytes) => this.#client.write(bytes),
        end: () => this.#client.end(),
        reset: () => resetSocket(this.#client),
      }),
    }
    const ports: WirePorts = {
      toServer: (bytes) => this.#put('toServer', bytes),
      toClient: (bytes) => this.#put('toClient', bytes),
    }
    this.#handler = options.createHandler(ports, this)
    this.#watch(this.#client, 'toServer')
  }

  /** Called when the active faults have changed. */
  applyFaults(): void {
    for (const fault of this.#silencedBy) if (fault.isEnded) this.#silencedBy.delete(fault)
    this.#channels.toServer.applyFaults()
    this.#channels.toClient.applyFaults()
  }

  cut(cut: ChosenCut): void {
    this.#flush()
    const { how = 'reset', severity } = cut.fault
    if (how === 'black-hole') return void this.#silencedBy.add(cut)
    if (how === 'reset') return void this.reset()
    this.#isCut = true
    if (how === 'panic') this.#channels.toClient.put(serverPanic(severity))
    this.#channels.toClient.end('end')
    this.#channels.toServer.end('end')
  }

  reset(): void {
    this.#isCut = true
    resetSocket(this.#client)
    resetSocket(this.#server)
  }

  destroy(): void {
    this.#isCut = true
    this.#client.destroy()
    this.#server?.destroy()
  }

  #createChannel(way: FlowDirection, end: ChannelDestination): OneWayChannel {
    const { faults } = this.#options
    const random = this.#options.randomOf(way)
    const conditions = {
      isSilent: () => this.#silencedBy.size > 0 || faults.isSilent(way),
      bytesPerSecond: () => faults.bytesPerSecond(way),
      lateMs: () => {
        // guard: proxy.seeded
        if (this.#needsJitter[way]) this.#jitter[way] = random()
        this.#needsJitter[way] = false
        return faults.lateMs(way, this.#jitter[way])
      },
    }
    return new OneWayChannel(conditions, end, (isFull) => {
      const source = way === 'toServer' ? this.#client : this.#server
      if (isFull) source?.pause()
      else source?.resume()
    })
  }

  #openServer(): Socket {
    if (this.#server) return this.#server
    this.#server = this.#options.openServer()
    this.#watch(this.#server, 'toClient')
    return this.#server
  }

  /** @param way the direction of the bytes that this socket receives */
  #watch(socket: Socket, way: FlowDirection): void {
    const from = way === 'toServer' ? 'fromClient' : 'fromServer'
    let hasEnded = false
    const onHalfClosed = (): void => {
      if (!this.#isHalfClosed) this.#read(() => this.#handler.onClose())
      this.#isHalfClosed = true
    }
    socket.setNoDelay(true)
    socket.on('error', () => {}) // 'close' follows
    socket.on('data', (chunk: Buffer) => {
      this.#needsJitter[opposite[way]] = true
      if (!this.#isCut) this.#read(() => this.#handler[from](chunk))
    })
    socket.on('drain', () => this.#channels[opposite[way]].drained())
    socket.on('end', () => {
      hasEnded = true
      onHalfClosed()
      this.#channels[way].end('end')
    })
    socket.on('close', () => {
      onHalfClosed()
      this.#channels[opposite[way]].discard()
      if (!hasEnded) this.#channels[way].end('reset')
      this.#endIfBothAreClosed()
    })
  }

  #endIfBothAreClosed(): void {
    if (!this.#client.closed || this.#server?.closed === false) return
    this.#channels.toServer.discard()
    this.#channels.toClient.discard()
    this.#setClosed()
  }

  #put(way: FlowDirection, bytes: Buffer): void {
    if (this.#isCut) return
    if (this.#isReading) this.#gathered[way].push(bytes)
    else this.#channels[way].put(bytes)
  }

  #read(fn: () => void): void {
    this.#isReading = true
    try {
      fn()
    } catch {
      this.reset() // the bytes break PostgreSQL's protocol
    }
    this.#isReading = false
    this.#flush()
  }

  #flush(): void {
    for (const way of ['toServer', 'toClient'] as const) {
      const [first, ...more] = this.#gathered[way]
      if (!first) continue
      this.#gathered[way] = []
      this.#channels[way].put(more.length === 0 ? first : Buffer.concat([first, ...more]))
    }
  }
}

/**
 * Resets a connection where that is possible. A Unix socket and a socket that is still connecting have no reset. Node never emits `close` for a socket that is
 * reset while its end is being sent.
 */
function resetSocket(socket: Socket | undefined): void {
  if (!socket) return
  const isEnding = socket.writableEnded && !socket.writableFinished
  if (socket.remoteFamily === undefined || isEnding) socket.destroy()
  else socket.resetAndDestroy()
}

/** The last message of a server that crashes. @param severity the translated severity, which drivers show */
const serverPanic = (severity?: string): Buffer =>
  errorResponse({ severity: 'PANIC', shown: severity, code: '58030', message: 'could not write to file' })
