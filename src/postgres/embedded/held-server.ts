import { chmodSync, existsSync, mkdirSync, mkdtempSync, realpathSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'
import { fullJitterMs } from '../backoff.js'
import { sleep } from '../sleep.js'
import { withTimeout } from '../with-timeout.js'
import type { EmbeddedOptions } from './embedded-options.js'
import { asEmbeddedServerError, isFault } from './explain-failure.js'
import { checkFolderOwner, checkLinkOwner } from './folder-owner.js'
import { keeperAddress } from './keeper-address.js'
import { KeeperLink } from './keeper-link.js'
import { PROTOCOL, type StartStep } from './keeper-messages.js'
import { isPrivate } from './private-folder.js'
import { folderIdentity } from './process-identity.js'
import { readRecord } from './server-record.js'
import { findKeeperProgram, type SpawnedKeeper, spawnKeeper } from './spawn-keeper.js'
import { markTemporary, removeTemporary } from './sweep-temporary.js'

/** What the holder of a server hears of it. */
export interface HeldServerEvents {
  readonly onStep: (step: StartStep, folder: string) => void
  /** The keeper is lost, and a new one could not be had; it is tried again. */
  readonly onLost: (error: EmbeddedServerError, retryInMs: number) => void
  /** The server had to be started again, and could not have its old port. */
  readonly onMoved: (url: string) => void
}

/** Longer than a keeper tries to start its server. */
const ATTACH_MS = 360_000
const GREETING_MS = 10_000
const SPAWNS = 20
const POLL_MS = 20
/** As long as a successor may take to be there. */
const CLOSE_MS = 5_000
/** And to end the server, as nothing of a temporary one is left after `close`. */
const CLOSE_TEMPORARY_MS = 20_000
const RETRY_BASE_MS = 500
const RETRY_CAP_MS = 30_000

/** A hold on the server of a folder. While it stands the server runs; when it breaks, it is made again. */
export class HeldServer {
  readonly #folder: string
  readonly #options: EmbeddedOptions
  readonly #events: HeldServerEvents
  readonly #closing = new AbortController()
  #link: KeeperLink | undefined
  #attaching: Promise<void> | undefined
  #url = ''
  /** Nobody waits for a link any more. */
  #isOver = false

  private constructor(folder: string, options: EmbeddedOptions, events: HeldServerEvents) {
    this.#folder = folder
    this.#options = options
    this.#events = events
  }

  /** Resolves once the server answers, started if need be. */
  static async open(options: EmbeddedOptions, events: HeldServerEvents): Promise<HeldServer> {
    const { dir = './.dibs', temporary = false } = options
    if (process.platform === 'win32') {
      const message = 'There is no embedded PostgreSQL on Windows. Give the URL of a PostgreSQL that runs.'
      throw new EmbeddedServerError(message, 'no-binaries', dir)
    }
    let folder = dir
    try {
      findKeeperProgram(dir) // also when another's keeper runs: the next time it may not
      folder = temporary ? newTemporaryFolder() : prepareFolder(dir)
      const binaries = options.binaries && resolve(options.binaries)
      const held = new HeldServer(folder, { ...options, binaries }, events)
      held.#url = await held.#attach(false)
      void held.#stayAttached()
      return held
    } catch (error) {
      if (temporary && folder !== dir) removeTemporary(folder)
      throw isFault(error) ? error : asEmbeddedServerError(error, folder)
    }
  }

  /** Password included. */
  get url(): string {
    return this.#url
  }

  /** Lets go of the server. Resolves soon; if it is temporary, when it is gone. */
  async close(): Promise<void> {
    if (this.#closing.signal.aborted) return
    this.#closing.abort()
    const closeMs = this.#options.temporary ? CLOSE_TEMPORARY_MS : CLOSE_MS
    await withTimeout(this.#leave(closeMs), closeMs, () => {})
    this.#isOver = true
    this.#link?.destroy()
  }

  /** A keeper that is lost cannot notice that we go. Its successor does, and stops the server that it left running. */
  async #leave(waitMs: number): Promise<void> {
    for (let tries = 0; tries < 2; tries++) {
      if (await this.#link?.leave(waitMs)) return
      await this.#reattach().catch(() => {})
    }
  }

  #reattach(): Promise<void> {
    this.#attaching ??= this.#attach(true)
      .then((url) => this.#moveTo(url))
      .finally(() => {
        this.#attaching = undefined
      })
    return this.#attaching
  }

  /** Connects to the keeper, or starts one, until the server answers; returns its URL. `again`: it did so before. */
  async #attach(again: boolean): Promise<string> {
    const deadline = performance.now() + ATTACH_MS
    let spawns = 0
    let spawned: SpawnedKeeper | undefined
    while (performance.now() < deadline && spawns <= SPAWNS && !this.#isOver) {
      const link = await this.#greet()
      const url = link && (await this.#hold(link, again, deadline))
      if (url) return url
      if (spawned?.failure) throw spawned.failure
      // A keeper that ends at once found another there; that one answers soon.
      if (!link && (!spawned || spawned.hasEnded)) {
        spawned = this.#spawn(again)
        spawns++
      }
      await sleep(POLL_MS, undefined, { ref: !again })
    }
    throw new EmbeddedServerError(
      `The embedded PostgreSQL of ${this.#folder} cannot be had: its keepers end without a word. ${join(this.#folder, 'keeper.log')} may tell why.`,
      'unknown',
      this.#folder,
    )
  }

  #spawn(again: boolean): SpawnedKeeper {
    const { temporary = false, port, settings, binaries } = this.#options
    return spawnKeeper({ folder: this.#folder, temporary, port, settings, binaries, resume: again })
  }

  /** A keeper that says it is that of our folder. */
  async #greet(): Promise<KeeperLink | undefined> {
    const ours = keeperAddress(this.#folder)
    for (const address of new Set([this.#recordedAddress() ?? ours, ours])) {
      const link = await KeeperLink.connect(address)
      if (!link) continue
      const greeting = await link.next(GREETING_MS)
      const identity = folderIdentity(this.#folder)
      if (
        greeting?.type === 'greeting' &&
        (greeting.folder === this.#folder || greeting.identity === identity)
      ) {
        if (greeting.protocol === PROTOCOL) return link
        link.destroy()
        throw this.#unusableKeeper(`is one of another release of Dibs (process ${greeting.pid})`)
      }
      if (greeting?.type === 'greeting' && address === ours) {
        link.destroy()
        throw this.#unusableKeeper(`listens at ${address} but says that it keeps ${greeting.folder}`)
      }
      const isSilent = greeting === undefined && link.isOpen
      link.destroy()
      if (isSilent) throw this.#unusableKeeper(`listens at ${address} but does not answer`)
    }
    return undefined
  }

  /** Only where nobody else can listen: the record outlives the folder for temporary files that it leads to. */
  #recordedAddress(): string | undefined {
    const address = readRecord(this.#folder)?.keeper.address
    return address && isPrivate(dirname(address), process.getuid?.()) ? address : undefined
  }

  #unusableKeeper(what: string): EmbeddedServerError {
    return new EmbeddedServerError(
      `The keeper of the embedded PostgreSQL of ${this.#folder} ${what}. Stop the processes that use that folder, then start again.`,
      'already-running',
      this.#folder,
    )
  }

  /** Waits for the server. Undefined if the keeper ended meanwhile. */
  async #hold(link: KeeperLink, again: boolean, deadline: number): Promise<string | undefined> {
    const { port, settings } = this.#options
    if (again) link.unref()
    link.hold(again ? {} : { port, settings })
    for (;;) {
      const message = await link.next(deadline - performance.now())
      if (message?.type === 'progress') this.#events.onStep(message.step, this.#folder)
      else if (message?.type === 'ready' && !this.#isOver) {
        this.#link = link
        link.unref()
        return message.url
      } else {
        link.destroy()
        if (message?.type === 'failed')
          throw new EmbeddedServerError(message.message, message.reason, this.#folder)
        return undefined
      }
    }
  }

  /** Reads on until the keeper is gone, then finds or starts its successor; until closed. */
  async #stayAttached(): Promise<void> {
    const { signal } = this.#closing
    for (let attempt = 0; !signal.aborted; ) {
      const message = await this.#link?.next()
      if (message?.type === 'ready') this.#moveTo(message.url)
      if (message || signal.aborted) continue
      try {
        await this.#reattach()
        attempt = 0
      } catch (error) {
        if (signal.aborted) return
        const retryInMs = fullJitterMs(++attempt, RETRY_BASE_MS, RETRY_CAP_MS)
        this.#events.onLost(asEmbeddedServerError(error, this.#folder), retryInMs)
        await sleep(retryInMs, signal, { ref: false }).catch(() => {})
      }
    }
  }

  #moveTo(url: string): void {
    if (url === this.#url) return
    this.#url = url
    this.#events.onMoved(url)
  }
}

/** The folder by its real path, made if there is none, and kept out of git: it holds a password. */
function prepareFolder(dir: string): string {
  const wanted = resolve(dir)
  makeFolder(wanted)
  checkLinkOwner(wanted, wanted)
  const folder = realpathSync(wanted)
  checkFolderOwner(folder)
  try {
    writeFileSync(join(folder, '.gitignore'), '*\n', { flag: 'wx' })
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error // else it is the user's, or of before
  }
  return folder
}

/** Level by level: with `recursive`, Node 20 never returns from a place such as /proc. */
function makeFolder(path: string): void {
  if (existsSync(path)) return
  makeFolder(dirname(path))
  try {
    mkdirSync(path, 0o755) // whatever the umask: root refuses a folder that others may write to
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
