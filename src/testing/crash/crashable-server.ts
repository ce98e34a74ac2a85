import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { ExplorationError } from '../../errors.js'
import { findPostmaster } from '../../postgres/embedded/postmaster.js'
import { readRecord } from '../../postgres/embedded/server-record.js'
import { sleep } from '../../postgres/sleep.js'
import type { TestSession } from '../explore/session/test-session.js'

/** How long the server may take to shut down and to start again. */
const MAX_RESTART_MS = 30_000
const POLL_MS = 10

interface ServerSettings {
  readonly folder: string
  readonly fsync: string
  readonly commit: string
  readonly pages: string
}

/** An embedded server of Dibs. Its supervisor starts it again after a crash. */
export class CrashableServer {
  readonly #dataFolder: string

  private constructor(dataFolder: string) {
    this.#dataFolder = dataFolder
  }

  /** Refuses a server that is not embedded, and one whose settings may lose committed transactions. */
  static async find(testSession: TestSession): Promise<CrashableServer> {
    const [found] = await testSession.query<ServerSettings>(
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
    // guard: crash.lost-commits
    if (off.length > 0)
      throw new ExplorationError(
        `This server has ${off.join(', ')} off, and may lose what it has committed when it is shut down at once: that would say nothing about the code. Start it without such settings.`,
        'server',
      )
    return new CrashableServer(found.folder)
  }

  /** Shuts the server down without a checkpoint. Returns when it is back and the test session is connected again. */
  async crash(testSession: TestSession): Promise<void> {
    const before = findPostmaster(this.#dataFolder)
    if (!before) throw new ExplorationError('The server to be shut down is not there.', 'server')
    process.kill(before.pid, 'SIGQUIT')
    const until = performance.now() + MAX_RESTART_MS
    for (;;) {
      await sleep(POLL_MS)
      const now = findPostmaster(this.#dataFolder)
      if (now && now.identity !== before.identity && now.status === 'ready') break
      if (performance.now() > until)
        throw new ExplorationError(
          `The server was shut down and is not back after ${MAX_RESTART_MS / 1_000} s. See its log, ${join(dirname(this.#dataFolder), 'postgres.log')}.`,
          'server',
        )
    }
    await testSession.reconnect()
  }
}

/** True if the server's folder has the record of a supervisor. Where the data is outside, a file beside it names the folder. */
function isEmbedded(dataFolder: string): boolean {
  const parent = dirname(dataFolder)
  const pointer = join(parent, 'folder')
  const folder = existsSync(pointer) ? readFileSync(pointer, 'utf8').trim() : parent
  return readRecord(folder) !== undefined
}
