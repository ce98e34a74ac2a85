import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'
import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import { number } from '../../options/number-options.js'
import { checked, required } from '../../options/option.js'
import { optionTable, type ReadOptions } from '../../options/option-table.js'
import { oneOf } from '../../options/value-options.js'
import { sleep } from '../../postgres/sleep.js'
import { seededRandom } from '../seeded-random.js'
import type { WirePorts } from '../wire/wire-connection.js'
import { ActiveFault } from './active-fault.js'
import { ActiveFaults } from './active-faults.js'
import { checkFault, MAX_MS } from './check-fault.js'
import type { ConnectionHandler, CreateConnectionHandler } from './connection-handler.js'
import { EventLog, type ProxyEvent } from './event-log.js'
import type { Fault, Injection, ScriptedFault } from './fault.js'
import { passThrough } from './pass-through.js'
import { ProxyConnection } from './proxy-connection.js'
import { connectOptionsOf, proxiedUrl } from './proxy-url.js'

export interface PgProxyOptions {
  /** The URL of the server, or of a pooler in front of it. */
  readonly url: string
  /** The seed of everything random. Default 1. */
  readonly seed?: number | undefined
  /**
   * `refuse` (default): the proxy tells clients that there is no TLS. `pass`: clients may use TLS with the server. The proxy cannot read their statements
   * then, and cannot cut connections by them.
   */
  readonly tls?: 'refuse' | 'pass' | undefined
}

const MAX_STEPS = 10_000

export const pgProxyOptions = optionTable<PgProxyOptions>()('PgProxy.start', {
  url: required(checked(checkUrl)),
  seed: number({ default: 1, min: -Number.MAX_VALUE, max: Number.MAX_VALUE }),
  tls: oneOf(['refuse', 'pass'], { default: 'refuse' }),
})

type ReadProxyOptions = ReadOptions<PgProxyOptions, typeof pgProxyOptions.fields>

function checkUrl(field: string, url: unknown): void {
  if (typeof url === 'string' && URL.canParse(url)) return
  throw new InvalidInputError(field, `must be a URL such as postgres://localhost/shop, not ${nameGiven(url)}`)
}

const scriptTime = number({ min: 0, max: MAX_MS })

/**
 * A TCP proxy between clients and a PostgreSQL server or PgBouncer that injects network faults. The proxy understands the protocol of PostgreSQL, so it can
 * cut a connection exactly before a statement reaches the server, or exactly after the server has executed it.
 *
 * @example
 * await using proxy = await PgProxy.start({ url: 'postgres://app@localhost/shop' })
 * await using shop = await Dibs.open({ url: proxy.url })
 * const cut = proxy.inject({ kind: 'cut', when: 'after', statement: '/^commit$/' })
 * await shop.transaction(work).catch((lost) => console.log(lost)) // CommitOutcomeUnknownError, and it is committed
 * await cut.happened
 *
 * // The same faults as data, which can be stored beside a failed test.
 * await proxy.play([
 *   { atMs: 0, kind: 'latency', delayMs: 40, jitterMs: 10 },
 *   { atMs: 500, kind: 'black-hole', direction: 'toClient' },
 *   { atMs: 900, kind: 'heal' },
 * ])
 */
export class PgProxy implements AsyncDisposable {
  /** The URL of the server, with the host and port of the proxy. */
  readonly url: string
  readonly #options: ReadProxyOptions
  readonly #createHandler: CreateConnectionHandler | undefined
  readonly #listener: Server
  readonly #faults = new ActiveFaults()
  readonly #history: EventLog
  readonly #open = new Set<ProxyConnection>()
  readonly #closing = new AbortController()
  #closed: Promise<void> | undefined
  #accepted = 0

