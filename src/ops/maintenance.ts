import { randomUUID } from 'node:crypto'
import type { Unfinished } from '../claims/once/operation.js'
import {
  BusyError,
  ClosedError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  InvalidInputError,
} from '../errors.js'
import { acquireLock } from '../locks/lock-statements.js'
import { duration } from '../options/number-options.js'
import { optionTable } from '../options/option-table.js'
import { boolean } from '../options/value-options.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import { isUnderTest } from '../postgres/pools-under-test.js'
import { THIS_PROCESS } from '../postgres/this-process.js'
import type { Aggregate } from '../tables/aggregate/aggregate.js'
import type { AggregateRefresh } from '../tables/aggregate/refresh-marked.js'
import type { Monitor, MonitorReport } from '../tables/monitor/monitor.js'
import { ANSWER_MS, expiredKinds, NOTHING_REMOVED, removeExpired } from './expired-rows.js'
import { type MaintenanceLoop, type RoundEnd, RoundScheduler } from './round-scheduler.js'

/** The result of a round of maintenance. */
export interface MaintenanceReport {
  /** The number of expired claims that were removed. */
  readonly claimsForgotten: number
  /** The number of expired keys of `dibs.kv` that were removed. */
  readonly keysForgotten: number
  /** The number of expired windows and ids of quotas that were removed. */
  readonly quotasForgotten: number
  /** The number of removed locks that had no holder for a day. */
  readonly locksForgotten: number
  /** The number of expired values of `dibs.singleFlight` that were removed. */
  readonly flightsForgotten: number
  /** The number of subjects of rate limits that were removed, because all of their limit is available again. */
  readonly ratesForgotten: number
  /** The number of jobs that expired before a worker started them. Dibs moved them into the history. */
  readonly jobsExpired: number
  /** The number of expired days of the job history that were dropped. */
  readonly jobDaysForgotten: number
  /** The number of removed workers that sent no heartbeat for an hour. */
  readonly workersForgotten: number
  /** The number of removed marks of aggregates whose table no longer exists. */
  readonly marksForgotten: number
  /** The number of marked parents of aggregates that were recomputed. */
  readonly parentsRecomputed: number
  /** The number of marked parents that could not be counted. Dibs tries them again. */
  readonly parentsFailed: number
  /** The number of operations of dead processes that were taken over and finished: they succeeded, or failed for good. */
  readonly operationsFinished: number
  /** The number of operations that were taken over and failed, and will be tried again. */
  readonly operationsFailed: number
  /** The number of operations that Dibs gave up, after too many attempts without a recorded outcome. */
  readonly operationsGivenUp: number
  /** The reports of the monitors. In a loop, monitors report by the event `dibs:monitor.ran` instead. */
  readonly monitors: readonly MonitorReport[]
}

/** How many runs of one operation this process takes over at a time. A handler that hangs does not delay other operations. */
const MAX_TAKEN = 5

/** The default interval. A round without work is a handful of statements that find nothing. */
const EVERY_MS = 30_000
/** The lock that decides which process of a schema removes expired rows, and the share of an interval that its lease lasts. */
const LEASE_NAME = 'dibs:maintenance'
const LEASE_SHARE = 0.75

export interface MaintainOptions {
  /** Run one round to its end in place of a loop: for a function that an external timer calls, and for tests. Default false. */
  readonly once?: boolean | undefined
  /** The interval between rounds, plus or minus a fifth: 100 to 2^30. Default 30,000. All loops of an instance share one loop, at the shortest interval. */
  readonly everyMs?: number | undefined
}

export const maintainOptions = optionTable<MaintainOptions>()('dibs.maintain', {
  once: boolean({ default: false }),
  everyMs: duration({ default: EVERY_MS, min: 100, max: 2 ** 30 }),
})

/** Definitions of this process that maintenance serves, by name. */
export interface Maintained {
  readonly operations?: ReadonlyMap<string, Unfinished>
  readonly aggregates?: ReadonlyMap<string, Pick<Aggregate, 'refresh'>>
  readonly monitors?: ReadonlyMap<string, Pick<Monitor, 'name' | 'everyMs' | 'run'>>
}

