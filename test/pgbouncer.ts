import { spawnSync } from 'node:child_process'
import { chownSync, mkdtempSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { freePort } from '../src/postgres/embedded/free-port.js'
import { unprivilegedUser } from '../src/postgres/embedded/server-user.js'
import { supervise } from './supervise.js'

export const pgBouncerVersion = (): string | undefined =>
  spawnSync('pgbouncer', ['--version'], { encoding: 'utf8' }).stdout?.split('\n')[0]

/** PgBouncer in transaction mode in front of a server. */
export async function startPgBouncer(serverUrl: string): Promise<{ url: string; stop(): Promise<void> }> {
  const server = new URL(serverUrl)
  const user = process.getuid?.() === 0 ? unprivilegedUser() : undefined
  const dir = mkdtempSync(join(tmpdir(), 'dibs-test-pgbouncer-'))
  if (user) chownSync(dir, user.uid, user.gid)
  const port = await freePort()
  writeFileSync(
    join(dir, 'pgbouncer.ini'),
    `[databases]
* = host=${server.hostname} port=${server.port || 5432} user=${server.username}${server.password && ` password=${server.password}`}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 60
server_round_robin = 1
server_lifetime = 600
ignore_startup_parameters = extra_float_digits,options
`,
  )
  const bouncer = supervise(['pgbouncer', '-q', join(dir, 'pgbouncer.ini')], { dir, signal: 'TERM', user })
  const deadline = Date.now() + 10_000
  while (!(await accepts(port))) {
    if (Date.now() > deadline) {
      await bouncer.stop()
      throw new Error(`PgBouncer did not start:\n${bouncer.log()}`)
    }
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  return {
    url: `postgres://${server.username}@127.0.0.1:${port}${server.pathname}`,
    stop: () => bouncer.stop(),
  }
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })
}
