import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { ExplorationError } from '../../errors.js'
import { findPostmaster } from '../../postgres/embedded/postmaster.js'
import { readRecord } from '../../postgres/embedded/server-record.js'
import { sleep } from '../../postgres/sleep.js'
import type { Stage } from '../explore/stage/stage.js'

/** How long the server may take to be gone, and to be back. */
const AWAY_MS = 30_000
const LOOK_MS = 10

interface Found {
  readonly folder: string
  readonly fsync: string
  readonly commit: string
  readonly pages: string
}

/** A server that may be shut down and comes back: an embedded one of Dibs, which has its keeper. */
export class CrashableServer {
  readonly #data: string

  private constructor(data: string) {
    this.#data = data
  }

  /** Refuses a server that is not ours to end, and one that would lose what it has committed. */
  static async find(stage: Stage): Promise<CrashableServer> {
    const [found] = await stage.ask<Found>(
      `select setting as folder, current_setting('fsync') as fsync, current_setting('synchronous_commit') as commit,
         current_setting('full_page_writes') as pages
       from pg_catalog.pg_settings where name = 'data_directory'`,
    )
    if (!found || !isEmbedded(found.folder))
      throw new ExplorationError(
        'Mode `server` shuts the server down and waits for it to come back. It does so only with an embedded server of Dibs on this machine, seen as a superuser: `Dibs.open({ embedded: { dir } })`, and its `url`.',
        'server',
      )
    const off = [
      ...(found.fsync === 'off' ? ['fsync'] : []),
      ...(found.commit === 'off' ? ['synchronous_commit'] : []),
      ...(found.pages === 'off' ? ['full_page_writes'] : []),
    ]
    if (off.length > 0)
      throw new ExplorationError(
        `This server has ${off.join(', ')} off, and may lose what it has committed when it is shut down at once: that would say nothing about the code. Start it without such settings.`,
        'server',
      )
    return new CrashableServer(found.folder)
  }

  /** Ends it at once, without a checkpoint, and returns when it is back and the stage is connected to it. */
  async crash(stage: Stage): Promise<void> {
    const before = findPostmaster(this.#data)
    if (!before) throw new ExplorationError('The server to be shut down is not there.', 'server')
    process.kill(before.pid, 'SIGQUIT')
    const until = performance.now() + AWAY_MS
    for (;;) {
      await sleep(LOOK_MS)
      const now = findPostmaster(this.#data)
      if (now && now.identity !== before.identity && now.status === 'ready') break
      if (performance.now() > until)
        throw new ExplorationError(
          `The server was shut down and is not back after ${AWAY_MS / 1_000} s. See its log, ${join(dirname(this.#data), 'postgres.log')}.`,
          'server',
        )
    }
    await stage.reconnect()
  }
}

/** Its folder has the record of a keeper; where the data had to be elsewhere, a file there names the folder. */
function isEmbedded(data: string): boolean {
  const place = dirname(data)
  const note = join(place, 'folder')
  const folder = existsSync(note) ? readFileSync(note, 'utf8').trim() : place
  return readRecord(folder) !== undefined
}
