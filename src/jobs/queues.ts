import { BusyError } from '../errors.js'
import { checked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import type { Database } from '../postgres/database.js'
import { checkText } from '../postgres/key.js'
import { ANY_TEXT, decodeCursor, type Page, type PageOptions, pageOptions, toPage } from '../postgres/page.js'
import type { TextRow } from '../postgres/text-values.js'
import { THIS_PROCESS } from '../postgres/this-process.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { countRunning, listLanes, MAX_COUNT, MAX_HELD } from './inspection-queries.js'
import { time } from './job-record.js'
import { pauseQueue, resumeQueue } from './job-statements.js'
import { queueTopic } from './job-topics.js'
import { checkName, storedString } from './stored-string.js'

/** How long `pause` waits for claims in progress. */
const WAIT_MS = 5_000

/** A count that stops at 1,000, so that its cost is bounded. */
export interface BoundedCount {
  /** The number, at most 1,000. */
  readonly count: number
  /** True if there are more, or may be more, than `count`. */
  readonly isMore: boolean
}

/** The jobs of one name and version in a queue. */
export interface QueueLane {
  readonly name: string
  readonly version: number
  readonly ready: BoundedCount
  /** Jobs that are not due yet: with `runAt` or `delayMs`, or waiting for their next attempt. */
  readonly scheduled: BoundedCount
  readonly running: BoundedCount
  readonly dead: BoundedCount
  /** When the next ready job was added. */
  readonly nextCreatedAt: Date | undefined
}

/** A queue: whether it is paused, and its jobs. */
export interface QueueRecord {
  readonly name: string
  readonly pausedAt: Date | undefined
  readonly pausedBy: string | undefined
  readonly lanes: readonly QueueLane[]
}

/** Which queues to list. */
export interface QueueFilter {
  /** Only queues whose names begin with this string. Default: all. */
  readonly prefix?: string | undefined
}

export interface PauseOptions {
  /** The name of the person or process that pauses the queue, for `queues.list`. Default: this host and process. */
  readonly pausedBy?: string | undefined
}

export const queueFilter = optionTable<QueueFilter>()('dibs.queues.list, filter', {
  prefix: checked(checkText),
})

export const pauseOptions = optionTable<PauseOptions>()('dibs.queues.pause', {
  pausedBy: storedString({ max: 1_000 }),
})

/** The name of this list in its cursors. */
const LIST = 'queues'

/** The queues, for operators: `dibs.queues`. */
export class Queues {
  readonly #database: Database
  readonly #wakeups: Wakeups

  constructor(database: Database, wakeups: Wakeups) {
    this.#database = database
    this.#wakeups = wakeups
  }

  /**
   * Pauses a queue. After `pause` resolves, no worker claims a job of the queue until `resume`. Jobs that were claimed before continue, and jobs can still be
   * added.
   *
   * @example
   * await dibs.queues.pause('mail', { pausedBy: 'ann' })
   */
  async pause(queue: string, options: PauseOptions = {}): Promise<void> {
    const { pausedBy = THIS_PROCESS } = pauseOptions.read(options)
    const values = [checkName('queue', queue), pausedBy, String(this.#database.boundWait(WAIT_MS))]
    try {
      await this.#database.send(pauseQueue, values, { waitMs: WAIT_MS })
    } catch (error) {
      if ((error as { code?: string }).code !== 'DIBS_STATEMENT_TIMEOUT') throw error
      throw new BusyError(`the queue "${queue}", of which jobs are just being claimed`, WAIT_MS, 100, {
        cause: error,
      })
    }
  }

  /**
   * Resumes a queue: workers claim its jobs again. `ok` is false if the queue was not paused.
   *
   * @example
   * const { ok } = await dibs.queues.resume('mail')
   */
  async resume(queue: string): Promise<{ readonly ok: boolean }> {
    const [row] = await this.#database.send(resumeQueue, [checkName('queue', queue)])
    this.#wakeups.notify(queueTopic(queue))
    return { ok: row?.state === 'resumed' }
  }

  /**
   * Lists queues by name, a page at a time. The list has each queue that ever got a job, that a worker has handlers for, or that is paused. Each count stops
   * at 1,000, so the cost does not grow with the number of jobs.
   *
   * @example
   * const { items } = await dibs.queues.list({ prefix: 'mail' })
   * for (const { name: queue, pausedAt, lanes } of items)
   *   for (const { name, ready, scheduled } of lanes) console.log(queue, pausedAt, name, ready.count, scheduled.count)
   */
  async list(filter: QueueFilter = {}, page: PageOptions = {}): Promise<Page<QueueRecord>> {
    const { prefix = '' } = queueFilter.read(filter)
    const { limit, cursor } = pageOptions.read(page)
    const [after = ''] = decodeCursor(LIST, cursor, [ANY_TEXT]) ?? []
    const rows = await this.#database.send(listLanes, [prefix, after, String(limit + 1)])
    const lanes = rows.flatMap(({ lane }) => lane ?? [])
    const queues = groupByQueue(rows, await this.#countRunning(lanes))
    return toPage(
      LIST,
      queues,
      limit,
      ({ name }) => [name],
      (queue) => queue,
    )
  }

  /** The number of running jobs by lane. */
  async #countRunning(lanes: readonly string[]): Promise<(lane: string) => BoundedCount> {
    const rows = await this.#database.send(countRunning, [`{${lanes.join(',')}}`])
    const counts = new Map(rows.map(({ lane, count }) => [lane, Number(count)]))
    const hasUnread = (counts.get(null) ?? 0) > MAX_HELD
    return (lane) => {
      const { count, isMore } = bounded(counts.get(lane) ?? 0)
      return { count, isMore: isMore || hasUnread }
    }
  }
}

/** Groups consecutive rows of lanes by queue. */
function groupByQueue(
  rows: readonly TextRow[],
  runningIn: (lane: string) => BoundedCount,
): readonly QueueRecord[] {
  const queues: (QueueRecord & { lanes: QueueLane[] })[] = []
  for (const row of rows) {
    let last = queues.at(-1)
    if (last?.name !== row.queue) {
      const pausedBy = row.pausedBy ?? undefined
      last = { name: `${row.queue}`, pausedAt: time(row.pausedAt), pausedBy, lanes: [] }
      queues.push(last)
    }
    if (typeof row.lane === 'string') last?.lanes.push(readLane(row, runningIn(row.lane)))
  }
  return queues
}

const readLane = (row: TextRow, running: BoundedCount): QueueLane => ({
  name: `${row.name}`,
  version: Number(row.version),
  ready: bounded(Number(row.ready)),
  scheduled: bounded(Number(row.scheduled)),
  running,
  dead: bounded(Number(row.dead)),
  nextCreatedAt: time(row.firstCreatedAt),
})

const bounded = (count: number): BoundedCount => ({
  count: Math.min(MAX_COUNT, count),
  isMore: count > MAX_COUNT,
})
