import { existsSync } from 'node:fs'
import { EmbeddedServerError } from '../../errors.js'
import { readFault } from '../fault.js'
import { retry } from '../retry.js'
import { prepareBinaries } from './binaries.js'
import { claimServer, type Ownership } from './claim-server.js'
import type { ServerSettings } from './embedded-options.js'
import { explainFailure } from './explain-failure.js'
import { freePort } from './free-port.js'
import { DATABASE, initialize, ROLE, readPassword } from './initialize.js'
import { poll } from './poll.js'
import {
  findPostmaster,
  hastenShutdown,
  type Postmaster,
  startPostmaster,
  stopPostmaster,
} from './postmaster.js'
import { worksInRemoved } from './process-identity.js'
import { prepareServerPaths, type ServerPaths } from './server-paths.js'
import { readRecord, type ServerRecord, writeRecord } from './server-record.js'
import type { StartStep } from './supervisor-messages.js'

export interface ServerRequest {
  /** The real path. */
  readonly folder: string
  readonly temporary: boolean
  readonly port?: number | undefined
  readonly settings?: ServerSettings | undefined
  readonly binaries?: string | undefined
}

/** A running server that this supervisor owns. */
export interface OwnedServer {
  readonly url: string
  readonly port: number
  /** Undefined if the record of the last start is lost. */
  readonly settings: ServerSettings | undefined
  readonly binaries: string | undefined
  /** True if the server ran already, so that others may use it. */
  readonly adopted: boolean
  readonly ownership: Ownership
}

type Running = Omit<OwnedServer, 'url' | 'ownership'>

const CLAIM_MS = 60_000
/** How long a server may take to start. */
const WAIT_MS = 300_000
const PORT_TRIES = 5

/** Starts, claims and stops the server of one folder, for its supervisor. */
export class EmbeddedServer {
  readonly #request: ServerRequest
  readonly #address: string
  readonly #onStep: (step: StartStep) => void
  readonly #home: ServerPaths
  #postmaster: Postmaster | undefined
  /** The identity of the server process that was started here. */
  #started: string | undefined
  #hasServed = false
  #canRecord = true

  constructor(request: ServerRequest, address: string, onStep: (step: StartStep) => void) {
    this.#request = request
    this.#address = address
    this.#onStep = onStep
    this.#home = prepareServerPaths(request.folder)
  }

  get home(): ServerPaths {
    return this.#home
  }

