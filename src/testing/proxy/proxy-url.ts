import type { NetConnectOpts } from 'node:net'

const PORT = 5432

/** The address of the server in a URL: host and port or, with libpq's `host=/folder`, a Unix socket. */
export function connectOptionsOf(url: string): NetConnectOpts {
  const { hostname, port, searchParams } = new URL(url)
  const host = decodeURIComponent(searchParams.get('host') ?? hostname) || 'localhost'
  const number = Number(searchParams.get('port') ?? port) || PORT
  if (host.startsWith('/')) return { path: `${host}/.s.PGSQL.${number}`, allowHalfOpen: true }
  return { host: host.replace(/^\[|\]$/g, ''), port: number, allowHalfOpen: true }
}

/** The URL with a port of this machine, and without TLS if the proxy refuses it. */
export function proxiedUrl(url: string, port: number, tls: 'refuse' | 'pass'): string {
  const through = new URL(url)
  through.hostname = '127.0.0.1'
  through.port = String(port)
  for (const name of [...through.searchParams.keys()]) {
    const isTls = /^ssl/.test(name) && tls === 'refuse'
    if (isTls || name === 'host' || name === 'hostaddr' || name === 'port') through.searchParams.delete(name)
  }
  return through.href
}
