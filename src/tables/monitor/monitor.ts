import { InvalidInputError } from '../../errors.js'
import { optionTable } from '../../options/option-table.js'
import { abortSignal } from '../../options/value-options.js'
import type { Database } from '../../postgres/database.js'
import { emit } from '../../postgres/events.js'
import type { Rows } from '../row-executor.js'
import { findIndexes, type MonitorIndexes } from './monitor-indexes.js'
import { type MonitorOptions, type MonitorRule, readRule } from './monitor-options.js'
import { MonitorRun } from './monitor-run.js'
import { surveyCall, TARGETS } from './monitor-statements.js'

/** The result of one run of a monitor. */
export interface MonitorReport {
  /** The name of the monitor. */
  readonly name: string
  /** Rows that were requeued, to be worked on again. */
  readonly requeued: number
  /** Rows that were given up: by the action, or because they had too many attempts. */
  readonly failed: number
  /** Rows in which other values were written: the action function returned `{ set }`. */
  readonly handled: number
  /** Rows that the action function left as they are. The next run finds them again. */
  readonly left: number
  /** Rows that could not be changed. Each emits `dibs:monitor.row-failed`. The next run finds them again. */
  readonly errors: number
  /** Rows in the `stuck` states that have no time, and so never count as old. At most 10,000 are counted. */
  readonly withoutTime: number
  /** The age of the oldest row in the `stuck` states before the run, including rows with a live lease. 0 if there is none. */
  readonly oldestMs: number
  /** True if the run ended at its limit or by its signal. More rows may be stuck then. */
  readonly isMore: boolean
  readonly tookMs: number
}

export interface MonitorRunOptions {
  /** Ends the run after the current batch. */
  readonly signal?: AbortSignal | undefined
}

export const monitorRunOptions = optionTable<MonitorRunOptions>()('monitor.run', { signal: abortSignal() })

/** Finds and recovers rows of one table that a dead worker has left behind. */
export class Monitor {
  readonly name: string
  /** How often a maintenance loop runs the monitor, at most once in each of its rounds. */
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
   * Runs the rule once: finds the stuck rows and requeues, fails or handles them, in at most 100 batches. Any number of processes may run it at the same
   * time, and each stuck row is changed once. When `signal` aborts, the run ends after the current batch.
   *
   * @example
   * const monitor = dibs.monitor('stuck-tasks', {
   *   table: 'tasks', stuck: 'EXECUTING', timeColumn: 'started_at', olderThanMs: 120_000, action: 'fail', failTo: 'FAILED',
   * })
   * const { failed, errors, oldestMs } = await monitor.run()
   * if (oldestMs > 600_000) console.error(`a task is stuck for ${oldestMs} ms: ${failed} failed, ${errors} could not be`)
   */
  async run(options?: MonitorRunOptions): Promise<MonitorReport> {
    const { signal } = monitorRunOptions.read(options)
    const startedAt = performance.now()
    const found = await this.#survey()
    const run = new MonitorRun(this.#database, this.#rows, this.#rule, signal)
    const isMore = await run.runToEnd()
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
   * Reports which index serves the monitor, or which one is missing, with the SQL that creates it. Without such an index, each run reads the whole table.
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

  async #survey(): Promise<Pick<MonitorReport, 'oldestMs' | 'withoutTime'>> {
    const [first] = await this.#rows.call(undefined, this.#rule.table, (table) =>
      surveyCall(table, this.#rule),
    )
    const [ageMs, withoutTime, ...again]: [string | null, number, ...boolean[]] = JSON.parse(
      `${first?.detail}`,
    )
    for (const [n, field] of TARGETS.entries())
      if (again[n])
        throw new InvalidInputError(
          field,
          `must not be one of the states in \`stuck\`. The column "${this.#rule.statusColumn}" stores it as one of them`,
        )
    return { oldestMs: Math.max(0, Math.round(Number(ageMs ?? 0))), withoutTime }
  }
}
