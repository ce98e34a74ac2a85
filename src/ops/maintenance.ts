import { randomUUID } from 'node:crypto'
import { forgetExpiredClaims } from '../claims/claim-statements.js'
import { forgetExpiredKeys } from '../claims/kv-statements.js'
import type { Unfinished } from '../claims/operation.js'
import { forgetQuotas } from '../claims/quota-statements.js'
import { forgetExpiredRates } from '../claims/rate-statements.js'
import {
  BusyError,
  ClosedError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  InvalidInputError,
} from '../errors.js'
import { forgetJobDays } from '../jobs/job-history.js'
import { expireJobs, forgetWorkers } from '../jobs/job-statements.js'
import { forgetFlights } from '../locks/flight-statements.js'
import { acquireLock, forgetLocks } from '../locks/lock-statements.js'
import { checkDuration } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import { nameGiven } from '../postgres/name-given.js'
import { isUnderTest } from '../postgres/pools-under-test.js'
import { sleep } from '../postgres/sleep.js'
import type { Statement } from '../postgres/statement.js'
import { THIS_PROCESS } from '../postgres/this-process.js'
import type { Aggregate } from '../tables/aggregate.js'
import type { Monitor, MonitorReport } from '../tables/monitor.js'
import { type AggregateRefresh, forgetMarks } from '../tables/refresh-marked.js'
import { type MaintenanceLoop, type RoundEnd, SharedLoop } from './maintenance-loop.js'

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

/** Rows per statement. Small enough not to block anyone for long. */
const BATCH = 1_000
/** Batches per round. Rows that remain count as expired, and the next round removes them. */
const MAX_BATCHES = 100
/** A batch takes milliseconds, so a longer silence means a network problem. */
const ANSWER_MS = 10_000
/** How often one round retries expired rows that other sessions have locked, and after which pause. */
const MAX_BUSY = 10
const BUSY_MS = 50
/** How many runs of one operation this process takes over at a time. A handler that hangs does not delay other operations. */
const MAX_TAKEN = 5

/** The default interval. A round without work is a handful of statements that find nothing. */
const EVERY_MS = 30_000
/** The lock that decides which process of a schema removes expired rows, and the share of an interval that its lease lasts. */
const TURN = 'dibs:maintenance'
const TURN_SHARE = 0.75

export interface MaintainOptions {
  /** Run one round to its end in place of a loop: for a function that an external timer calls, and for tests. Default false. */
  readonly once?: boolean | undefined
  /** The interval between rounds, plus or minus a fifth: 100 to 2^30. Default 30,000. All loops of an instance share one loop, at the shortest interval. */
  readonly everyMs?: number | undefined
}

/** Definitions of this process that maintenance serves, by name. */
export interface Maintained {
  readonly operations?: ReadonlyMap<string, Unfinished>
  readonly aggregates?: ReadonlyMap<string, Pick<Aggregate, 'refresh'>>
  readonly monitors?: ReadonlyMap<string, Pick<Monitor, 'name' | 'everyMs' | 'run'>>
}

/**
 * Removes expired rows, finishes operations of dead processes, recomputes marked aggregates and runs monitors. Any number of processes may do so at once.
 *
 * Dibs is correct without maintenance, because every read checks expiry. But an operation of a dead process stays unfinished until somebody calls it or runs
 * maintenance.
 */
export class Maintenance {
  readonly #database: Database
  readonly #maintained: Required<Maintained>
  readonly #taken = new Map<string, Set<Promise<boolean>>>()
  /** Monitors that run now. A monitor whose action hangs delays only itself. */
  readonly #watching = new Map<string, Promise<MonitorReport | undefined>>()
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
    const { attempts, errors, isAway: _, isIdle: __, ...report } = await this.#round({})
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

