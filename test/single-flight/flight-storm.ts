import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { until } from '../until.js'

const script = join(import.meta.dirname, '../children/fly-together.mjs')
const PROCESSES = 8
const READERS = 100
/** If nothing has come for so long, something holds all of them up. */
const STUCK_MS = 60_000

type StormMessage =
  | { readonly at: 'ready' }
  | { readonly at: 'loading'; readonly key: string }
  | { readonly at: 'read'; readonly key: string; readonly fences: readonly number[] }
  | { readonly at: 'failed'; readonly error: string }

class Reader {
  readonly #process: ChildProcess
  readonly #gone: Promise<unknown>
  isReady = false
  isKilled = false
  loading: string[] = []
  read = new Map<string, readonly number[]>()
  problems: string[] = []

  constructor(settings: object) {
    this.#process = fork(script, [JSON.stringify(settings)])
    this.#gone = Promise.all([once(this.#process, 'exit'), once(this.#process, 'disconnect')])
    this.#process.on('exit', (code, signal) => {
      if (!this.isKilled && code !== 0) this.problems.push(`a process died by itself: ${signal ?? code}`)
    })
    this.#process.on('message', (message: StormMessage) => {
      if (message.at === 'ready') this.isReady = true
      else if (message.at === 'loading') this.loading.push(message.key)
      else if (message.at === 'read') this.read.set(message.key, message.fences)
      else this.problems.push(message.error)
    })
  }

  say(message: object): void {
    this.#process.send(message, () => {})
  }

  /** Waits until all messages of the process are read. */
  async kill(): Promise<void> {
    this.isKilled = true
    this.#process.kill('SIGKILL')
    await this.#gone
  }

  async end(): Promise<void> {
    this.say({ at: 'over' })
    await this.#gone
  }
}

export interface FlightRound {
  readonly loads: number
  /** How many callers have survived and got a value. */
  readonly readers: number
  /** Under how many fences what they were given was loaded. */
  readonly fences: number
  readonly problems: readonly string[]
}

export interface FlightStormOptions {
  readonly url: string
  readonly schema: string
  readonly leaseMs: number
  /** The number of rounds, and the number of further rounds in which the first loader is killed. */
  readonly rounds: number
  readonly killed: number
}

/** A hundred readers in eight processes ask for one key at a time, round after round. */
export async function flightStorm({
  url,
  schema,
  leaseMs,
  rounds,
  killed,
}: FlightStormOptions): Promise<Record<'rounds' | 'killed', FlightRound[]>> {
  let readers: Reader[] = []
  const start = (): Reader => new Reader({ url, schema, leaseMs })
  const areReady = () => until(() => readers.every(({ isReady }) => isReady), 'processes to start', STUCK_MS)

  async function fly(key: string, kills: boolean): Promise<FlightRound> {
    await areReady()
    const all = readers
    const loads = (): Reader[] =>
      all.flatMap((one) => one.loading.filter((other) => other === key).map(() => one))
    for (const [n, one] of all.entries())
      one.say({
        at: 'read',
        key,
        readers: Math.floor(READERS / PROCESSES) + (n < READERS % PROCESSES ? 1 : 0),
      })
    const first = await until(() => loads()[0], 'somebody to load', STUCK_MS)
    if (kills) {
      await first.kill()
      readers = [...all.filter((one) => one !== first), start()]
      const next = await until(() => loads().find((one) => one !== first), 'another to take over', STUCK_MS)
      next.say({ at: 'land', key })
    } else first.say({ at: 'land', key })
    const left = all.filter(({ isKilled }) => !isKilled)
    const isOver = () => left.every(({ read, problems }) => read.has(key) || problems.length > 0)
    await until(isOver, 'everybody to have it', STUCK_MS)
    const fences = left.flatMap(({ read }) => read.get(key) ?? [])
    return {
      loads: loads().length,
      readers: fences.length,
      fences: new Set(fences).size,
      problems: left.flatMap(({ problems }) => problems),
    }
  }

  try {
    readers = Array.from({ length: PROCESSES }, start)
    const result = { rounds: [] as FlightRound[], killed: [] as FlightRound[] }
    for (let round = 1; round <= rounds; round++) result.rounds.push(await fly(`round:${round}`, false))
    for (let round = 1; round <= killed; round++) result.killed.push(await fly(`killed:${round}`, true))
    await areReady()
    await Promise.all(readers.map((one) => one.end()))
    return result
  } finally {
    await Promise.all(readers.map((one) => one.kill()))
  }
}