  /** Undefined for a temporary server: the log is removed with it. */
  get #log(): string | undefined {
    return this.#request.temporary ? undefined : this.#home.log
  }

  get isRunning(): boolean {
    return findPostmaster(this.#home.data) !== undefined
  }

  /**
   * Makes the server run and claims it. Returns the pid of another supervisor if that one owns the server. `resume`:
   * starts the server with the settings of its last start.
   */
  async claim(resume: boolean): Promise<OwnedServer | { readonly owner: number }> {
    const attempt = async () => {
      const running = await this.#makeRun(resume)
      return await this.#claim(running).catch((cause) => {
        throw new NotClaimedError(cause)
      })
    }
    try {
      return await retry(attempt, {
        isRetryable: (error) => error instanceof NotClaimedError && isPassing(error.cause),
        // Keep a server that is in use, even if it has no room for another connection.
        deadlineAt: this.#hasServed ? undefined : performance.now() + CLAIM_MS,
        ...{ baseMs: 100, maxMs: 100, minMs: 50 },
      })
    } catch (error) {
      // A server that did not start has an error that says why.
      if (!(error instanceof NotClaimedError)) throw error
      // No other process would stop a server that this one started.
      if (this.#postmaster?.identity === this.#started) await this.stop()
      throw this.#explainClaim(error.cause)
    }
  }

  /** True if the folder of the data was removed while the server runs. */
  get isRemoved(): boolean {
    const pid = this.#postmaster?.pid ?? 0
    return worksInRemoved(pid) ?? !existsSync(this.#home.data)
  }

  async stop(): Promise<void> {
    if (this.#postmaster) await stopPostmaster(this.#postmaster, { discard: this.#request.temporary })
  }

  /** The owner calls this from time to time, because others may have changed the server or its record. */
  maintain(owned: OwnedServer): void {
    const found = findPostmaster(this.#home.data)
    if (found) hastenShutdown(found)
    if (readRecord(this.#request.folder)?.supervisor.pid !== process.pid) this.#record(owned)
  }

  async #claim(running: Running): Promise<OwnedServer | { readonly owner: number }> {
    const url = `postgres://${ROLE}:${readPassword(this.#home)}@127.0.0.1:${running.port}/${DATABASE}`
    const claimed = await claimServer(url)
    if ('owner' in claimed) return claimed
    this.#hasServed = true
    this.#record(running) // not earlier: the server may belong to another supervisor
    return { ...running, url, ownership: claimed }
  }

  /** Starts the server unless it runs, and waits until it is ready. */
  async #makeRun(resume: boolean): Promise<Running> {
    const { folder } = this.#request
    let status: Postmaster['status']
    const check = async (): Promise<Running | undefined> => {
      const found = findPostmaster(this.#home.data)
      status = found?.status
      if (found && (status === 'ready' || status === 'standby')) {
        this.#postmaster = found
        const adopted = found.identity !== this.#started
        const { settings, binaries } = readRecord(folder) ?? {}
        return { port: found.port, settings, binaries, adopted }
      }
      if (found) hastenShutdown(found)
      else {
        try {
          return await this.#start(resume)
        } catch (error) {
          if (!this.isRunning) throw error // otherwise another supervisor was first
        }
      }
      this.#onStep('waiting')
      return undefined
    }
    const running = await poll(check, { everyMs: 50, withinMs: WAIT_MS })
    if (!running) throw explainFailure(`It has been ${status} for too long.`, folder, this.#log)
    return running
  }

  async #start(resume: boolean): Promise<Running> {
    const { folder, temporary, port: wanted } = this.#request
    const previous = readRecord(folder)
    if (resume && !existsSync(this.#home.data)) {
      throw new EmbeddedServerError(
        `The data of the embedded PostgreSQL was removed from ${this.#home.dir} while it ran. Open again to begin anew.`,
        'unknown',
        folder,
      )
    }
    const { settings = {}, binaries } = (resume && previous) || this.#request
    const { bin, major } = await prepareBinaries({
      folder,
      binFolder: binaries,
      user: this.#home.user,
      onCopy: () => this.#onStep('copying'),
    })
    await initialize(
      this.#home,
      { bin, major },
      {
        durable: !temporary,
        onStart: () => this.#onStep('initializing'),
      },
    )
    this.#onStep('starting')
    for (let tries = 1; ; tries++) {
      const port = wanted ?? (await freePort(tries === 1 ? previous?.port : undefined))
      try {
        this.#postmaster = await startPostmaster(this.#home, { bin, port, settings, log: this.#log })
        this.#started = this.#postmaster.identity
        return { port, settings, binaries, adopted: false }
      } catch (error) {
        // By now, the recorded port may be taken, or forbidden to this user.
        const reasons = tries === 1 && previous ? ['port-taken', 'no-permission'] : ['port-taken']
        const isPort = error instanceof EmbeddedServerError && reasons.includes(error.reason)
        if (!isPort || wanted !== undefined || tries === PORT_TRIES) throw error
      }
    }
  }

  #record({ port, settings, binaries }: Omit<ServerRecord, 'supervisor'>): void {
    const supervisor = { pid: process.pid, address: this.#address }
    try {
      writeRecord(this.#request.folder, { port, settings, binaries, supervisor })
    } catch (error) {
      // A full disk. Processes with the same folder for temporary files find this supervisor without the record.
      if (this.#canRecord) console.error(`${new Date().toISOString()} cannot write the record: ${error}`)
      this.#canRecord = false
    }
  }

  #explainClaim(error: unknown): unknown {
    const { dir, data, folder } = this.#home
    const fault = readFault(error)
    if (fault?.sqlState?.startsWith('28')) {
      return new EmbeddedServerError(
        `The embedded PostgreSQL of ${folder} does not accept the password in ${dir}/password. Restore the file that belongs to the data, or remove ${data} to begin anew.`,
        'no-permission',
        folder,
        { cause: error },
      )
    }
    return error instanceof EmbeddedServerError
      ? error
      : explainFailure(fault?.message ?? `${error}`, folder, this.#log)
  }
}

/** The server runs, and could not be claimed. */
class NotClaimedError extends Error {
  constructor(override readonly cause: unknown) {
    super('the server could not be claimed')
  }
}

/** True if the server shuts down, recovers from a crash, or has no room for another connection. */
function isPassing(error: unknown): boolean {
  const fault = readFault(error)
  return fault?.kind === 'connection' || fault?.sqlState === '53300'
}
