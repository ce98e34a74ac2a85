import { EventEmitter, once } from 'node:events'
import type { Socket } from 'node:net'
import { dirname } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'
import { sleep } from '../sleep.js'
import { unlessAborted } from '../with-timeout.js'
import type { ServerSettings } from './embedded-options.js'
import { EmbeddedServer, type OwnedServer, type ServerRequest } from './embedded-server.js'
import { asEmbeddedServerError, explainFailure, isFault } from './explain-failure.js'
import { answers, KeeperAddress, keeperAddress } from './keeper-address.js'
import { type HoldMessage, onMessage, PROTOCOL, type StartStep, sendMessage } from './keeper-messages.js'
import { folderIdentity } from './process-identity.js'
import { removeLitter } from './remove-litter.js'
import { readRecord } from './server-record.js'
import { toText } from './settings.js'
import { markTemporary, removeTemporary, sweepTemporary } from './sweep-temporary.js'

/** What a keeper is told by the process that starts it. */
export interface KeeperConfig extends ServerRequest {
  /** In place of a keeper that was lost: a server that must be started again is started as it was. */
  readonly resume: boolean
}

/** How long the server outlives the last process that uses it. */
const LINGER_MS = 2_000
/** How long a successor waits for those that lost its predecessor, before it counts them. */
const GRACE_MS = 10_000
const ATTEND_MS = 1_000
/** Longer than an owner takes to have its address back. */
const GIVE_WAY_MS = 3_000
/** How long a failure waits for somebody to be told to. */
const FAILURE_MS = 5_000
/** A server that ends more often than this within a minute is given up; its holders try again, less and less often. */
const ENDS_A_MINUTE = 5

/**
 * Keeps the server of one folder for all processes that hold a connection to it. Whatever ends those processes
 * closes their connections; soon after the last, it stops the server and ends.
 */
export class Keeper {
  readonly #config: KeeperConfig
  readonly #path: string
  /** With what each said it needs, once it has. */
  readonly #holders = new Map<Socket, HoldMessage | undefined>()
  /** They said goodbye, and wait until a temporary server is gone. */
  readonly #leaving = new Set<Socket>()
  readonly #retirement = new AbortController()
  readonly #arrivals = new EventEmitter()
  #address: KeeperAddress | undefined
  #server: EmbeddedServer | undefined
  #serving: OwnedServer | undefined
  #step: StartStep | undefined
  /** The server has ended, or was never there. */
  #isOver = false
  /** Said once that the address cannot be had. */
  #isDeaf = false
  /** Not before this moment is it found out that nobody uses the server. */
  #countFrom = 0
  #counting: NodeJS.Timeout | undefined
  #attending: NodeJS.Timeout | undefined
  /** Of the folder, also when that is moved. */
  readonly #identity: string | undefined

  constructor(config: KeeperConfig) {
    this.#config = config
    this.#path = keeperAddress(config.folder)
    this.#identity = folderIdentity(config.folder)
  }

