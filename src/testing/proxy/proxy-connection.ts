import type { Socket } from 'node:net'
import type { WirePorts } from '../wire/wire.js'
import type { ActiveFault } from './active-fault.js'
import type { ActiveFaults, ChosenCut, Way } from './active-faults.js'
import type { ConnectionOwner } from './connection-owner.js'
import { Lane, type LaneEnd } from './lane.js'
import { lastWords } from './last-words.js'

export interface ConnectionOptions {
  readonly client: Socket
  readonly openServer: () => Socket
  readonly faults: ActiveFaults
  readonly randomOf: (way: Way) => () => number
  readonly connect: (ports: WirePorts, connection: ProxyConnection) => ConnectionOwner
}

const opposite = { toServer: 'toClient', toClient: 'toServer' } as const

/** The two sockets of one client's connection and the lanes between them. */
export class ProxyConnection {
  /** On both sides. */
  readonly closed: Promise<void>
  #setClosed: () => void = () => {}
  readonly #options: ConnectionOptions
  readonly #client: Socket
  #server: Socket | undefined
  readonly #owner: ConnectionOwner
  readonly #lanes: Readonly<Record<Way, Lane>>
  /** Cuts that ended in silence. */
  readonly #silencedBy = new Set<ActiveFault>()
  /** Of the jitter, by way: one draw until the other side has spoken, however the network slices what is said. */
  readonly #luck: Record<Way, number> = { toServer: 0.5, toClient: 0.5 }
  readonly #hasTurned: Record<Way, boolean> = { toServer: true, toClient: true }
  /** What one chunk makes us send, to be sent at once: a result of many rows is not many packets. */
  readonly #gathered: Record<Way, Buffer[]> = { toServer: [], toClient: [] }
  #isReading = false
  /** What the two sides still say does not matter any more. */
  #isCut = false
  #isHalfClosed = false

  constructor(options: ConnectionOptions) {
    this.closed = new Promise((resolve) => {
      this.#setClosed = resolve
    })
    this.#options = options
    this.#client = options.client
    this.#lanes = {
      toServer: this.#lane('toServer', {
        // Not before the client has spoken: of a connection that a black hole swallows the server knows nothing.
        // Nor after the connection was cut: nobody would close that one.
        write: (bytes) => (this.#isCut && !this.#server ? true : this.#openServer().write(bytes)),
        end: () => (this.#server ?? this.#client).end(),
        reset: () => this.#server?.resetAndDestroy(),
      }),
      toClient: this.#lane('toClient', {
        write: (bytes) => this.#client.write(bytes),
        end: () => this.#client.end(),
        reset: () => this.#client.resetAndDestroy(),
      }),
    }
    const ports: WirePorts = {
      toServer: (bytes) => this.#put('toServer', bytes),
      toClient: (bytes) => this.#put('toClient', bytes),
    }
    this.#owner = options.connect(ports, this)
    this.#watch(this.#client, 'toServer')
  }

  /** Other faults are in force. */
  reconsider(): void {
    for (const fault of this.#silencedBy) if (fault.isEnded) this.#silencedBy.delete(fault)
    this.#lanes.toServer.reconsider()
    this.#lanes.toClient.reconsider()
  }

  cut(cut: ChosenCut): void {
    this.#flush()
    const { how = 'reset', severity } = cut.fault
    if (how === 'black-hole') return void this.#silencedBy.add(cut)
    if (how === 'reset') return void this.reset()
    this.#isCut = true
    if (how === 'panic') this.#lanes.toClient.put(lastWords(severity))
    this.#lanes.toClient.end('end')
    this.#lanes.toServer.end('end')
  }

  reset(): void {
    this.#isCut = true
    this.#client.resetAndDestroy()
    this.#server?.resetAndDestroy()
  }

  destroy(): void {
    this.#isCut = true
    this.#client.destroy()
    this.#server?.destroy()
  }

  #lane(way: Way, end: LaneEnd): Lane {
    const { faults } = this.#options
    const random = this.#options.randomOf(way)
    const conditions = {
      isSilent: () => this.#silencedBy.size > 0 || faults.isSilent(way),
      bytesPerSecond: () => faults.bytesPerSecond(way),
      lateMs: () => {
        if (this.#hasTurned[way]) this.#luck[way] = random()
        this.#hasTurned[way] = false
        return faults.lateMs(way, this.#luck[way])
      },
    }
    return new Lane(conditions, end, (isFull) => {
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

  /** @param way of what this socket says */
  #watch(socket: Socket, way: Way): void {
    const from = way === 'toServer' ? 'fromClient' : 'fromServer'
    let hasEnded = false
    const onGone = (): void => {
      if (!this.#isHalfClosed) this.#read(() => this.#owner.onClose())
      this.#isHalfClosed = true
    }
    socket.setNoDelay(true)
    socket.on('error', () => {}) // 'close' follows
    socket.on('data', (chunk: Buffer) => {
      this.#hasTurned[opposite[way]] = true
      if (!this.#isCut) this.#read(() => this.#owner[from](chunk))
    })
    socket.on('drain', () => this.#lanes[opposite[way]].drained())
    socket.on('end', () => {
      hasEnded = true
      onGone()
      this.#lanes[way].end('end')
    })
    socket.on('close', () => {
      onGone()
      this.#lanes[opposite[way]].discard()
      if (!hasEnded) this.#lanes[way].end('reset')
      this.#endIfBothAreGone()
    })
  }

  #endIfBothAreGone(): void {
    if (!this.#client.closed || this.#server?.closed === false) return
    this.#lanes.toServer.discard()
    this.#lanes.toClient.discard()
    this.#setClosed()
  }

  #put(way: Way, bytes: Buffer): void {
    if (this.#isCut) return
    if (this.#isReading) this.#gathered[way].push(bytes)
    else this.#lanes[way].put(bytes)
  }

  #read(fn: () => void): void {
    this.#isReading = true
    try {
      fn()
    } catch {
      this.reset() // not PostgreSQL's protocol
    }
    this.#isReading = false
    this.#flush()
  }

  #flush(): void {
    for (const way of ['toServer', 'toClient'] as const) {
      const [first, ...more] = this.#gathered[way]
      if (!first) continue
      this.#gathered[way] = []
      this.#lanes[way].put(more.length === 0 ? first : Buffer.concat([first, ...more]))
    }
  }
}