  readonly #loop = new SharedLoop({
    round: (everyMs, isAutomatic, signal) =>
      isAutomatic && isUnderTest(this.#database.pool)
        ? Promise.resolve('done')
        : this.#runInLoop(everyMs, signal),
    drain: () =>
      Promise.all([...this.#watching.values(), ...[...this.#taken.values()].flatMap((taken) => [...taken])]),
  })

  /** Runs one round of the loop. Operations that it takes over run beside the loop and delay no other work. */
  async #runInLoop(everyMs: number, signal: AbortSignal): Promise<RoundEnd> {
    const leaseMs = Math.floor(TURN_SHARE * Math.min(everyMs, EVERY_MS))
    const { errors, isAway, isIdle, attempts, ...counts } = await this.#round({ leaseMs, signal })
    if (errors.some((error) => error instanceof ClosedError)) return 'closed'
    for (const error of errors) this.#emitFailed(error)
    if (isAway) return 'away'
    this.#watch(signal)
    if (!isIdle) emit('dibs:maintenance.done', { ...this.#database.origin, counts })
    return 'done'
  }

  /** Starts the monitors that are due, and waits for none. */
  #watch(signal: AbortSignal): void {
    const now = performance.now()
    for (const monitor of this.#maintained.monitors.values()) {
      if (this.#watching.has(monitor.name) || now < (this.#dueAt.get(monitor.name) ?? 0)) continue
      // A round may come a little early. It must not skip the monitor for a whole interval.
      this.#dueAt.set(monitor.name, now + monitor.everyMs * 0.8)
      const run = monitor.run({ signal }).catch((error) => void this.#emitFailed(error))
      this.#watching.set(monitor.name, run)
      void run.then(() => this.#watching.delete(monitor.name))
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
    let isAway = false
    const part = async <T>(
      work: () => Promise<T>,
      otherwise: T,
      everyones: typeof away = [...away, BusyError],
    ): Promise<T> => {
      if (signal?.aborted || isAway) return otherwise
      return work().catch((error) => {
        errors.push(error)
        isAway ||= everyones.some((type) => error instanceof type)
        return otherwise
      })
    }
    const hasTurn = leaseMs === undefined || (await part(() => this.#takeTurn(leaseMs), false))
    // The role may not write here, or the schema has no tables of Dibs: all other statements would fail as well.
    isAway ||= errors.length > 0
    const forget = (statement: Statement) => (hasTurn ? part(() => this.#forget(statement), 0) : 0)
    const claimsForgotten = await forget(forgetExpiredClaims)
    const keysForgotten = await forget(forgetExpiredKeys)
    const quotasForgotten = await forget(forgetQuotas)
    const locksForgotten = await forget(forgetLocks)
    const flightsForgotten = await forget(forgetFlights)
    const ratesForgotten = await forget(forgetExpiredRates)
    const jobsExpired = await forget(expireJobs)
    const workersForgotten = await forget(forgetWorkers)
    const jobDaysForgotten = hasTurn ? await part(() => forgetJobDays(this.#database), 0) : 0
    const marksForgotten = await forget(forgetMarks)
    const attempts: Promise<boolean>[] = []
    let operationsGivenUp = 0
    for (const operation of this.#maintained.operations.values()) {
      const mine = this.#taken.get(operation.name) ?? new Set()
      this.#taken.set(operation.name, mine)
      if (mine.size >= MAX_TAKEN) continue
      const taken = await part(() => operation.takeOver(MAX_TAKEN - mine.size), {
        gaveUp: 0,
        attempts: [],
      })
      operationsGivenUp += taken.gaveUp
      for (const attempt of taken.attempts) {
        attempts.push(attempt)
        mine.add(attempt)
        void attempt.catch(() => {}).then(() => mine.delete(attempt))
      }
    }
    // Aggregates come last: a count may take long, and operations of dead processes have waited already.
    let [parentsRecomputed, parentsFailed] = [0, 0]
    for (const aggregate of this.#maintained.aggregates.values()) {
      const done = await part<Pick<AggregateRefresh, 'recomputed' | 'failed'>>(
        () => aggregate.refresh({ signal }),
        { recomputed: 0, failed: 0 },
        // A `BusyError` means that another session has locked the aggregate's tables, which are the caller's own.
        away,
      )
      parentsRecomputed += done.recomputed
      parentsFailed += done.failed
    }
    const forgotten = { claimsForgotten, keysForgotten, quotasForgotten, ratesForgotten, locksForgotten }
    return {
      ...forgotten,
      flightsForgotten,
      ...{ jobsExpired, jobDaysForgotten, workersForgotten },
      marksForgotten,
      parentsRecomputed,
      parentsFailed,
      operationsGivenUp,
      attempts,
      errors,
      isAway,
      /** True if another process has the lease, and this process has defined nothing to run. */
      isIdle: !hasTurn && Object.values(this.#maintained).every(({ size }) => size === 0),
    }
  }

  /** Tries to get the lease for this interval. No process renews or releases it, so the others rest until it expires. */
  async #takeTurn(leaseMs: number): Promise<boolean> {
    // Each call uses a new holder name, because a holder that asks again would get its own lease back.
    const values = [TURN, '1', `${THIS_PROCESS}/${randomUUID()}`, String(leaseMs), '0']
    const [row] = await this.#database.sendWithin(ANSWER_MS, acquireLock, values)
    return JSON.parse(`${row?.told}`).state === 'taken'
  }

  async #forget(statement: Statement): Promise<number> {
    let total = 0
    let busy = 0
    for (let batch = 0; batch < MAX_BATCHES; batch++) {
      const [row] = await this.#database.sendWithin(ANSWER_MS, statement, [String(BATCH)])
      const count = Number(row?.count)
      total += count
      if (row?.busy === 'true') {
        if (++busy >= MAX_BUSY) break
        await sleep(BUSY_MS)
      } else if (count < BATCH) break
    }
    return total
  }
}

/** Errors that the other parts would meet too, each after a wait. */
const away: readonly (abstract new (...args: never[]) => Error)[] = [
  ClosedError,
  ConnectionLostError,
  CommitOutcomeUnknownError,
]

const names: readonly (keyof MaintainOptions)[] = ['once', 'everyMs']

/** Checks the options. Returns the interval, or undefined for a single round. */
export function checkMaintain(options: MaintainOptions): number | undefined {
  checkOptions(options, names)
  const { once = false, everyMs } = options
  if (typeof once !== 'boolean')
    throw new InvalidInputError('once', `must be true or false, not ${nameGiven(once)}`)
  if (once && everyMs !== undefined) throw new InvalidInputError('everyMs', 'must not be given with `once`')
  return once ? undefined : checkDuration('everyMs', everyMs ?? EVERY_MS, 100, 2 ** 30)
}
