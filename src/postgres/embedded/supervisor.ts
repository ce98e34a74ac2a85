import type { Socket } from 'node:net'
import { dirname } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'
import { unlessAborted } from '../with-timeout.js'
import type { ServerSettings } from './embedded-options.js'
import { EmbeddedServer, type OwnedServer, type ServerRequest } from './embedded-server.js'
import { asEmbeddedServerError, explainFailure, isProgrammingError } from './explain-failure.js'
import { Holders } from './holders.js'
import { poll } from './poll.js'
import { folderIdentity } from './process-identity.js'
import { removeStaleDrafts } from './remove-stale-drafts.js'
import { readRecord } from './server-record.js'
import { toSettingValue } from './settings.js'
import { isListening, SupervisorAddress, supervisorAddress } from './supervisor-address.js'
import { type HoldMessage, PROTOCOL, type StartStep, sendMessage } from './supervisor-messages.js'
import { markTemporary, removeTemporary, sweepTemporary } from './temporary-servers.js'

/** The request of the process that starts the supervisor. */
export interface SupervisorConfig extends ServerRequest {
  /** True for the successor of a lost supervisor: it starts the server with the settings of its last start. */
  readonly resume: boolean
}

/** How long the server outlives the last process that uses it. */
const LINGER_MS = 2_000
/** How long a successor waits for the holders of its predecessor before it counts them. */
const GRACE_MS = 10_000
const MAINTAIN_MS = 1_000
/** Longer than an owner takes to restore its address. */
const GIVE_WAY_MS = 3_000
/** How long a failure is kept for a holder that has not connected yet. */
const FAILURE_MS = 5_000
/**
 * The supervisor gives up a server that ends more often than this within a minute. Its holders try again, at growing
 * intervals.
 */
const MAX_ENDS_PER_MINUTE = 5

/**
 * Keeps the server of one folder running for all processes that hold a connection to the supervisor. However a process
 * ends, its connection closes. Soon after the last connection closes, the supervisor stops the server and ends.
 */
export class Supervisor {
  readonly #config: SupervisorConfig
  readonly #path: string
  /** The identity of the folder, also after it was moved. */
  readonly #identity: string | undefined
  readonly #holders: Holders
  readonly #retirement = new AbortController()
  #address: SupervisorAddress | undefined
  #server: EmbeddedServer | undefined
  #owned: OwnedServer | undefined
  /** The current step of a start. */
  #step: StartStep | undefined
  /** True if the server has stopped or never ran. */
  #isStopped = false
  /** Before this time, the supervisor does not retire for lack of holders. */
  #retireFrom = 0
  #retireTimer: NodeJS.Timeout | undefined

