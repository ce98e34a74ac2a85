import { readFileSync } from 'node:fs'
import { chmod, mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { prepareBinaries } from '../../src/postgres/embedded/binaries.js'
import { freePort } from '../../src/postgres/embedded/free-port.js'
import { DATABASE, initialize, ROLE, readPassword } from '../../src/postgres/embedded/initialize.js'
import { prepareServerPaths } from '../../src/postgres/embedded/server-paths.js'
import { toArguments } from '../../src/postgres/embedded/settings.js'
import { supervise } from '../supervise.js'
import { until } from '../until.js'

/** A server that may be crashed as often as one likes: a keeper would give it up after a few times a minute. */
export interface CrashingServer {
  readonly url: string
  /**
   * Restarts the server like `pg_ctl restart -m immediate`: without a checkpoint, so that it recovers from its WAL. Resolves to the length of the outage, once
   * the server answers again.
   */
  crash(): Promise<number>
  stop(): Promise<void>
}

/** Commits are on the way to the disk before they are answered, which is what outlives a crash of the server alone; `fsync` is for one of the machine. */
const settings = { max_connections: 300, shared_buffers: '64MB', fsync: false, max_wal_size: '4GB' }

/** Starts it again whenever it has ended, until it is told to end itself. */
const loop = `trap 'kill -QUIT $pid; wait $pid; exit' TERM
while :; do "$@" & pid=$!; wait $pid; done`

export async function startCrashingServer(): Promise<CrashingServer> {
  const folder = await mkdtemp(join(tmpdir(), 'crashing-'))
  await chmod(folder, 0o755)
  const home = prepareServerPaths(folder)
  const binaries = await prepareBinaries({ folder, binFolder: undefined, user: home.user, onCopy() {} })
  await initialize(home, binaries, { durable: false, onStart() {} })
  const port = await freePort()
  const url = `postgres://${ROLE}:${readPassword(home)}@127.0.0.1:${port}/${DATABASE}`
  const program = [join(binaries.bin, 'postgres'), ...toArguments(home.data, port, settings)]
  const server = supervise(['sh', '-c', loop, 'sh', ...program], {
    dir: folder,
    signal: 'TERM',
    user: home.user,
  })
  const answers = async (): Promise<boolean> => {
    const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000 })
    client.on('error', () => {})
    try {
      await client.connect()
      await client.query('select 1')
      return true
    } catch {
      return false
    } finally {
      await client.end().catch(() => {})
    }
  }
  const findPid = (): number => Number(readFileSync(join(home.data, 'postmaster.pid'), 'utf8').split('\n')[0])
  await until(answers, `the server to answer: ${server.log()}`, 60_000)
  return {
    url,
    async crash() {
      const from = performance.now()
      const pid = findPid()
      process.kill(pid, 'SIGQUIT')
      await until(() => isGone(pid), 'the server to end', 60_000)
      await until(answers, 'the server to answer again', 60_000)
      return performance.now() - from
    },
    stop: () => server.stop(),
  }
}

function isGone(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return false
  } catch {
    return true
  }
}
