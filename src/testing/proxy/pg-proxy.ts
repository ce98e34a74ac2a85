import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'
import { InvalidInputError } from '../../errors.js'
import { checkOptions } from '../../postgres/check-options.js'
import { nameGiven, showGiven } from '../../postgres/name-given.js'
import { sleep } from '../../postgres/sleep.js'
import { seededRandom } from '../seeded-random.js'
import type { WirePorts } from '../wire/wire.js'
import { ActiveFault } from './active-fault.js'
import { ActiveFaults } from './active-faults.js'
import { checkFault, expectNumber, MAX_MS } from './check-fault.js'
import type { ConnectionOwner, ConnectOwner } from './connection-owner.js'
import type { Fault, Injection, ScriptedFault } from './fault.js'
import { History, type ProxyEvent } from './history.js'
import { passThrough } from './pass-through.js'
import { ProxyConnection } from './proxy-connection.js'
import { redirect, targetOf } from './target.js'

export interface PgProxyOptions {
  /** The server, or the pool in front of it, that the proxy stands before. */
  readonly url: string
  /** Everything random comes from it: 1 where nothing is said. */
  readonly seed?: number | undefined
  /**
   * `refuse`, as usual: clients are told that there is no TLS, and speak in the clear. `pass`: they may speak TLS with
   * the server; then statements cannot be read, and nothing can be cut by them.
   */
  readonly tls?: 'refuse' | 'pass' | undefined
}

const MAX_STEPS = 10_000

function checkProxyOptions(options: PgProxyOptions): void {
  checkOptions(options, ['url', 'seed', 'tls'])
  const { url, seed = 1, tls = 'refuse' } = options
  if (typeof url !== 'string' || !URL.canParse(url))
    throw new InvalidInputError(
      'url',
      `must be a URL such as postgres://localhost/shop, not ${nameGiven(url)}`,
    )
  if (!Number.isFinite(seed)) throw new InvalidInputError('seed', `must be a number, not ${showGiven(seed)}`)
  if (tls !== 'refuse' && tls !== 'pass')
    throw new InvalidInputError('tls', `must be 'refuse' or 'pass', not ${showGiven(tls)}`)
}

/**
 * A network that fails when it is told to: stands on this machine between clients and a PostgreSQL server or a PgBouncer,
 * and understands their protocol, so that a connection can be lost exactly before a statement reaches the server or
 * exactly after the server has executed it.
 *
 * @example
 * await using proxy = await PgProxy.start({ url: 'postgres://app@localhost/shop' })
 * await using shop = await Dibs.open({ url: proxy.url })
 * const cut = proxy.inject({ kind: 'cut', when: 'after', statement: '/^commit$/' })
 * await shop.transaction(work).catch((lost) => console.log(lost)) // CommitOutcomeUnknownError, and it is committed
 * await cut.happened
 *
 * // The same as data, to be kept beside a test that failed.
 * await proxy.play([
 *   { atMs: 0, kind: 'latency', delayMs: 40, jitterMs: 10 },
 *   { atMs: 500, kind: 'black-hole', direction: 'toClient' },
 *   { atMs: 900, kind: 'heal' },
 * ])
 */
export class PgProxy implements AsyncDisposable {
  /** The URL it was started with, on our host and port. */
  readonly url: string
  readonly #options: PgProxyOptions
  readonly #connect: ConnectOwner | undefined
  readonly #listener: Server
  readonly #faults = new ActiveFaults()
  readonly #history: History
  readonly #open = new Set<ProxyConnection>()
  readonly #closing = new AbortController()
  #closed: Promise<void> | undefined
  #accepted = 0

