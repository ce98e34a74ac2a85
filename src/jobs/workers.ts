import { optionTable } from '../options/option-table.js'
import { boolean } from '../options/value-options.js'
import type { Database } from '../postgres/database.js'
import {
  ANY_TEXT,
  decodeCursor,
  type Page,
  type PageOptions,
  pageOptions,
  toPage,
  WHOLE_NUMBER,
} from '../postgres/page.js'
import { dateFromMicros, type TextRow } from '../postgres/text-values.js'
import { listWorkers } from './inspection-queries.js'

/** A worker, as the database knows it: one call of `dibs.work`, in any process. */
export interface WorkerRecord {
  readonly id: string
  readonly host: string
  readonly pid: number
  readonly concurrency: number
  readonly startedAt: Date
  /** The time of the last heartbeat. */
  readonly seenAt: Date
  /** True if the last heartbeat is less than 30 seconds old. */
  readonly isAlive: boolean
  /** The jobs that the worker has handlers for. */
  readonly lanes: readonly { readonly queue: string; readonly name: string; readonly version: number }[]
  /** The ids of the jobs that the worker has claimed and not ended. */
  readonly running: readonly string[]
}

/** Which workers to list. */
export interface WorkerFilter {
  /** True: only workers that are alive. False: only workers without a heartbeat for 30 seconds. Default: both. */
  readonly isAlive?: boolean | undefined
}

export const workerFilter = optionTable<WorkerFilter>()('dibs.workers.list, filter', { isAlive: boolean() })

/** The name of this list in its cursors. */
const LIST = 'workers'
const FIRST_PLACE = ['-9223372036854775808', '']

/** The workers of all processes, for operators: `dibs.workers`. */
export class Workers {
  readonly #database: Database

  constructor(database: Database) {
    this.#database = database
  }

  /**
   * Lists the workers of all processes, oldest first, a page at a time. A worker that was killed is listed for an hour.
   *
   * @example
   * const { items } = await dibs.workers.list({ isAlive: true })
   * for (const { id, host, concurrency, running } of items) console.log(id, host, concurrency, running)
   */
  async list(filter: WorkerFilter = {}, page: PageOptions = {}): Promise<Page<WorkerRecord>> {
    const { isAlive } = workerFilter.read(filter)
    const { limit, cursor } = pageOptions.read(page)
    const after = decodeCursor(LIST, cursor, [WHOLE_NUMBER, ANY_TEXT]) ?? FIRST_PLACE
    const wanted = isAlive === undefined ? null : String(isAlive)
    const rows = await this.#database.send(listWorkers, [wanted, ...after, String(limit + 1)])
    return toPage(LIST, rows, limit, ({ startedAt, id }) => [`${startedAt}`, `${id}`], readWorker)
  }
}

const readWorker = (row: TextRow): WorkerRecord => ({
  id: `${row.id}`,
  host: `${row.host}`,
  pid: Number(row.pid),
  concurrency: Number(row.concurrency),
  startedAt: dateFromMicros(`${row.startedAt}`),
  seenAt: dateFromMicros(`${row.seenAt}`),
  isAlive: row.isAlive === 'true',
  lanes: JSON.parse(row.lanes ?? '[]'),
  running: JSON.parse(row.running ?? '[]'),
})
