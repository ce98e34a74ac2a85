import type { Database } from '../postgres/database.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { addAlone, inBatches, MOST, type NewJob, wasRefused } from './add-jobs.js'

interface Waiting {
  readonly job: NewJob
  readonly resolve: (id: string) => void
  readonly reject: (error: unknown) => void
}

/** Statements on their way at a time: while one commits, the next is gathered, and one more is sent. */
const MOST_SENT = 2

/**
 * Jobs that are added one at a time share statements, and commits. Nobody waits to be collected: what is asked for at once goes at once, and what comes while that is on its way goes next. Each call resolves when
 * its job is committed.
 */
export class JobAdder {
  readonly #database: Database
  readonly #wakeups: Wakeups
  readonly #waiting: Waiting[] = []
  #sent = 0
  #isDue = false

  constructor(database: Database, wakeups: Wakeups) {
    this.#database = database
    this.#wakeups = wakeups
  }

  add(job: NewJob): Promise<string> {
    return this.#database.work(
      () =>
        new Promise((resolve, reject) => {
          this.#waiting.push({ job, resolve, reject })
          this.#start()
        }),
    )
  }

  #start(): void {
    if (this.#isDue || this.#sent >= MOST_SENT || this.#waiting.length === 0) return
    this.#isDue = true
    // When all have called that were told of the last one.
    process.nextTick(() => {
      this.#isDue = false
      void this.#send(this.#next())
      this.#start()
    })
  }

  #next(): Waiting[] {
    const [first] = inBatches(this.#waiting.slice(0, MOST).map(({ job }) => job))
    return this.#waiting.splice(0, first?.length ?? 0)
  }

  async #send(batch: readonly Waiting[]): Promise<void> {
    if (batch.length === 0) return
    this.#sent++
    try {
      await this.#add(batch)
    } catch (error) {
      if (batch.length === 1 || !wasRefused(error)) for (const { reject } of batch) reject(error)
      // One of them may be to blame: each by itself.
      else for (const one of batch) await this.#add([one]).catch(one.reject)
    }
    this.#sent--
    this.#start()
  }

  async #add(batch: readonly Waiting[]): Promise<void> {
    const ids = await addAlone(
      this.#database,
      this.#wakeups,
      batch.map(({ job }) => job),
    )
    for (const [n, { resolve }] of batch.entries()) resolve(`${ids[n]}`)
  }
}
