import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads'
import type { ClientConfig } from 'pg'
import { InvalidInputError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import type { Attempt } from './attempt.js'
import { beatJobs } from './job-statements.js'

/** A lease as the thread knows it. */
export interface KeptLease {
  readonly id: number
  readonly fence: number
  readonly leaseMs: number
  /** For how long it is renewed though the main thread says nothing. */
  readonly silentMs: number
}

/** What the thread is told; also nothing, as a sign of life. */
export interface ThreadOrder {
  readonly add?: readonly KeptLease[] | undefined
  readonly remove?: readonly Pick<KeptLease, 'id' | 'fence'>[] | undefined
  readonly config?: ClientConfig | undefined
  readonly end?: true
}

/** What came of a heartbeat. */
export interface ThreadReport {
  /** When it was sent, in nanoseconds by the clock that all threads share. */
  readonly sentAt: bigint
  readonly claims: readonly Pick<KeptLease, 'id' | 'fence'>[]
  /** The answer of `job_beat`; null: there was none. */
  readonly told: string | null
  readonly error?: string
}

export interface ThreadSetup {
  readonly port: MessagePort
  readonly config: ClientConfig
  /** The server must prove that it knows the password. */
  readonly proves: boolean
  readonly text: string
  /** What is sent by itself is read committed, and may write. */
  readonly autocommitFits: boolean
}

/** A handler without a limit of its own that keeps the main thread busy for longer than this is taken for hanging. */
const SILENT_MS = 600_000
const LIFE_MS = 1_000

/** Renews leases from a thread of its own, for handlers that compute for longer than a lease and let nothing else run meanwhile. */
export class HeartbeatThread {
  readonly #database: Database
  readonly #thread: Worker
  readonly #port: MessagePort
  readonly #onReport: (report: ThreadReport) => void
  #add: KeptLease[] = []
  #remove: Pick<KeptLease, 'id' | 'fence'>[] = []
  readonly #life: NodeJS.Timeout

  /** `onEnd`: it is gone, and leases are the main thread's again. */
  constructor(database: Database, onReport: (report: ThreadReport) => void, onEnd: (error: unknown) => void) {
    this.#database = database
    this.#onReport = onReport
    const { port1, port2 } = new MessageChannel()
    this.#port = port1
    const setup: ThreadSetup = {
      port: port2,
      config: configOf(database),
      proves: Reflect.get(database.pool.options.Client ?? {}, 'provesPassword') === true,
      text: database.render(beatJobs).text,
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

  /** What it is told from now on it knows before a handler begins: a message is there when it is sent, also if the sender does nothing else for a while. */
  flush(isAlive = false): void {
    if (!isAlive && this.#add.length === 0) return
    const order: ThreadOrder = { add: this.#add, remove: this.#remove }
    this.#add = []
    this.#remove = []
    this.#port.postMessage(order)
  }

  /** Reads at once what the thread has said: whoever was busy for long must know of it before it judges a lease by its own clock. */
  drain(): void {
    for (let read = receiveMessageOnPort(this.#port); read; read = receiveMessageOnPort(this.#port))
      this.#receive(read.message)
  }

  async end(): Promise<void> {
    clearInterval(this.#life)
    const ended = new Promise((resolve) => this.#thread.once('exit', resolve))
    this.#port.postMessage({ end: true } satisfies ThreadOrder)
    const timer = setTimeout(() => void this.#thread.terminate(), 2_000)
    await ended
    clearTimeout(timer)
    this.#port.close()
  }

  #receive(report: ThreadReport): void {
    // The server may be elsewhere by now.
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

/** Whether there can be one, for whoever wants to know before. */
export function checkHeartbeatThread(database: Database): void {
  configOf(database)
  findProgram()
}

/** What a thread can be given of how to connect: no functions. */
function configOf({ pool }: Database): ClientConfig {
  const config = Object.fromEntries(
    SETTINGS.flatMap((name) => (pool.options[name] === undefined ? [] : [[name, pool.options[name]]])),
  )
  if (Object.values(config).some((value) => typeof value === 'function'))
    throw new InvalidInputError(
      'heartbeatThread',
      'needs a pool whose password is a text, since a function cannot be handed to a thread',
    )
  return config
}

/** A bundler that puts everything into one file leaves it out. */
function findProgram(): URL {
  const program = new URL('./heartbeat-program.js', import.meta.url)
  if (existsSync(fileURLToPath(program))) return program
  throw new InvalidInputError(
    'heartbeatThread',
    'needs a program of Dibs, heartbeat-program.js, that is missing: if a bundler put Dibs into one file with your code, tell it to leave the package dibs outside',
  )
}
