import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'

/** What a process of the storm tells. */
export type Told =
  | { readonly at: 'ready'; readonly worker: string }
  | { readonly at: 'over'; readonly stats: Readonly<Record<string, unknown>> }
  | { readonly at: 'died'; readonly how: string }
  | { readonly at: 'breaker-opened' }
  | {
      readonly at: 'lost' | 'refused' | 'recovered' | 'stuck' | 'not-recorded' | 'quarantined'
      readonly id: string
      readonly fence: number
      readonly reason?: string
      readonly error?: string
    }

const script = join(import.meta.dirname, '../children/work-jobs.mjs')
let count = 0

/** One process of the storm, as its parent sees it. */
export class StormWorker {
  /** By which the server tells its connections. */
  readonly name = `storm-${++count}`
  readonly #process: ChildProcess
  readonly #gone: Promise<unknown>
  #isExpected = false
  isStruck = false
  /** As the database knows it, once it is ready. */
  id: string | undefined

  constructor(settings: object, onTold: (told: Told) => void) {
    this.#process = fork(script, [JSON.stringify(settings)], {
      env: { ...process.env, PGAPPNAME: this.name },
    })
    // What it has told before it died is read before the channel closes.
    this.#gone = Promise.all([once(this.#process, 'exit'), once(this.#process, 'disconnect')])
    this.#process.once('exit', (code, signal) => {
      if (!this.#isExpected) onTold({ at: 'died', how: `${signal ?? code}` })
    })
    this.#process.on('message', (told: Told) => {
      if (told.at === 'ready') this.id = told.worker
      if (told.at === 'over') this.#isExpected = true
      onTold(told)
    })
  }

  get isFit(): boolean {
    return this.id !== undefined && !this.isStruck
  }

  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    this.#process.kill(signal)
  }

  /** Until it is gone, and all that it has told is read. */
  async kill(): Promise<void> {
    this.#isExpected = true
    this.#process.kill('SIGKILL')
    await this.#gone
  }

  /** Asks it to end by itself. */
  async end(): Promise<void> {
    this.#process.send({ at: 'over' }, () => {})
    await this.#gone
  }
}