  private constructor(
    options: ReadProxyOptions,
    createHandler: CreateConnectionHandler | undefined,
    listener: Server,
    history: EventLog,
  ) {
    this.#options = options
    this.#createHandler = createHandler
    this.#listener = listener
    this.#history = history
    this.url = proxiedUrl(options.url, (listener.address() as AddressInfo).port, options.tls)
    listener.on('connection', (client) => this.#accept(client))
  }

  /** @param createHandler used inside this package: makes the handler of each connection, in place of the one that cuts by statement */
  static async start(options: PgProxyOptions, createHandler?: CreateConnectionHandler): Promise<PgProxy> {
    const read = pgProxyOptions.read(options)
    const history = new EventLog()
    const listener = createServer({ allowHalfOpen: true })
    listener.listen(0, '127.0.0.1')
    await once(listener, 'listening')
    return new PgProxy(read, createHandler, listener, history)
  }

  /** The number of connections that are not closed on both sides. */
  get connections(): number {
    return this.#open.size
  }

  /** The newest 10,000 events, oldest first. */
  get history(): readonly ProxyEvent[] {
    return this.#history.events
  }

  /** Injects a fault, which lasts until its `end()` or a `heal`. */
  inject(fault: Fault): Injection {
    checkFault(fault)
    const active = new ActiveFault(fault, () => {
      this.#faults.remove(active)
      this.#applyFaults()
    })
    this.#history.add({ event: 'fault', fault: fault.kind })
    if (fault.kind !== 'cut') active.strike({ atMs: this.#history.nowMs })
    if (fault.kind === 'heal') this.#faults.endAll()
    if (fault.kind === 'reset') for (const connection of this.#open) connection.reset()
    if (fault.kind === 'heal' || fault.kind === 'reset' || this.#closed) active.end()
    else this.#faults.add(active)
    this.#applyFaults()
    return active
  }

  /** Injects each fault at its time, those at 0 at once. Resolves after the last fault, or when the proxy is closed. */
  async play(script: readonly ScriptedFault[]): Promise<void> {
    if (script.length > MAX_STEPS)
      throw new InvalidInputError('script', `must have at most ${MAX_STEPS} steps, not ${script.length}`)
    for (const { atMs, ...fault } of script) {
      scriptTime.check('atMs', atMs)
      checkFault(fault)
    }
    const startedAt = performance.now()
    for (const { atMs, ...fault } of script.toSorted((a, b) => a.atMs - b.atMs)) {
      const waitMs = startedAt + atMs - performance.now()
      if (waitMs > 0) await sleep(waitMs, this.#closing.signal).catch(() => {})
      if (this.#closed) return
      this.inject(fault)
    }
  }

  /** Ends all connections and all faults. */
  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #close(): Promise<void> {
    this.#closing.abort()
    const open = [...this.#open]
    const closed = Promise.all([
      once(this.#listener, 'close'),
      ...open.map((connection) => connection.closed),
    ])
    this.#listener.close()
    for (const connection of open) connection.destroy()
    await closed
    this.#faults.endAll()
  }

  #applyFaults(): void {
    for (const connection of this.#open) connection.applyFaults()
  }

  #accept(client: Socket): void {
    const number = ++this.#accepted
    const { url, seed } = this.#options
    if (this.#faults.refuses || this.#closed) {
      this.#history.add({ event: 'refused', connection: number })
      client.on('error', () => {}).resetAndDestroy()
      return
    }
    this.#history.add({ event: 'opened', connection: number })
    const connection = new ProxyConnection({
      client,
      openServer: () => connect(connectOptionsOf(url)),
      faults: this.#faults,
      // One generator for each connection and direction, so that they do not change each other's numbers.
      randomOf: (way) => seededRandom(seed + (2 * number + (way === 'toClient' ? 1 : 0)) * 2 ** 32),
      createHandler: (ports, self) =>
        this.#createHandler?.(ports, { destroy: () => self.destroy() }) ??
        this.#passThrough(ports, self, number),
    })
    this.#open.add(connection)
    void connection.closed.then(() => {
      this.#open.delete(connection)
      this.#history.add({ event: 'closed', connection: number })
    })
  }

  #passThrough(ports: WirePorts, self: ProxyConnection, connection: number): ConnectionHandler {
    return passThrough(ports, {
      tls: this.#options.tls,
      onRequest: ({ texts, text }) => {
        if (texts.length === 0) return undefined
        this.#history.add({ event: 'statement', connection, statement: text })
        return this.#faults.chooseCut(texts)
      },
      cut: (cut, { text: statement }) => {
        this.#history.add({ event: 'cut', connection, statement, fault: cut.fault.kind })
        self.cut(cut)
        cut.strike({ atMs: this.#history.nowMs, connection, statement })
      },
    })
  }
}
