import { InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import { nameGiven } from '../postgres/name-given.js'
import type { Rows } from '../postgres/rows/rows.js'
import { findIndexes, type MonitorIndexes } from './monitor-indexes.js'
import { type MonitorOptions, type MonitorRule, readRule } from './monitor-options.js'
import { MonitorRun } from './monitor-run.js'
import { lookCall, TARGETS } from './monitor-statements.js'

/** What a run of a monitor has found and done. */
export interface MonitorReport {
  /** Of the monitor. */
  readonly name: string
  /** Rows that are to be done again. */
  readonly requeued: number
  /** Rows that were given up: by the action, or since they were tried too often. */
  readonly failed: number
  /** Rows in which something else was written: a function answered `{ set }`. */
  readonly handled: number
  /** Rows that a function has left as they are. They come again in the next run. */
  readonly left: number
  /** Rows that could not be changed, each told as `dibs:monitor.row-failed`. They come again in the next run. */
  readonly errors: number
  /** Rows in these states that have no time, and are never old. At most 10,000 are counted. */
  readonly withoutTime: number
  /** The age of the oldest row in these states before the run, also of one that is alive: 0 if there is none. */
  readonly oldestMs: number
  /** The run has ended at its bound, or by its signal, and more may be stuck. */
  readonly isMore: boolean
  readonly tookMs: number
}

export interface MonitorRunOptions {
  /** Ends the run after the current batch. */
  readonly signal?: AbortSignal | undefined
}

/** Finds and recovers rows of one table that a dead worker has left behind. */
export class Monitor {
  readonly name: string
  /** How often a loop is to run it, at most once in each of its rounds. */
  readonly everyMs: number
  readonly #database: Database
  readonly #rows: Rows
  readonly #rule: MonitorRule

  constructor(database: Database, rows: Rows, name: string, options: MonitorOptions<never>) {
    this.#database = database
    this.#rows = rows
    this.#rule = readRule(name, options, rows.schema)
    this.name = this.#rule.name
    this.everyMs = this.#rule.everyMs
  }

  /**
   * Runs the rule once: finds the stuck rows and requeues, fails or handles them, in at most 100 batches. Any number of processes may run it at the same time; each
   * row is changed once. When `signal` aborts, the run ends after the current batch.
   *
   * @example
   * const monitor = dibs.monitor('stuck-tasks', {
   *   table: 'tasks', stuck: 'EXECUTING', timeColumn: 'started_at', olderThanMs: 120_000, action: 'fail', failTo: 'FAILED',
   * })
   * const { failed, errors, oldestMs } = await monitor.run()
   * if (oldestMs > 600_000) console.error(`a task is stuck for ${oldestMs} ms: ${failed} failed, ${errors} could not be`)
   */
  async run(options: MonitorRunOptions = {}): Promise<MonitorReport> {
    checkOptions(options, ['signal'])
    const { signal } = options
    if (signal !== undefined && !(signal instanceof AbortSignal))
      throw new InvalidInputError('signal', `must be an AbortSignal, not ${nameGiven(signal)}`)
    const startedAt = performance.now()
    const found = await this.#look()
    const run = new MonitorRun(this.#database, this.#rows, this.#rule, signal)
    const isMore = await run.toEnd()
    const { counts } = run
    const tookMs = Math.round(performance.now() - startedAt)
    const origin = { ...this.#database.origin, monitor: this.name, table: this.#rule.table }
    const { requeued, failed, handled } = counts
    emit('dibs:monitor.ran', { ...origin, ...counts, ...found, isMore, tookMs })
    if (requeued + failed + handled > 0)
      emit('dibs:monitor.recovered', { ...origin, requeued, failed, handled })
    return { name: this.name, ...counts, ...found, isMore, tookMs }
  }

  /**
   * Which index serves it, or which one is missing, with the SQL that makes it: without one, each run reads the whole table.
   *
   * @example
   * const monitor = dibs.monitor('stuck-tasks', {
   *   table: 'tasks', stuck: 'EXECUTING', timeColumn: 'started_at', olderThanMs: 120_000, action: 'fail', failTo: 'FAILED',
   * })
   * const indexes = await monitor.checkIndexes()
   * if (!indexes.ok) console.warn(indexes.missing.why, indexes.missing.sql)
   */
  async checkIndexes(): Promise<MonitorIndexes> {
    return findIndexes(this.#database, this.#rows, this.#rule)
  }

  async #look(): Promise<Pick<MonitorReport, 'oldestMs' | 'withoutTime'>> {
    const [told] = await this.#rows.call(undefined, this.#rule.table, (table) => lookCall(table, this.#rule))
    const [ageMs, withoutTime, ...again]: [string | null, number, ...boolean[]] = JSON.parse(`${told?.told}`)
    for (const [n, field] of TARGETS.entries())
      if (again[n])
        throw new InvalidInputError(
          field,
          `must not be one of the states in \`stuck\`, and is the same as one of them to the column "${this.#rule.statusColumn}": it would be stuck again`,
        )
    return { oldestMs: Math.max(0, Math.round(Number(ageMs ?? 0))), withoutTime }
  }
}
