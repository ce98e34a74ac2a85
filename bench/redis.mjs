// A Redis for the peers that need one: on a free port of this machine, in memory only, ended with the bench.
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'

/** Undefined if this machine has no `redis-server`. */
export const redisVersion = () =>
  /v=(\S+)/.exec(spawnSync('redis-server', ['--version'], { encoding: 'utf8' }).stdout ?? '')?.[1]

/** @returns undefined if this machine has none */
export async function startRedis() {
  if (!redisVersion()) return undefined
  const port = await freePort()
  const dir = mkdtempSync(join(tmpdir(), 'dibs-bench-redis-'))
  const settings = ['--port', port, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--dir', dir]
  const child = spawn('redis-server', settings.map(String), { stdio: 'ignore' })
  const url = `redis://127.0.0.1:${port}`
  const client = new Redis(url)
  client.on('error', () => {}) // until it listens
  await client.ping()
  await client.quit()
  return {
    url,
    async stop() {
      child.kill()
      await once(child, 'exit')
      rmSync(dir, { recursive: true, force: true })
    },
  }
}

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address()
  server.close()
  await once(server, 'close')
  return port
}
