import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { withTimeout } from '../postgres/with-timeout.js'
import { type Address, listen } from './listen.js'
import { type Answer, type HealthSource, Probes } from './probes.js'

/** How long `close` waits for requests that still run. */
const CLOSE_MS = 5_000

/** Answers the probes of an orchestrator, from before the database is open until the process ends. */
export class HttpServer {
  readonly #probes = new Probes()
  readonly #server = createServer((request, response) => void this.#handle(request, response))
  readonly #sockets = new Set<Socket>()
  #url = ''
  #closing: Promise<void> | undefined

  private constructor() {
    this.#server.on('connection', (socket) => {
      this.#sockets.add(socket)
      socket.once('close', () => this.#sockets.delete(socket))
    })
  }

  /** Listens, and answers that the process is starting until `opened` is called. */
  static async open(address: Address): Promise<HttpServer> {
    const server = new HttpServer()
    const port = await listen(server.#server, address)
    const { host } = address
    server.#url = `http://${host.includes(':') ? `[${host}]` : host}:${port}`
    return server
  }

  get url(): string {
    return this.#url
  }

  /** Call when the database is open and migrated. */
  opened(source: HealthSource): void {
    this.#probes.opened(source)
  }

  /** Accepts no more requests. Waits for running requests, at most `waitMs`. */
  close(waitMs = CLOSE_MS): Promise<void> {
    this.#closing ??= this.#close(waitMs)
    return this.#closing
  }

  async #close(waitMs: number): Promise<void> {
    this.#probes.stopping()
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve()) // closes idle connections too, except those that never sent a request
    })
    for (const socket of this.#sockets) if (socket.bytesRead === 0) socket.destroy()
    await withTimeout(closed, waitMs, () => {
      this.#server.closeAllConnections()
      return closed
    })
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { status, body, headers } = await this.#answer(request)
    const text = `${JSON.stringify(body)}\n`
    response.writeHead(status, {
      'Content-Type': 'application/json; charset=utf-8',
      'Content-Length': Buffer.byteLength(text),
      'Cache-Control': 'no-store',
      // Otherwise the connection would stay open, and `close` would wait for it.
      ...(this.#closing ? { Connection: 'close' } : {}),
      ...headers,
    })
    response.end(text) // node:http leaves the body out for HEAD
  }

  async #answer({ method, url = '' }: IncomingMessage): Promise<Answer> {
    const path = url.split('?', 1)[0]
    if (path !== '/healthz' && path !== '/readyz') {
      return { status: 404, body: { error: 'not found; there are /healthz and /readyz' } }
    }
    if (method !== 'GET' && method !== 'HEAD') {
      return { status: 405, body: { error: 'only GET and HEAD' }, headers: { Allow: 'GET, HEAD' } }
    }
    return path === '/healthz' ? this.#probes.healthz() : this.#probes.readyz()
  }
}