  /** Resolves when there is nothing to keep any more, or another keeper has the folder. */
  async run(): Promise<void> {
    this.#address = await KeeperAddress.claim(this.#config.folder, (socket) => this.#accept(socket))
    if (!this.#address) return
    try {
      await this.#keep()
    } catch (error) {
      if (this.#serving) await this.#server?.stop() // nobody else would
      await this.#fail(error)
    } finally {
      clearInterval(this.#attending)
      clearTimeout(this.#counting)
      this.#address.release()
      if (this.#isOver) this.#discard()
      for (const socket of this.#leaving) sendMessage(socket, { type: 'goodbye' })
      for (const socket of [...this.#holders.keys(), ...this.#leaving]) socket.end()
    }
  }

  /** Ends as if nobody used the server any more. */
  retire(): void {
    this.#retirement.abort()
    // So that whoever comes now finds nobody here and starts a new keeper, which waits for the server's end.
    this.#address?.release()
  }

  async #keep(): Promise<void> {
    const { signal } = this.#retirement
    const server = new EmbeddedServer(this.#config, this.#path, (step) => this.#tell(step))
    this.#server = server
    removeLitter(dirname(this.#path))
    removeLitter(this.#config.folder)
    if (this.#config.temporary) markTemporary(this.#config.folder, server.home.dir)
    let { resume } = this.#config
    const ends: number[] = []
    for (;;) {
      const claimed = await server.claim(resume)
      if ('owner' in claimed) return this.#giveWay(claimed.owner)
      this.#attending = setInterval(() => this.#attend(server, claimed), ATTEND_MS)
      this.#serve(claimed)
      await unlessAborted(claimed.ownership.lost, signal).catch(() => {}) // rejects when this keeper retires
      clearInterval(this.#attending)
      if (signal.aborted) return this.#end()
      claimed.ownership.end()
      this.#serving = undefined
      if (this.#holders.size === 0 && !server.isRunning) return this.#end()
      // The server is gone, or has ended our session: begin again, on its old port.
      resume = true
      if (!server.isRunning) ends.push(performance.now())
      while (performance.now() - Number(ends[0]) > 60_000) ends.shift()
      if (ends.length > ENDS_A_MINUTE) {
        throw explainFailure(`It ended ${ends.length} times within a minute.`, this.#config.folder)
      }
    }
  }

  #serve(claimed: OwnedServer): void {
    this.#step = undefined
    this.#serving = claimed
    // A temporary server has one holder, who is back already.
    if (claimed.adopted && this.#countFrom === 0 && !this.#config.temporary)
      this.#countFrom = performance.now() + GRACE_MS
    this.#sweep()
    for (const socket of this.#holders.keys()) this.#welcome(socket)
    this.#count()
  }

  #sweep(): void {
    const { folder, temporary } = this.#config
    if (temporary) void sweepTemporary(folder).catch(() => {}) // the next time, then
  }

  async #end(): Promise<void> {
    await this.#server?.stop()
    this.#serving?.ownership.end()
    this.#isOver = true
  }

  /**
   * Another keeper owns the server. Ours find it by what the folder recorded, or at our own address, which it takes
   * back if we have it by mistake; unless it cannot be reached from here.
   */
  async #giveWay(owner: number): Promise<void> {
    const { folder } = this.#config
    const address = readRecord(folder)?.keeper.address ?? 'an address that is not recorded'
    const deadline = performance.now() + GIVE_WAY_MS
    while (performance.now() < deadline) {
      const isThere = address === this.#path ? !this.#address?.isOurs() : await answers(address)
      if (isThere) return
      await sleep(50)
    }
    throw new EmbeddedServerError(
      `The embedded PostgreSQL of ${folder} is kept by process ${owner}, which cannot be reached at ${address}. It hangs, or uses another folder for temporary files: set TMPDIR to the same for all, or stop the others.`,
      'already-running',
      folder,
    )
  }

  /** A temporary server leaves nothing behind. Only once it is stopped: whoever still uses it loses no data under its feet. */
  #discard(): void {
    const { temporary, folder } = this.#config
    if (temporary) removeTemporary(folder, this.#server?.home.dir)
  }

  /** Waits for one to tell it to, if nobody is there yet: whoever started us comes soon. */
  async #fail(error: unknown): Promise<void> {
    const { reason, message } = asEmbeddedServerError(error, this.#config.folder)
    console.error(new Date().toISOString(), isFault(error) ? error : `${reason}: ${message}`)
    if (this.#holders.size === 0) {
      await once(this.#arrivals, 'holder', { signal: AbortSignal.timeout(FAILURE_MS) }).catch(() => {})
    }
    for (const socket of this.#holders.keys()) sendMessage(socket, { type: 'failed', reason, message })
    this.#isOver = !this.#server?.isRunning
  }

  #attend(server: EmbeddedServer, claimed: OwnedServer): void {
    server.attend(claimed)
    this.#sweep()
    this.#address?.restore().catch((error) => {
      if (!this.#isDeaf) console.error(`${new Date().toISOString()} cannot listen at ${this.#path}: ${error}`)
      this.#isDeaf = true
    })
  }

  #tell(step: StartStep): void {
    if (step === this.#step) return
    this.#step = step
    for (const socket of this.#holders.keys()) sendMessage(socket, { type: 'progress', step })
  }

  #accept(socket: Socket): void {
    // The folder was removed under the server's feet: a new keeper must make a new one.
    if (this.#serving && this.#server?.isRemoved) this.retire()
    if (this.#retirement.signal.aborted) {
      socket.destroy()
      return
    }
    this.#holders.set(socket, undefined)
    this.#arrivals.emit('holder')
    clearTimeout(this.#counting)
    const { folder } = this.#config
    socket.on('error', () => {}) // 'close' follows
    socket.once('close', () => this.#leave(socket))
    socket.once('end', () => {
      this.#leave(socket)
      if (this.#config.temporary) {
        this.#leaving.add(socket)
        return
      }
      sendMessage(socket, { type: 'goodbye' })
      socket.end()
    })
    const identity = folderIdentity(folder) ?? this.#identity
    sendMessage(socket, { type: 'greeting', protocol: PROTOCOL, folder, identity, pid: process.pid })
    if (this.#step) sendMessage(socket, { type: 'progress', step: this.#step })
    onMessage(socket, (message) => {
      if (message.type !== 'hold') return
      this.#holders.set(socket, message)
      this.#welcome(socket)
    })
  }

  /** Tells where the server is, to one that said what it needs. */
  #welcome(socket: Socket): void {
    const wish = this.#holders.get(socket)
    if (!wish || !this.#serving) return
    const refusal = differs(wish, this.#serving)
    if (!refusal) {
      sendMessage(socket, { type: 'ready', url: this.#serving.url })
      return
    }
    const message = `The embedded PostgreSQL of ${this.#config.folder} already runs with ${refusal}. All who share a folder share one server: ask for the same, stop the others, or choose another \`embedded.dir\`.`
    sendMessage(socket, { type: 'failed', reason: 'already-running', message })
    socket.end()
  }

  #leave(socket: Socket): void {
    this.#holders.delete(socket)
    this.#count()
  }

  #count(): void {
    clearTimeout(this.#counting)
    if (this.#holders.size > 0 || !this.#serving) return
    const lingerMs = this.#config.temporary ? 0 : LINGER_MS
    const waitMs = Math.max(lingerMs, this.#countFrom - performance.now())
    this.#counting = setTimeout(() => this.retire(), waitMs)
  }
}

/** What the server has and another asked otherwise, in words that follow "runs with". */
function differs({ port, settings }: HoldMessage, running: OwnedServer): string | undefined {
  if (port !== undefined && port !== running.port) return `port ${running.port}, not ${port}`
  if (settings === undefined || running.settings === undefined) return undefined
  const text = (of: ServerSettings): string =>
    JSON.stringify(
      Object.entries(of)
        .map(([name, value]) => `${name}=${toText(value)}`)
        .sort(),
    )
  return text(settings) === text(running.settings)
    ? undefined
    : `the settings ${JSON.stringify(running.settings)}, not ${JSON.stringify(settings)}`
}
