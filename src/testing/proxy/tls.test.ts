import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { describe, expect, it, onTestFinished } from 'vitest'
import { requireComponent } from '../../../test/components.js'
import { directUrl } from '../../../test/database.js'
import { newFolder } from '../../../test/embedded.js'
import { startPostgres } from '../../../test/postgres-server.js'
import { PgProxy } from './pg-proxy.js'

const openssl = spawnSync('openssl', ['version'], { encoding: 'utf8' }).stdout?.trim()
const isAgain = Boolean(process.env.DIBS_TEST_VIA ?? process.env.DIBS_TEST_ON) // it brings a server of its own
const hasOpenssl = isAgain || requireComponent('openssl', openssl, 'TLS through the proxy')

/** A server with a certificate that it signed itself. */
async function startTlsServer(): Promise<string> {
  const folder = newFolder()
  const [key, cert] = [join(folder, 'key'), join(folder, 'cert')]
  const request = ['req', '-x509', '-nodes', '-newkey', 'rsa:2048', '-days', '2', '-subj', '/CN=localhost']
  expect(spawnSync('openssl', [...request, '-keyout', key, '-out', cert]).status).toBe(0)
  const server = await startPostgres()
  onTestFinished(() => server.stop())
  const client = new pg.Client(server.url)
  await client.connect()
  // Written by the server, so that they are its own.
  for (const [name, file] of [
    ['server.key', key],
    ['server.crt', cert],
  ] as const) {
    const lines = readFileSync(file, 'utf8').trim().split('\n')
    await client.query(
      `copy (select unnest(array[${lines.map((line) => `'${line}'`)}])) to program 'umask 077; cat > ${name}'`,
    )
  }
  await client.query('alter system set ssl = on')
  await client.query('select pg_reload_conf()')
  await client.end()
  return server.url
}

const isTls = async (connectionString: string, config: pg.ClientConfig): Promise<boolean> => {
  const client = new pg.Client({ connectionString, ...config })
  await client.connect()
  const { rows } = await client.query('select ssl from pg_stat_ssl where pid = pg_backend_pid()')
  await client.end()
  return rows[0].ssl
}

describe.skipIf(isAgain || !hasOpenssl)('TLS', () => {
  it('passes between client and server, unread, with faults that need not read', async () => {
    const url = await startTlsServer()
    await using proxy = await PgProxy.start({ url, tls: 'pass' })
    const ssl = { rejectUnauthorized: false }
    await expect.poll(() => isTls(proxy.url, { ssl }), { timeout: 30_000 }).toBe(true)
    expect(await isTls(proxy.url, { ssl, sslnegotiation: 'direct' } as pg.ClientConfig)).toBe(true)
    expect(await isTls(proxy.url, {})).toBe(false)
    proxy.inject({ kind: 'latency', delayMs: 20 })
    const startedAt = performance.now()
    expect(await isTls(proxy.url, { ssl })).toBe(true)
    expect(performance.now() - startedAt).toBeGreaterThan(120)
    const statements = proxy.history.filter(({ statement }) => statement).map(({ connection }) => connection)
    expect(statements).toHaveLength(1) // of the client that spoke in the clear
    await using refusing = await PgProxy.start({ url })
    expect(await isTls(`${refusing.url}?sslmode=disable`, {})).toBe(false)
  }, 60_000)

  it('is passed on and refused by a server that has none', async () => {
    await using proxy = await PgProxy.start({ url: directUrl, tls: 'pass' })
    await expect(isTls(proxy.url, { ssl: true })).rejects.toThrow('does not support SSL')
  })
})