/**
 * Removes expired rows, finishes operations of dead processes, recomputes marked aggregates and runs monitors. Any number of
 * processes may do so at once.
 *
 * Dibs is correct without maintenance, because every read checks expiry. But an operation of a dead process stays unfinished
 * until a caller repeats it, or maintenance runs.
 */
export class Maintenance {
  readonly #database: Database
  readonly #maintained: Required<Maintained>
  readonly #takenOver = new Map<string, Set<Promise<boolean>>>()
  /** Monitors that run now. A monitor whose action hangs delays only itself. */
  readonly #runningMonitors = new Map<string, Promise<MonitorReport | undefined>>()
  /** When each monitor is due, by `performance.now()`. */
  readonly #dueAt = new Map<string, number>()

  constructor(database: Database, maintained: Maintained) {
    this.#database = database
    this.#maintained = {
      ...{ operations: new Map(), aggregates: new Map(), monitors: new Map() },
      ...maintained,
    }
  }

  /** Runs one round, and waits for the operations that it takes over. */
  async run(): Promise<MaintenanceReport> {
    const { attempts, errors, isUnavailable: _, isIdle: __, ...report } = await this.#round({})
    const reports = await Promise.all(
      [...this.#maintained.monitors.values()].map((monitor) =>
        monitor.run().catch((error) => void errors.push(error)),
      ),
    )
    const ended = await Promise.all(attempts)
    const [first, ...others] = errors
    for (const error of others) this.#emitFailed(error)
    if (first !== undefined) throw first
    const operationsFinished = ended.filter(Boolean).length
    const counts = { ...report, operationsFinished, operationsFailed: ended.length - operationsFinished }
    emit('dibs:maintenance.done', { ...this.#database.origin, counts })
    return { ...counts, monitors: reports.flatMap((one) => one ?? []) }
  }

  /** Adds a request for the loop. All requests share one loop, at the shortest interval. */
  start(everyMs: number = EVERY_MS, { isAutomatic = false } = {}): MaintenanceLoop {
    return this.#loop.add({ everyMs, isAutomatic })
  }

  /** Ends the loop, and waits for work that its rounds have begun. */
  stop(): Promise<void> {
    return this.#loop.stop()
  }

  readonly #loop = new RoundScheduler({
    round: (everyMs, isAutomatic, signal) =>
      isAutomatic && isUnderTest(this.#database.pool)
        ? Promise.resolve('done')
        : this.#runInLoop(everyMs, signal),
    drain: () =>
      Promise.all([
        ...this.#runningMonitors.values(),
        ...[...this.#takenOver.values()].flatMap((taken) => [...taken]),
      ]),
  })

  /** Runs one round of the loop. Operations that the round takes over run in the background and delay no other work. */
  async #runInLoop(everyMs: number, signal: AbortSignal): Promise<RoundEnd> {
    const leaseMs = Math.floor(LEASE_SHARE * Math.min(everyMs, EVERY_MS))
    const { errors, isUnavailable, isIdle, attempts, ...counts } = await this.#round({ leaseMs, signal })
    if (errors.some((error) => error instanceof ClosedError)) return 'closed'
    for (const error of errors) this.#emitFailed(error)
    if (isUnavailable) return 'unavailable'
    this.#startDueMonitors(signal)
    if (!isIdle) emit('dibs:maintenance.done', { ...this.#database.origin, counts })
    return 'done'
  }

  /** Starts the monitors that are due, and waits for none. */
  #startDueMonitors(signal: AbortSignal): void {
    const now = performance.now()
    for (const monitor of this.#maintained.monitors.values()) {
      if (this.#runningMonitors.has(monitor.name) || now < (this.#dueAt.get(monitor.name) ?? 0)) continue // guard: ops.monitor-once
      // A round may come a little early. It must not skip the monitor for a whole interval.
      this.#dueAt.set(monitor.name, now + monitor.everyMs * 0.8)
      const run = monitor.run({ signal }).catch((error) => void this.#emitFailed(error))
      this.#runningMonitors.set(monitor.name, run)
      void run.then(() => this.#runningMonitors.delete(monitor.name))
    }
  }

  #emitFailed(error: unknown): void {
    emit('dibs:maintenance.failed', { ...this.#database.origin, error })
  }

  /**
   * Runs one round. A part that fails does not stop the others, unless no part can use the database. With `leaseMs`, only one process of the schema removes
   * expired rows in that time. Each process serves its own definitions.
   */
  async #round({ leaseMs, signal }: { leaseMs?: number; signal?: AbortSignal }) {
    const errors: unknown[] = []
    let isUnavailable = false
    const part = async <T>(
      work: () => Promise<T>,
      otherwise: T,
      fatal: typeof unavailableErrors = [...unavailableErrors, BusyError],
    ): Promise<T> => {
      if (signal?.aborted || isUnavailable) return otherwise
      return work().catch((error) => {
        errors.push(error)
        isUnavailable ||= fatal.some((type) => error instanceof type)
        return otherwise
      })
    }
    const hasLease = leaseMs === undefined || (await part(() => this.#tryLease(leaseMs), false))
    // The role may not write here, or the schema has no tables of Dibs: all other statements would fail too.
    isUnavailable ||= errors.length > 0
    const removed = { ...NOTHING_REMOVED }
    if (hasLease)
      for (const kind of expiredKinds)
        removed[kind] = await part(() => removeExpired(this.#database, kind), 0)
    const attempts: Promise<boolean>[] = []
    let operationsGivenUp = 0
    for (const operation of this.#maintained.operations.values()) {
      const running = this.#takenOver.get(operation.name) ?? new Set()
      this.#takenOver.set(operation.name, running)
      if (running.size >= MAX_TAKEN) continue
      const taken = await part(() => operation.takeOver(MAX_TAKEN - running.size), {
        gaveUp: 0,
        attempts: [],
      })
      operationsGivenUp += taken.gaveUp
      for (const attempt of taken.attempts) {
        attempts.push(attempt)
        running.add(attempt)
        void attempt.catch(() => {}).then(() => running.delete(attempt))
      }
    }
    // Aggregates come last, because a count may take long, and operations of dead processes have waited already.
    let [parentsRecomputed, parentsFailed] = [0, 0]
    for (const aggregate of this.#maintained.aggregates.values()) {
      const done = await part<Pick<AggregateRefresh, 'recomputed' | 'failed'>>(
        () => aggregate.refresh({ signal }),
        { recomputed: 0, failed: 0 },
        // A `BusyError` means that another session has locked the aggregate's tables, which are the caller's own.
        unavailableErrors,
      )
      parentsRecomputed += done.recomputed
      parentsFailed += done.failed
    }
    return {
      ...removed,
      ...{ parentsRecomputed, parentsFailed, operationsGivenUp },
      ...{ attempts, errors, isUnavailable },
      /** True if another process has the lease, and this process has defined nothing to run. */
      isIdle: !hasLease && Object.values(this.#maintained).every(({ size }) => size === 0),
    }
  }

  /**
   * Tries to get the lease for this interval. No process renews or releases the lease, so other processes skip their rounds
   * until it expires.
   */
  async #tryLease(leaseMs: number): Promise<boolean> {
    // Each call uses a new holder name, because a holder that asks again would get its own lease back.
    const values = [LEASE_NAME, '1', `${THIS_PROCESS}/${randomUUID()}`, String(leaseMs), '0']
    const [row] = await this.#database.send(acquireLock, values, { deadlineMs: ANSWER_MS })
    return JSON.parse(`${row?.result}`).state === 'taken' // guard: ops.maintenance-elect
  }
}

/** Errors that the other parts would meet too, each after a wait. */
const unavailableErrors: readonly (abstract new (...args: never[]) => Error)[] = [
  ClosedError,
  ConnectionLostError,
  CommitOutcomeUnknownError,
]

/** Checks the options. Returns the interval, or undefined for a single round. */
export function readMaintain(options: MaintainOptions): number | undefined {
  const { once, everyMs } = maintainOptions.read(options)
  if (once && options.everyMs !== undefined)
    throw new InvalidInputError('everyMs', 'must not be given with `once`')
  return once ? undefined : everyMs
}
