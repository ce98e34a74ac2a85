import { linkSync, renameSync, rmSync, statSync } from 'node:fs'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { folderHash, privateFolder } from './private-folder.js'

/** The path of the socket at which the supervisor of a folder listens. */
export function supervisorAddress(folder: string): string {
  return join(privateFolder(folder), `${folderHash(folder)}.sock`)
}

/**
 * The socket of one supervisor at a time. Two supervisors that find the file of a dead one may both believe that they have the
 * address. The server decides which of them owns it (`claimServer`), and the owner restores its address.
 */
export class SupervisorAddress {
  readonly #folder: string
  readonly #path: string
  readonly #onConnection: (socket: Socket) => void
  #server: Server | undefined
  #inode: number | undefined
  #isReleased = false
  /** False after a failure to restore the address was logged. */
  #canListen = true

  private constructor(folder: string, onConnection: (socket: Socket) => void) {
    this.#folder = folder
    this.#path = supervisorAddress(folder)
    this.#onConnection = onConnection
  }

  /** Returns undefined if another supervisor answers at the address. */
  static async claim(
    folder: string,
    onConnection: (socket: Socket) => void,
  ): Promise<SupervisorAddress | undefined> {
    const address = new SupervisorAddress(folder, onConnection)
    const path = address.#path
    const draft = await address.#listen()
    for (let tries = 0; tries < 20; tries++) {
      try {
        linkSync(draft, path) // refuses to replace, unlike a rename
        rmSync(draft)
        return address
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
      }
      if (await isListening(path)) break
      rmSync(path, { force: true })
    }
    address.#server?.close()
    rmSync(draft, { force: true })
    return undefined
  }

  /** Restores the address if its file was removed, or replaced by a supervisor that does not own the server. Never fails. */
  async restore(): Promise<void> {
    try {
      if (!this.isOurs()) await this.#replace()
    } catch (error) {
      if (this.#canListen)
        console.error(`${new Date().toISOString()} cannot listen at ${this.#path}: ${error}`)
      this.#canListen = false
    }
  }

  async #replace(): Promise<void> {
    const before = this.#server
    const draft = await this.#listen()
    try {
      if (this.#isReleased) this.#server?.close()
      else renameSync(draft, this.#path)
    } finally {
      before?.close() // last, since it removes the file with the name of the draft
    }
  }

  /** Releases the address for good. */
  release(): void {
    if (this.#isReleased) return
    this.#isReleased = true
    if (this.isOurs()) rmSync(this.#path, { force: true })
    this.#server?.close()
  }

  isOurs(): boolean {
    return statSync(this.#path, { throwIfNoEntry: false })?.ino === this.#inode
  }

  /** Listens at a draft path, and returns that path to be linked or renamed. */
  async #listen(): Promise<string> {
    const draft = `${this.#path.replace(/\.sock$/, '')}.${process.pid}`
    privateFolder(this.#folder) // it may have been removed with its files, or made by another user
    rmSync(draft, { force: true })
    const server = createServer({ allowHalfOpen: true }, this.#onConnection)
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject).listen(draft, resolve)
    })
    this.#server = server
    this.#inode = statSync(draft).ino
    return draft
  }
}

/** True if a process listens at `path`. */
export function isListening(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', (error: NodeJS.ErrnoException) => {
      resolve(error.code === 'EAGAIN') // the queue of the listener is full
    })
  })
}