  private constructor(
    options: PgProxyOptions,
    connectOwner: ConnectOwner | undefined,
    listener: Server,
    history: History,
  ) {
    this.#options = options
    this.#connect = connectOwner
    this.#listener = listener
    this.#history = history
    this.url = redirect(options.url, (listener.address() as AddressInfo).port, options.tls ?? 'refuse')
    listener.on('connection', (client) => this.#accept(client))
  }

  /** @param connectOwner for our own tools: who sits on each connection in place of the faults that read statements */
  static async start(options: PgProxyOptions, connectOwner?: ConnectOwner): Promise<PgProxy> {
    checkProxyOptions(options)
    const history = new History()
    const listener = createServer({ allowHalfOpen: true })
    listener.listen(0, '127.0.0.1')
    await once(listener, 'listening')
    return new PgProxy(options, connectOwner, listener, history)
  }

  /** How many are open now, or not yet closed on both sides. */
  get connections(): number {
    return this.#open.size
  }

  /** What happened, oldest first; the newest ten thousand events. */
  get history(): readonly ProxyEvent[] {
    return this.#history.events
  }

  /** From now on, until its `end()` or a `heal`. */
  inject(fault: Fault): Injection {
    checkFault(fault)
    const active = new ActiveFault(fault, () => {
      this.#faults.remove(active)
      this.#reconsider()
    })
    this.#history.note({ event: 'fault', fault: fault.kind })
    if (fault.kind !== 'cut') active.strike({ atMs: this.#history.nowMs })
    if (fault.kind === 'heal') this.#faults.endAll()
    if (fault.kind === 'reset') for (const connection of this.#open) connection.reset()
    if (fault.kind === 'heal' || fault.kind === 'reset' || this.#closed) active.end()
    else this.#faults.add(active)
    this.#reconsider()
    return active
  }

  /** Injects each fault at its time, those at 0 before it returns; resolves after the last, or when the proxy is closed. */
  async play(script: readonly ScriptedFault[]): Promise<void> {
    if (script.length > MAX_STEPS)
      throw new InvalidInputError('script', `must have at most ${MAX_STEPS} steps, not ${script.length}`)
    for (const step of script) {
      expectNumber('atMs', step.atMs, 0, MAX_MS)
      checkFault(step)
    }
    const startedAt = performance.now()
    for (const { atMs, ...fault } of script.toSorted((a, b) => a.atMs - b.atMs)) {
      const waitMs = startedAt + atMs - performance.now()
      if (waitMs > 0) await sleep(waitMs, this.#closing.signal).catch(() => {})
      if (this.#closed) return
      this.inject(fault)
    }
  }

  /** Ends all connections and all that was injected. */
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

  #reconsider(): void {
    for (const connection of this.#open) connection.reconsider()
  }

  #accept(client: Socket): void {
    const number = ++this.#accepted
    const { url, seed = 1 } = this.#options
    if (this.#faults.refuses || this.#closed) {
      this.#history.note({ event: 'refused', connection: number })
      client.on('error', () => {}).resetAndDestroy()
      return
    }
    this.#history.note({ event: 'opened', connection: number })
    const connection = new ProxyConnection({
      client,
      openServer: () => connect(targetOf(url)),
      faults: this.#faults,
      // By connection and way, so that what happens on one does not shift the draws of another.
      randomOf: (way) => seededRandom(seed + (2 * number + (way === 'toClient' ? 1 : 0)) * 2 ** 32),
      connect: (ports, self) =>
        this.#connect?.(ports, { destroy: () => self.destroy() }) ?? this.#passThrough(ports, self, number),
    })
    this.#open.add(connection)
    void connection.closed.then(() => {
      this.#open.delete(connection)
      this.#history.note({ event: 'closed', connection: number })
    })
  }

  #passThrough(ports: WirePorts, self: ProxyConnection, connection: number): ConnectionOwner {
    return passThrough(ports, {
      tls: this.#options.tls ?? 'refuse',
      onRequest: ({ texts, text }) => {
        if (texts.length === 0) return undefined
        this.#history.note({ event: 'statement', connection, statement: text })
        return this.#faults.chooseCut(texts)
      },
      cut: (cut, { text: statement }) => {
        this.#history.note({ event: 'cut', connection, statement, fault: cut.fault.kind })
        self.cut(cut)
        cut.strike({ atMs: this.#history.nowMs, connection, statement })
      },
    })
  }
}
