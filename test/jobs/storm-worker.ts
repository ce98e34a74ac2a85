import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'

/** A message of a process of the storm. */
export type StormReport =
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
  /** The id of the worker in the database. Set once the worker is ready. */
  id: string | undefined

  constructor(settings: object, onReport: (report: StormReport) => void) {
    this.#process = fork(script, [JSON.stringify(settings)], {
      env: { ...process.env, PGAPPNAME: this.name },
    })
    // The messages that a process sent before it died are read before the channel closes.
    this.#gone = Promise.all([once(this.#process, 'exit'), once(this.#process, 'disconnect')])
    this.#process.once('exit', (code, signal) => {
      if (!this.#isExpected) onReport({ at: 'died', how: `${signal ?? code}` })
    })
    this.#process.on('message', (report: StormReport) => {
      if (report.at === 'ready') this.id = report.worker
      if (report.at === 'over') this.#isExpected = true
      onReport(report)
    })
  }

  get isFit(): boolean {
    return this.id !== undefined && !this.isStruck
  }

  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    this.#process.kill(signal)
  }

  /** Kills the process. Resolves when it is gone and all its messages are read. */
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