  constructor(config: SupervisorConfig) {
    this.#config = config
    this.#path = supervisorAddress(config.folder)
    this.#identity = folderIdentity(config.folder)
    this.#holders = new Holders({
      leaveAtClose: config.temporary,
      onHold: (socket, request) => this.#answer(socket, request),
      onChange: () => this.#scheduleRetirement(),
    })
  }

  /** Resolves when the server has stopped, or another supervisor has the folder. */
  async run(): Promise<void> {
    this.#address = await SupervisorAddress.claim(this.#config.folder, (socket) => this.#accept(socket))
    if (!this.#address) return
    try {
      await this.#runServer()
    } catch (error) {
      await this.#fail(error)
    } finally {
      clearTimeout(this.#retireTimer)
      this.#address.release()
      const { folder, temporary } = this.#config
      // Only after the server has stopped: no process loses data while it uses the server.
      if (temporary && this.#isStopped) removeTemporary(folder, this.#server?.home.dir)
      this.#holders.close()
    }
  }

  /** Ends the supervisor as if no process used the server. */
  retire(): void {
    this.#retirement.abort()
    // A process that comes now finds no supervisor. It starts a new one, which waits until the server has stopped.
    this.#address?.release()
  }

  async #runServer(): Promise<void> {
    const { signal } = this.#retirement
    const server = new EmbeddedServer(this.#config, this.#path, (step) => this.#reportStep(step))
    this.#server = server
    removeStaleDrafts(dirname(this.#path))
    removeStaleDrafts(this.#config.folder)
    if (this.#config.temporary) markTemporary(this.#config.folder, server.home.dir)
    let { resume } = this.#config
    const serverEnds: number[] = []
    for (;;) {
      const owned = await server.claim(resume)
      if ('owner' in owned) return this.#giveWay(owned.owner)
      await this.#serve(server, owned)
      this.#owned = undefined // from here on, nobody gets its URL
      if (signal.aborted || (this.#holders.isEmpty && !server.isRunning)) {
        await server.stop()
        owned.ownership.end()
        this.#isStopped = true
        return
      }
      owned.ownership.end()
      // The server is gone, or has ended the supervisor's session. The supervisor claims the server again, on its old
      // port.
      resume = true
      if (!server.isRunning) serverEnds.push(performance.now())
      while (performance.now() - Number(serverEnds[0]) > 60_000) serverEnds.shift()
      if (serverEnds.length > MAX_ENDS_PER_MINUTE)
        throw explainFailure(`It ended ${serverEnds.length} times within a minute.`, this.#config.folder)
    }
  }

  /** Passes the server to holders until the server is lost or the supervisor retires. */
  async #serve(server: EmbeddedServer, owned: OwnedServer): Promise<void> {
    this.#step = undefined
    this.#owned = owned
    // A temporary server has one holder, which is back already.
    if (owned.adopted && this.#retireFrom === 0 && !this.#config.temporary)
      this.#retireFrom = performance.now() + GRACE_MS // guard: embedded.grace
    this.#sweep()
    for (const [socket, request] of this.#holders.requests) this.#answer(socket, request)
    this.#scheduleRetirement()
    const maintaining = setInterval(() => this.#maintain(server, owned), MAINTAIN_MS)
    await unlessAborted(owned.ownership.lost, this.#retirement.signal).catch(() => {}) // rejects at retirement
    clearInterval(maintaining)
  }

  /** Removes what other temporary servers left behind. A failure does not matter: the next sweep follows. */
  #sweep(): void {
    const { folder, temporary } = this.#config
    if (temporary) void sweepTemporary(folder).catch(() => {})
  }

  /**
   * Leaves the server to another supervisor. Holders find the owner by the record of the folder, or at this
   * supervisor's address, which the owner restores. Throws if the owner cannot be reached from here.
   */
  async #giveWay(owner: number): Promise<void> {
    const { folder } = this.#config
    const address = readRecord(folder)?.supervisor.address ?? 'an address that is not recorded'
    const findOwner = async (): Promise<true | undefined> => {
      const isThere = address === this.#path ? !this.#address?.isOurs() : await isListening(address)
      return isThere || undefined
    }
    if (await poll(findOwner, { everyMs: 50, withinMs: GIVE_WAY_MS })) return
    throw new EmbeddedServerError(
      `The embedded PostgreSQL of ${folder} is kept by process ${owner}, which cannot be reached at ${address}. It hangs, or uses another folder for temporary files: set TMPDIR to the same for all, or stop the others.`,
      'already-running',
      folder,
    )
  }

  /** Reports a failure to the holders. If there is none yet, the process that started this supervisor comes soon. */
  async #fail(error: unknown): Promise<void> {
    const { reason, message } = asEmbeddedServerError(error, this.#config.folder)
    console.error(new Date().toISOString(), isProgrammingError(error) ? error : `${reason}: ${message}`)
    await this.#holders.whenAny(FAILURE_MS)
    this.#holders.send({ type: 'failed', reason, message })
    this.#isStopped = !this.#server?.isRunning
  }

  #maintain(server: EmbeddedServer, owned: OwnedServer): void {
    server.maintain(owned)
    this.#sweep()
    void this.#address?.restore()
  }

  #reportStep(step: StartStep): void {
    if (step === this.#step) return
    this.#step = step
    this.#holders.send({ type: 'progress', step })
  }

  #accept(socket: Socket): void {
    // The folder was removed while the server runs: a new supervisor must make a new one.
    // guard: embedded.removed-folder
    if (this.#owned && this.#server?.isRemoved) this.retire()
    if (this.#retirement.signal.aborted) {
      socket.destroy()
      return
    }
    const { folder } = this.#config
    const identity = folderIdentity(folder) ?? this.#identity
    sendMessage(socket, { type: 'greeting', protocol: PROTOCOL, folder, identity, pid: process.pid })
    if (this.#step) sendMessage(socket, { type: 'progress', step: this.#step })
    this.#holders.add(socket)
  }

  /** Sends the URL of the server, or a refusal if the server does not fit the request. */
  #answer(socket: Socket, request: HoldMessage): void {
    if (!this.#owned) return
    const difference = findDifference(request, this.#owned)
    if (!difference) {
      sendMessage(socket, { type: 'ready', url: this.#owned.url })
      return
    }
    const message = `The embedded PostgreSQL of ${this.#config.folder} already runs with ${difference}. All who share a folder share one server: ask for the same, stop the others, or choose another \`embedded.dir\`.`
    sendMessage(socket, { type: 'failed', reason: 'already-running', message })
    socket.end()
  }

  #scheduleRetirement(): void {
    clearTimeout(this.#retireTimer)
    if (!this.#holders.isEmpty || !this.#owned) return
    const lingerMs = this.#config.temporary ? 0 : LINGER_MS
    const waitMs = Math.max(lingerMs, this.#retireFrom - performance.now())
    this.#retireTimer = setTimeout(() => this.retire(), waitMs)
  }
}

/** Describes how the running server differs from a request, after "runs with". Undefined if it does not. */
function findDifference({ port, settings }: HoldMessage, running: OwnedServer): string | undefined {
  if (port !== undefined && port !== running.port) return `port ${running.port}, not ${port}`
  if (settings === undefined || running.settings === undefined) return undefined
  const serialize = (of: ServerSettings): string =>
    JSON.stringify(
      Object.entries(of)
        .map(([name, value]) => `${name}=${toSettingValue(value)}`)
        .sort(),
    )
  return serialize(settings) === serialize(running.settings)
    ? undefined
    : `the settings ${JSON.stringify(running.settings)}, not ${JSON.stringify(settings)}`
}
