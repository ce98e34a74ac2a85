import { linkSync, renameSync, rmSync, statSync } from 'node:fs'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { folderHash } from './folder-hash.js'
import { privateFolder } from './private-folder.js'

/** Where the keeper of a folder listens. */
export function keeperAddress(folder: string): string {
  return join(privateFolder(folder), `${folderHash(folder)}.sock`)
}

/**
 * A socket that one keeper at a time has. Two that find a dead one's file may still both believe to have it: who
 * owns the server is decided in the server (`claimServer`), and the owner restores its address.
 */
export class KeeperAddress {
  readonly #folder: string
  readonly #path: string
  readonly #onConnection: (socket: Socket) => void
  #server: Server | undefined
  #inode: number | undefined
  #isReleased = false

  private constructor(folder: string, onConnection: (socket: Socket) => void) {
    this.#folder = folder
    this.#path = keeperAddress(folder)
    this.#onConnection = onConnection
  }

  /** Undefined if another keeper answers there. */
  static async claim(
    folder: string,
    onConnection: (socket: Socket) => void,
  ): Promise<KeeperAddress | undefined> {
    const address = new KeeperAddress(folder, onConnection)
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
      if (await answers(path)) break
      rmSync(path, { force: true })
    }
    address.#server?.close()
    rmSync(draft, { force: true })
    return undefined
  }

  /** Takes the address again if its file was cleaned away, or replaced by a keeper that does not own the server. */
  async restore(): Promise<void> {
    if (this.isOurs()) return
    const before = this.#server
    const draft = await this.#listen()
    try {
      if (this.#isReleased) this.#server?.close()
      else renameSync(draft, this.#path)
    } finally {
      before?.close() // last: it removes what has the draft's name
    }
  }

  /** For good. */
  release(): void {
    if (this.#isReleased) return
    this.#isReleased = true
    if (this.isOurs()) rmSync(this.#path, { force: true })
    this.#server?.close()
  }

  isOurs(): boolean {
    return statSync(this.#path, { throwIfNoEntry: false })?.ino === this.#inode
  }

  /** Listens under a name of its own, which is given back to be linked or renamed. */
  async #listen(): Promise<string> {
    const draft = `${this.#path.replace(/\.sock$/, '')}.${process.pid}`
    privateFolder(this.#folder) // it may have been cleaned away with its files, or made by another
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

/** True if somebody listens there. */
export function answers(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', (error: NodeJS.ErrnoException) => {
      resolve(error.code === 'EAGAIN') // its queue is full
    })
  })
}
