import { chmodSync, existsSync, mkdirSync, mkdtempSync, realpathSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'
import { retry } from '../retry.js'
import { sleep } from '../sleep.js'
import { withTimeout } from '../with-timeout.js'
import type { EmbeddedOptions } from './embedded-options.js'
import { asEmbeddedServerError, isProgrammingError } from './explain-failure.js'
import { checkFolderOwner, checkLinkOwner } from './folder-owner.js'
import { isPrivate } from './private-folder.js'
import { folderIdentity } from './process-identity.js'
import { readRecord } from './server-record.js'
import { findSupervisorProgram, type SpawnedSupervisor, spawnSupervisor } from './spawn-supervisor.js'
import { supervisorAddress } from './supervisor-address.js'
import { SupervisorConnection } from './supervisor-connection.js'
import { PROTOCOL, type StartStep } from './supervisor-messages.js'
import { markTemporary, removeTemporary } from './temporary-servers.js'

/** Callbacks of a process that holds a server. */
export interface SupervisedServerEvents {
  readonly onStep: (step: StartStep, folder: string) => void
  /** The supervisor is lost, and no new one is available yet. Dibs tries again after `retryInMs`. */
  readonly onLost: (error: EmbeddedServerError, retryInMs: number) => void
  /** The server was started again on another port. */
  readonly onUrlChanged: (url: string) => void
}

/** Longer than a supervisor takes to start its server. */
const ATTACH_MS = 360_000
const GREETING_MS = 10_000
const SPAWNS = 20
const POLL_MS = 20
/** How long a successor may take to start. */
const CLOSE_MS = 5_000
/** Includes the end of the server: nothing of a temporary server is left after `close`. */
const CLOSE_TEMPORARY_MS = 20_000

/** Keeps the server of a folder running, by a connection to its supervisor. Reconnects when the supervisor is lost. */
export class SupervisedServer {
  readonly #folder: string
  readonly #options: EmbeddedOptions
  readonly #events: SupervisedServerEvents
  readonly #closing = new AbortController()
  #connection: SupervisorConnection | undefined
  #attaching: Promise<void> | undefined
  #url = ''
  /** True if `close` has given up waiting. */
  #hasGivenUp = false

  private constructor(folder: string, options: EmbeddedOptions, events: SupervisedServerEvents) {
    this.#folder = folder
    this.#options = options
    this.#events = events
  }

  /** Resolves when the server answers. Starts it if it does not run. */
  static async open(options: EmbeddedOptions, events: SupervisedServerEvents): Promise<SupervisedServer> {
    const { dir = './.dibs', temporary = false } = options
    if (process.platform === 'win32') {
      const message = 'There is no embedded PostgreSQL on Windows. Give the URL of a PostgreSQL that runs.'
      throw new EmbeddedServerError(message, 'no-binaries', dir)
    }
    let folder = dir
    try {
      findSupervisorProgram(dir) // checked even if a supervisor runs, since later none may run
      folder = temporary ? newTemporaryFolder() : prepareFolder(dir)
      const binaries = options.binaries && resolve(options.binaries)
      const server = new SupervisedServer(folder, { ...options, binaries }, events)
      server.#url = await server.#attach(false)
      void server.#keepAttached()
      return server
    } catch (error) {
      if (temporary && folder !== dir) removeTemporary(folder)
      throw isProgrammingError(error) ? error : asEmbeddedServerError(error, folder)
    }
  }

  /** The URL, with the password. */
  get url(): string {
    return this.#url
  }

  /** Releases the server. Resolves soon, or for a temporary server when it is removed. */
  async close(): Promise<void> {
    if (this.#closing.signal.aborted) return
    this.#closing.abort()
    const closeMs = this.#options.temporary ? CLOSE_TEMPORARY_MS : CLOSE_MS
    await withTimeout(this.#leave(closeMs), closeMs, () => {})
    this.#hasGivenUp = true
    this.#connection?.destroy()
  }

  /** A lost supervisor does not notice that this process leaves. Reconnecting starts a successor, which stops the server. */
  async #leave(waitMs: number): Promise<void> {
    for (let tries = 0; tries < 2; tries++) {
      if (await this.#connection?.leave(waitMs)) return
      await this.#reattach().catch(() => {})
    }
  }

  #reattach(): Promise<void> {
    this.#attaching ??= this.#attach(true)
      .then((url) => this.#changeUrl(url))
      .finally(() => {
        this.#attaching = undefined
      })
    return this.#attaching
  }

  /**
   * Connects to the supervisor or starts one, and waits for the server. Returns its URL. `isReattach`: this process was
   * attached before.
   */
  async #attach(isReattach: boolean): Promise<string> {
    const deadline = performance.now() + ATTACH_MS
    let spawns = 0
    let spawned: SpawnedSupervisor | undefined
    while (performance.now() < deadline && spawns <= SPAWNS && !this.#hasGivenUp) {
      const connection = await this.#findSupervisor()
      const url = connection && (await this.#hold(connection, isReattach, deadline))
      if (url) return url
      if (spawned?.failure) throw spawned.failure
      // A supervisor that ends at once has found another one, which answers soon.
      if (!connection && (!spawned || spawned.hasEnded)) {
        spawned = this.#spawn(isReattach)
        spawns++
      }
      await sleep(POLL_MS, undefined, { ref: !isReattach })
    }
    throw new EmbeddedServerError(
      `The embedded PostgreSQL of ${this.#folder} did not start: its supervisors ended without a message. See ${join(this.#folder, 'supervisor.log')}.`,
      'unknown',
      this.#folder,
    )
  }

  #spawn(isReattach: boolean): SpawnedSupervisor {
    const { temporary = false, port, settings, binaries } = this.#options
    return spawnSupervisor({ folder: this.#folder, temporary, port, settings, binaries, resume: isReattach })
  }

  /** Connects to a supervisor that says it keeps this folder. */
  async #findSupervisor(): Promise<SupervisorConnection | undefined> {
    const ours = supervisorAddress(this.#folder)
    for (const address of new Set([this.#recordedAddress() ?? ours, ours])) {
      const connection = await SupervisorConnection.connect(address)
      if (!connection) continue
      const greeting = await connection.next(GREETING_MS)
      const identity = folderIdentity(this.#folder)
      if (
        greeting?.type === 'greeting' &&
        (greeting.folder === this.#folder || greeting.identity === identity) // guard: embedded.greeting
      ) {
        if (greeting.protocol === PROTOCOL) return connection
        connection.destroy()
        throw this.#unusableSupervisor(`is one of another release of Dibs (process ${greeting.pid})`)
      }
      if (greeting?.type === 'greeting' && address === ours) {
        connection.destroy()
        throw this.#unusableSupervisor(`listens at ${address} but says that it keeps ${greeting.folder}`)
      }
      const isSilent = greeting === undefined && connection.isOpen
      connection.destroy()
      if (isSilent) throw this.#unusableSupervisor(`listens at ${address} but does not answer`)
    }
    return undefined
  }

  /** The recorded address, if no other user can listen there: the record outlives the temporary folder that it names. */
  #recordedAddress(): string | undefined {
    const address = readRecord(this.#folder)?.supervisor.address
    return address && isPrivate(dirname(address), process.getuid?.()) ? address : undefined
  }

  #unusableSupervisor(problem: string): EmbeddedServerError {
    return new EmbeddedServerError(
      `The supervisor of the embedded PostgreSQL of ${this.#folder} ${problem}. Stop the processes that use that folder, then start again.`,
      'already-running',
      this.#folder,
    )
  }

  /** Waits for the server. Returns undefined if the supervisor ended. */
  async #hold(
    connection: SupervisorConnection,
    isReattach: boolean,
    deadline: number,
  ): Promise<string | undefined> {
    const { port, settings } = this.#options
    if (isReattach) connection.unref()
    connection.hold(isReattach ? {} : { port, settings })
    for (;;) {
      const message = await connection.next(deadline - performance.now())
      if (message?.type === 'progress') this.#events.onStep(message.step, this.#folder)
      else if (message?.type === 'ready' && !this.#hasGivenUp) {
        this.#connection = connection
        connection.unref()
        return message.url
      } else {
        connection.destroy()
        if (message?.type === 'failed')
          throw new EmbeddedServerError(message.message, message.reason, this.#folder)
        return undefined
      }
    }
  }

  /** Reads messages until the supervisor is gone, then finds or starts its successor. Ends at `close`. */
  async #keepAttached(): Promise<void> {
    const { signal } = this.#closing
    while (!signal.aborted) {
      const message = await this.#connection?.next()
      if (message?.type === 'ready') this.#changeUrl(message.url)
      if (message || signal.aborted) continue
      await retry(() => this.#reattach(), {
        isRetryable: () => !signal.aborted,
        ...{ baseMs: 500, maxMs: 30_000, signal, ref: false },
        onRetry: (error, _, delayMs) =>
          this.#events.onLost(asEmbeddedServerError(error, this.#folder), delayMs),
      }).catch(() => {}) // closed
    }
  }

  #changeUrl(url: string): void {
    if (url === this.#url) return
    this.#url = url
    this.#events.onUrlChanged(url)
  }
}

/** Makes the folder if it is missing, and keeps it out of git, since it holds a password. Returns its real path. */
function prepareFolder(dir: string): string {
  const wanted = resolve(dir)
  makeFolder(wanted)
  checkLinkOwner(wanted, wanted)
  const folder = realpathSync(wanted)
  checkFolderOwner(folder)
  try {
    writeFileSync(join(folder, '.gitignore'), '*\n', { flag: 'wx' })
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error // a file that the user or an earlier run has made stays
  }
  return folder
}

/** Makes one level at a time: with `recursive`, Node 20 never returns for a folder such as /proc. */
function makeFolder(path: string): void {
  if (existsSync(path)) return
  makeFolder(dirname(path))
  try {
    mkdirSync(path, 0o755) // whatever the umask is: root refuses a folder that others may write to
  } catch (error) {
    if (!existsSync(path)) throw error // else another process was first
  }
}

function newTemporaryFolder(): string {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'dibs-temporary-')))
  if (process.getuid?.() === 0) chmodSync(folder, 0o711) // the server runs as another user then
  markTemporary(folder)
  return folder
}
