import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads'
import type { ClientConfig } from 'pg'
import { InvalidInputError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import type { Attempt } from './attempt.js'
import { renewLeases } from './job-statements.js'

/** A claim of a job whose lease the thread renews. */
export interface LeaseOfThread {
  readonly id: number
  readonly fence: number
  readonly leaseMs: number
  /** How long to renew the lease while the main thread sends no message. */
  readonly silentMs: number
}

/** A message to the thread. An empty one is a sign of life. */
export interface ThreadOrder {
  readonly add?: readonly LeaseOfThread[] | undefined
  readonly remove?: readonly Pick<LeaseOfThread, 'id' | 'fence'>[] | undefined
  readonly config?: ClientConfig | undefined
  /** Renew all leases at once. */
  readonly renewsNow?: true
  readonly ends?: true
}

/** The result of a heartbeat of the thread. */
export interface ThreadReport {
  /** When the heartbeat was sent, in nanoseconds by the clock that all threads share. */
  readonly sentAt: bigint
  readonly claims: readonly Pick<LeaseOfThread, 'id' | 'fence'>[]
  /** The result of `job_heartbeat`. Null if there was no answer. */
  readonly result: string | null
  readonly error?: string
}

export interface ThreadSetup {
  readonly port: MessagePort
  readonly config: ClientConfig
  /** True if the server must prove that it knows the password. */
  readonly provesPassword: boolean
  readonly sql: string
  /** See `Connections.autocommitFits`. */
  readonly autocommitFits: boolean
}

/** A handler without `timeoutMs` that keeps the main thread busy for longer than this counts as hanging. */
const SILENT_MS = 600_000
const LIFE_MS = 1_000

/** Renews leases from a separate thread, for handlers that block the main thread for longer than a lease. */
export class HeartbeatThread {
  readonly #database: Database
  readonly #thread: Worker
  readonly #port: MessagePort
  readonly #onReport: (report: ThreadReport) => void
  #add: LeaseOfThread[] = []
  #remove: Pick<LeaseOfThread, 'id' | 'fence'>[] = []
  readonly #life: NodeJS.Timeout
  /** True if the last heartbeat of this thread had an answer. */
  isAnswered = false

  /** @param onEnd called when the thread has ended. The main thread must renew the leases again. */
  constructor(database: Database, onReport: (report: ThreadReport) => void, onEnd: (error: unknown) => void) {
    this.#database = database
    this.#onReport = onReport
    const { port1, port2 } = new MessageChannel()
    this.#port = port1
    const setup: ThreadSetup = {
      port: port2,
      config: configOf(database),
      provesPassword: Reflect.get(database.pool.options.Client ?? {}, 'provesPassword') === true,
      sql: database.render(renewLeases).text,
      autocommitFits: database.autocommitFits,
    }
    this.#thread = new Worker(findProgram(), { workerData: setup, transferList: [port2] })
    this.#thread.once('error', onEnd)
    this.#thread.once('exit', () => onEnd(undefined))
    this.#thread.unref()
    port1.on('message', (report: ThreadReport) => this.#receive(report))
    port1.unref()
    this.#life = setInterval(() => this.flush(true), LIFE_MS)
    this.#life.unref()
  }

  add({ job, definition }: Attempt): void {
    const { leaseMs, timeoutMs = SILENT_MS } = definition
    this.#add.push({ id: job.id, fence: job.fence, leaseMs, silentMs: timeoutMs })
  }

  remove({ job }: Attempt): void {
    this.#remove.push({ id: job.id, fence: job.fence })
  }

  /** Sends what was added and removed. The thread gets the message even if the main thread is blocked right afterwards. */
  flush(isAlive = false): void {
    if (!isAlive && this.#add.length === 0) return
    const order: ThreadOrder = { add: this.#add, remove: this.#remove }
    this.#add = []
    this.#remove = []
    this.#port.postMessage(order)
  }

  /** Renews all leases at once. */
  renewNow(): void {
    this.flush()
    this.#port.postMessage({ renewsNow: true } satisfies ThreadOrder)
  }

  /** Reads the reports that have arrived. A main thread that was blocked must read them before it judges a deadline. */
  drain(): void {
    for (let read = receiveMessageOnPort(this.#port); read; read = receiveMessageOnPort(this.#port))
      this.#receive(read.message)
  }

  async end(): Promise<void> {
    clearInterval(this.#life)
    const ended = new Promise((resolve) => this.#thread.once('exit', resolve))
    this.#port.postMessage({ ends: true } satisfies ThreadOrder)
    const timer = setTimeout(() => void this.#thread.terminate(), 2_000)
    await ended
    clearTimeout(timer)
    this.#port.close()
  }

  #receive(report: ThreadReport): void {
    this.isAnswered = report.result !== null
    // The server may have another address by now.
    if (report.error !== undefined)
      this.#port.postMessage({ config: configOf(this.#database) } satisfies ThreadOrder)
    this.#onReport(report)
  }
}

const SETTINGS = [
  'connectionString',
  'host',
  'port',
  'user',
  'password',
  'database',
  'ssl',
  'options',
  'application_name',
] as const

/** Throws if a heartbeat thread cannot be started here. */
export function checkHeartbeatThread(database: Database): void {
  configOf(database)
  findProgram()
}

/** The connection settings that can be sent to a thread, which excludes functions. */
function configOf({ pool }: Database): ClientConfig {
  const config = Object.fromEntries(
    SETTINGS.flatMap((name) => (pool.options[name] === undefined ? [] : [[name, pool.options[name]]])),
  )
  if (Object.values(config).some((value) => typeof value === 'function'))
    throw new InvalidInputError(
      'heartbeatThread',
      'needs a pool whose password is a string, because a function cannot be sent to a thread',
    )
  return config
}

/** A bundler that packs everything into one file leaves the program out. */
function findProgram(): URL {
  const program = new URL('./heartbeat-program.js', import.meta.url)
  if (existsSync(fileURLToPath(program))) return program
  throw new InvalidInputError(
    'heartbeatThread',
    'needs a program of Dibs, heartbeat-program.js, that is missing: if a bundler put Dibs into one file with your code, tell it to leave the package dibs outside',
  )
}
