import { existsSync } from 'node:fs'
import { EmbeddedServerError } from '../../errors.js'
import { readFault } from '../fault.js'
import { sleep } from '../sleep.js'
import { prepareBinaries } from './binaries.js'
import type { ServerSettings } from './embedded-options.js'
import { explainFailure } from './explain-failure.js'
import { freePort } from './free-port.js'
import { type Home, prepareHome } from './home.js'
import { DATABASE, initialize, ROLE, readPassword } from './initialize.js'
import type { StartStep } from './keeper-messages.js'
import { claimServer, type Ownership } from './keeper-owner.js'
import {
  findPostmaster,
  hurryPostmaster,
  type Postmaster,
  startPostmaster,
  stopPostmaster,
} from './postmaster.js'
import { worksInRemoved } from './process-identity.js'
import { readRecord, type ServerRecord, writeRecord } from './server-record.js'

export interface ServerRequest {
  /** By its real path. */
  readonly folder: string
  readonly temporary: boolean
  readonly port?: number | undefined
  readonly settings?: ServerSettings | undefined
  readonly binaries?: string | undefined
}

/** A server that runs and that we own. */
export interface OwnedServer {
  readonly url: string
  readonly port: number
  /** Unknown if the folder has forgotten how its server was started. */
  readonly settings: ServerSettings | undefined
  readonly binaries: string | undefined
  /** It ran already: others may be using it. */
  readonly adopted: boolean
  readonly ownership: Ownership
}

type Running = Omit<OwnedServer, 'url' | 'ownership'>

const CLAIM_MS = 60_000
/** As long as a server may take to start. */
const WAIT_MS = 300_000
const PORT_TRIES = 5

/** The server of one folder, for its keeper: makes it run, claims it, ends it. */
export class EmbeddedServer {
  readonly #request: ServerRequest
  readonly #address: string
  readonly #onStep: (step: StartStep) => void
  readonly #home: Home
  #postmaster: Postmaster | undefined
  /** The identity of the one that was started here. */
  #started: string | undefined
  #hasServed = false
  #canRecord = true

  constructor(request: ServerRequest, address: string, onStep: (step: StartStep) => void) {
    this.#request = request
    this.#address = address
    this.#onStep = onStep
    this.#home = prepareHome(request.folder)
  }

  get home(): Home {
    return this.#home
  }

  /** Undefined if it will be gone when someone looks. */
  get #log(): string | undefined {
    return this.#request.temporary ? undefined : this.#home.log
  }

  get isRunning(): boolean {
    return findPostmaster(this.#home.data) !== undefined
  }

  /** Answers with the process number of another keeper if that owns it. `resume`: as it was started before. */
  async claim(resume: boolean): Promise<OwnedServer | { readonly owner: number }> {
    const deadline = performance.now() + CLAIM_MS
    for (;;) {
      const running = await this.#makeRun(resume)
      try {
        return await this.#claim(running)
      } catch (error) {
        // One that others use is not given up for being full.
        const isLate = !this.#hasServed && performance.now() > deadline
        if (!passes(error) || isLate) {
          // Nobody else would.
          if (this.#postmaster?.identity === this.#started) await this.stop()
          throw this.#explainClaim(error)
        }
        await sleep(100)
      }
    }
  }

  /** Its folder was removed under it. */
  get isRemoved(): boolean {
    const pid = this.#postmaster?.pid ?? 0
    return worksInRemoved(pid) ?? !existsSync(this.#home.data)
  }

  async stop(): Promise<void> {
    if (this.#postmaster) await stopPostmaster(this.#postmaster, { discard: this.#request.temporary })
  }

  /** For its owner, now and then: what others may have done to the server or to the folder's memory of it. */
  attend(owned: OwnedServer): void {
    const found = findPostmaster(this.#home.data)
    if (found) hurryPostmaster(found)
    if (readRecord(this.#request.folder)?.keeper.pid !== process.pid) this.#record(owned)
  }

  async #claim(running: Running): Promise<OwnedServer | { readonly owner: number }> {
    const url = `postgres://${ROLE}:${readPassword(this.#home)}@127.0.0.1:${running.port}/${DATABASE}`
    const claimed = await claimServer(url)
    if ('owner' in claimed) return claimed
    this.#hasServed = true
    this.#record(running) // not before: another keeper's server may be the one that runs
    return { ...running, url, ownership: claimed }
  }

  async #makeRun(resume: boolean): Promise<Running> {
    const { folder } = this.#request
    const deadline = performance.now() + WAIT_MS
    for (;;) {
      const found = findPostmaster(this.#home.data)
      if (found?.status === 'ready' || found?.status === 'standby') {
        this.#postmaster = found
        const adopted = found.identity !== this.#started
        const { settings, binaries } = readRecord(folder) ?? {}
        return { port: found.port, settings, binaries, adopted }
      }
      if (!found) {
        try {
          return await this.#start(resume)
        } catch (error) {
          if (!this.isRunning) throw error // else another keeper was first
        }
      }
      if (performance.now() > deadline) {
        throw explainFailure(`It has been ${found?.status} for too long.`, folder, this.#log)
      }
      if (found) hurryPostmaster(found)
      this.#onStep('waiting') // until it has started, or ended
      await sleep(50)
    }
  }

  async #start(resume: boolean): Promise<Running> {
    const { folder, temporary, port: wanted } = this.#request
    const before = readRecord(folder)
    if (resume && !existsSync(this.#home.data)) {
      throw new EmbeddedServerError(
        `The data of the embedded PostgreSQL was removed from ${this.#home.dir} while it ran. Open again to begin anew.`,
        'unknown',
        folder,
      )
    }
    const { settings = {}, binaries } = (resume && before) || this.#request
    const { bin, major } = await prepareBinaries({
      folder,
      given: binaries,
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
      const port = wanted ?? (await freePort(tries === 1 ? before?.port : undefined))
      try {
        this.#postmaster = await startPostmaster(this.#home, { bin, port, settings, log: this.#log })
        this.#started = this.#postmaster.identity
        return { port, settings, binaries, adopted: false }
      } catch (error) {
        // Of a port that was ours before, also that we may not have it any more.
        const reasons = tries === 1 && before ? ['port-taken', 'no-permission'] : ['port-taken']
        const isPort = error instanceof EmbeddedServerError && reasons.includes(error.reason)
        if (!isPort || wanted !== undefined || tries === PORT_TRIES) throw error
      }
    }
  }

  #record({ port, settings, binaries }: Omit<ServerRecord, 'keeper'>): void {
    const keeper = { pid: process.pid, address: this.#address }
    try {
      writeRecord(this.#request.folder, { port, settings, binaries, keeper })
    } catch (error) {
      // A full disk. Those who share our folder for temporary files find us without it.
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

/** It is on its way down, comes back from a crash, or has no room for us at the moment. */
function passes(error: unknown): boolean {
  const fault = readFault(error)
  return fault?.kind === 'connection' || fault?.sqlState === '53300'
}
