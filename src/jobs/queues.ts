import { BusyError, InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { nameGiven } from '../postgres/name-given.js'
import { THIS_PROCESS } from '../postgres/this-process.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { queueTopic } from './add-jobs.js'
import { time } from './job-record.js'
import { checkCharacters, checkName } from './job-spec.js'
import { pauseQueue, resumeQueue } from './job-statements.js'
import { countRunning, listLanes } from './record-statements.js'

/** How long a pause waits for claims that are under way. */
const WAIT_MS = 5_000
const MAX_BY = 1_000
/** What there is is counted so far, and no further. */
export const COUNTED = 1_000

/** How much there is, up to a thousand: `isMore`, there is more. */
export interface BoundedCount {
  readonly count: number
  readonly isMore: boolean
}

/** Jobs of one name in a queue. */
export interface QueueLane {
  readonly name: string
  readonly version: number
  readonly ready: BoundedCount
  readonly running: number
  readonly dead: BoundedCount
  /** When the job was added that is next. */
  readonly nextCreatedAt: Date | undefined
}

export interface QueueRecord {
  readonly queue: string
  readonly pausedAt: Date | undefined
  readonly pausedBy: string | undefined
  readonly lanes: readonly QueueLane[]
}

/** The queues, for operators. */
export class Queues {
  readonly #database: Database
  readonly #wakeups: Wakeups

  constructor(database: Database, wakeups: Wakeups) {
    this.#database = database
    this.#wakeups = wakeups
  }

  /**
   * From the moment this resolves no job of the queue is claimed anywhere, until `resume`. Those that were claimed before go on, and jobs can be added.
   *
   * @example
   * await dibs.queues.pause('mail', { by: 'ann' })
   */
  async pause(queue: string, options: { readonly by?: string | undefined } = {}): Promise<void> {
    checkOptions(options, ['by'])
    const { by = THIS_PROCESS } = options
    if (typeof by !== 'string' || by.length > MAX_BY)
      throw new InvalidInputError(
        'by',
        `must be a text of at most ${MAX_BY} characters, not ${typeof by === 'string' ? `one of ${by.length}` : nameGiven(by)}`,
      )
    const values = [
      checkName('queue', queue),
      checkCharacters('by', by),
      String(this.#database.boundWait(WAIT_MS)),
    ]
    try {
      await this.#database.sendWaiting(WAIT_MS, pauseQueue, values)
    } catch (error) {
      if ((error as { code?: string }).code !== 'DIBS_STATEMENT_TIMEOUT') throw error
      throw new BusyError(`the queue "${queue}", of which jobs are just being claimed`, WAIT_MS, 100, {
        cause: error,
      })
    }
  }

  /**
   * Its jobs are begun again. False if it was not paused.
   *
   * @example
   * await dibs.queues.resume('mail')
   */
  async resume(queue: string): Promise<boolean> {
    const [row] = await this.#database.send(resumeQueue, [checkName('queue', queue)])
    this.#wakeups.hint(queueTopic(queue))
    return row?.state === 'resumed'
  }

  /**
   * All queues that a job was ever added to, or that somebody works on: what there is in them is counted to a thousand, so that a look costs the same however much that is.
   *
   * @example
   * for (const { queue, pausedAt, lanes } of await dibs.queues.list()) console.log(queue, pausedAt, lanes)
   */
  async list(): Promise<QueueRecord[]> {
    const rows = await this.#database.send(listLanes, [])
    const running = new Map(
      (await this.#database.send(countRunning, [])).map((row) => [row.lane, Number(row.count)]),
    )
    const queues = new Map<string, QueueRecord & { lanes: QueueLane[] }>()
    for (const row of rows) {
      const name = `${row.queue}`
      const queue = queues.get(name) ?? {
        queue: name,
        pausedAt: time(row.pausedAt),
        pausedBy: row.pausedBy ?? undefined,
        lanes: [],
      }
      queues.set(name, queue)
      queue.lanes.push({
        name: `${row.name}`,
        version: Number(row.version),
        ready: bounded(row.ready),
        running: running.get(row.lane as string) ?? 0,
        dead: bounded(row.dead),
        nextCreatedAt: time(row.firstCreatedAt),
      })
    }
    return [...queues.values()]
  }
}

const bounded = (count: string | null | undefined): BoundedCount => ({
  count: Math.min(COUNTED, Number(count)),
  isMore: Number(count) > COUNTED,
})
