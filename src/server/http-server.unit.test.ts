import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { deferred } from '../../test/deferred.js'
import { realTime } from '../../test/real-time.js'
import { until } from '../../test/until.js'
import { InvalidInputError } from '../errors.js'
import type { Health } from '../ops/health.js'
import { HttpServer } from './http-server.js'

const well: Health = {
  ok: true,
  database: 'reachable',
  latencyMs: 1,
  schema: 'dibs',
  schemaVersion: 1,
  problem: undefined,
}
const unwell: Health = {
  ok: false,
  database: 'unreachable',
  latencyMs: 1,
  schema: 'dibs',
  schemaVersion: undefined,
  problem: 'gone',
}
const always = (health: Health) => ({ health: async () => health })

async function start(): Promise<HttpServer> {
  const server = await HttpServer.open({ host: '127.0.0.1', port: 0 })
  onTestFinished(() => server.close(0))
  return server
}

async function ask(server: HttpServer, path: string, init?: RequestInit) {
  const response = await fetch(`${server.url}${path}`, init)
  return { status: response.status, headers: response.headers, text: await response.text() }
}

async function getJson(server: HttpServer, path: string): Promise<[status: number, body: unknown]> {
  const { status, text } = await ask(server, path)
  return [status, JSON.parse(text)]
}

/** A connection that a client keeps, with what came over it. */
async function keep(server: HttpServer): Promise<{ socket: Socket; received: () => string }> {
  const socket = connect(Number(new URL(server.url).port), '127.0.0.1')
  onTestFinished(() => void socket.destroy())
  socket.on('error', () => {})
  let received = ''
  socket.setEncoding('utf8').on('data', (text: string) => {
    received += text
  })
  await once(socket, 'connect')
  return { socket, received: () => received }
}

const get = (path: string): string => `GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`

it('is starting until the database is open', async () => {
  const server = await start()
  expect(await getJson(server, '/healthz')).toEqual([503, { ok: false, problem: 'starting' }])
  expect(await getJson(server, '/readyz')).toEqual([503, { ready: false, problem: 'starting' }])
  server.opened(always(well))
  const { problem, ...rest } = well
  expect(await getJson(server, '/healthz')).toEqual([200, rest])
  expect(await getJson(server, '/readyz?verbose')).toEqual([200, { ready: true }])
})

it('says what is wrong', async () => {
  const server = await start()
  server.opened(always(unwell))
  expect(await getJson(server, '/healthz')).toEqual([503, JSON.parse(JSON.stringify(unwell))])
  expect(await getJson(server, '/readyz')).toEqual([503, { ready: false, problem: 'gone' }])
})

it('answers HEAD as GET, without the body', async () => {
  const server = await start()
  server.opened(always(well))
  const got = await ask(server, '/healthz')
  const { status, headers, text } = await ask(server, '/healthz', { method: 'HEAD' })
  expect([status, text]).toEqual([200, ''])
  for (const name of ['content-type', 'content-length', 'cache-control'])
    expect(headers.get(name)).toBe(got.headers.get(name))
  expect(headers.get('cache-control')).toBe('no-store')
})

it('refuses other methods and other paths, in JSON', async () => {
  const server = await start()
  const refused = await ask(server, '/readyz', { method: 'POST', body: 'x'.repeat(100_000) })
  expect([refused.status, refused.headers.get('allow')]).toEqual([405, 'GET, HEAD'])
  expect(JSON.parse(refused.text)).toEqual({ error: 'only GET and HEAD' })
  for (const path of ['/', '/healthz/', '//', '/x?/healthz']) {
    const missing = await ask(server, path)
    expect([missing.status, missing.headers.get('cache-control')]).toEqual([404, 'no-store'])
    expect(JSON.parse(missing.text)).toHaveProperty('error')
  }
})

it('lets a request that runs end, says that it is stopping, and takes no other', async () => {
  const server = await start()
  const answer = deferred<Health>()
  const asked = deferred()
  server.opened({
    health: () => {
      asked.resolve()
      return answer.promise
    },
  })
  const running = ask(server, '/readyz')
  await asked.promise
  const closing = server.close()
  await expect(fetch(server.url)).rejects.toThrow()
  answer.resolve(well)
  const { status, headers, text } = await running
  expect([status, JSON.parse(text)]).toEqual([503, { ready: false, problem: 'stopping' }])
  expect(headers.get('connection')).toBe('close')
  await closing
})

it('does not wait for connections that are kept open, or never said a word', realTime, async () => {
  const server = await start()
  const used = await keep(server)
  used.socket.write(get('/healthz'))
  await until(() => used.received().includes('starting'), 'an answer')
  const silent = await keep(server)
  await ask(server, '/healthz') // by now the silent one is accepted
  const startedAt = performance.now()
  await server.close(60_000)
  expect(performance.now() - startedAt).toBeLessThan(5_000)
  await until(() => used.socket.closed && silent.socket.closed, 'both to be closed')
})

it('cuts off what does not end within its time', async () => {
  const server = await start()
  const asked = deferred()
  server.opened({
    health: () => {
      asked.resolve()
      return new Promise(() => {})
    },
  })
  const { socket } = await keep(server)
  socket.write(get('/healthz'))
  await asked.promise
  await server.close(50)
  await until(() => socket.closed, 'the connection to be cut')
})

it('names the port that is taken', async () => {
  const other = createServer().listen(0, '127.0.0.1')
  onTestFinished(() => void other.close())
  await once(other, 'listening')
  const { port } = other.address() as AddressInfo
  const error = await HttpServer.open({ host: '127.0.0.1', port }).catch((reason) => reason)
  expect(error).toBeInstanceOf(InvalidInputError)
  expect(error.message).toMatch(new RegExp(`\`port\` ${port} on 127.0.0.1 is taken .* choose another port`))
})

it.each(['', '192.0.2.1'])('refuses the host %j', async (host) => {
  await expect(HttpServer.open({ host, port: 0 })).rejects.toMatchObject({ field: 'host' })
})

it('brackets an IPv6 address in its URL', async () => {
  const server = await HttpServer.open({ host: '::1', port: 0 })
  onTestFinished(() => server.close())
  expect(server.url).toMatch(/^http:\/\/\[::1\]:\d+$/)
  expect((await getJson(server, '/healthz'))[0]).toBe(503)
})
