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

/** What a round of maintenance has done. */
export interface MaintenanceReport {
  /** Claims whose time was over, removed. */
  readonly claimsForgotten: number
  /** Keys of `dibs.kv` whose time was over, removed. */
  readonly keysForgotten: number
  /** Windows and ids of quotas whose time was over, removed. */
  readonly quotasForgotten: number
  /** Locks that nobody has had for a day, removed. */
  readonly locksForgotten: number
  /** Values of `dibs.singleFlight` whose time was over, removed. */
  readonly flightsForgotten: number
  /** Subjects of rate limits that are as if unused, removed. */
  readonly ratesForgotten: number
  /** Jobs that nobody had begun before they expired, moved into history. */
  readonly jobsExpired: number
  /** Days of the history of jobs whose time was over, dropped. */
  readonly jobDaysForgotten: number
  /** Workers that nobody has heard of for an hour, removed. */
  readonly workersForgotten: number
  /** Marks of aggregates whose table is gone, removed. */
  readonly marksForgotten: number
  /** Parents of aggregates that were marked, counted anew. */
  readonly parentsRecomputed: number
  /** Parents that were marked and could not be counted; they are tried again. */
  readonly parentsFailed: number
  /** Operations that were left by processes that are gone, taken over and finished, well or as failed. */
  readonly operationsFinished: number
  /** Taken over, and failed again; they will be tried once more. */
  readonly operationsFailed: number
  /** Given up, after too many attempts without a recorded outcome. */
  readonly operationsGivenUp: number
  /** What each monitor has found and done; in a loop each says so by itself (`dibs:monitor.ran`). */
  readonly monitors: readonly MonitorReport[]
}

/** Rows in one statement: short enough not to be in anyone's way. */
const BATCH = 1_000
/** Batches in one round. What is left over is expired all the same, and goes in the next. */
const MAX_BATCHES = 100
/** A batch takes milliseconds: a longer silence is that of the network. */
const ANSWER_MS = 10_000
/** How often something that is over, and that others have just then, is come back to in one round, and after how long. */
const MAX_BUSY = 10
const BUSY_MS = 50
/** How many of one operation this process takes over at once: a handler that hangs holds up no other operation. */
const MAX_TAKEN = 5

/** How often, if nothing is said. Each round is a handful of statements that find nothing to do. */
const EVERY_MS = 30_000
/** The lock that decides which process of a schema removes expired rows, and how much of an interval its lease lasts. */
const TURN = 'dibs:maintenance'
const TURN_SHARE = 0.75

export interface MaintainOptions {
  /** One round, to its end, in place of a loop: for a function that is called by a timer elsewhere, and for tests. */
  readonly once?: boolean | undefined
  /** How long from one round to the next, give or take a fifth: 100 to 2^30. Default 30,000. All loops of an instance are one, at the shortest interval. */
  readonly everyMs?: number | undefined
}

/** What is defined in this process and needs to be looked after, by name. */
export interface Maintained {
  readonly operations?: ReadonlyMap<string, Unfinished>
  readonly aggregates?: ReadonlyMap<string, Pick<Aggregate, 'refresh'>>
  readonly monitors?: ReadonlyMap<string, Pick<Monitor, 'name' | 'everyMs' | 'run'>>
}

/**
 * Clears away what is over, finishes what others have left, counts what was marked and looks for what is stuck. Any number of processes may do so at once. Nothing of ours needs it to
 * be correct, since expiry is judged at every look; but what a dead process has left of an operation stays until somebody
 * calls or maintains.
 */
export class Maintenance {
  readonly #database: Database
  readonly #maintained: Required<Maintained>
  readonly #taken = new Map<string, Set<Promise<boolean>>>()
  /** Monitors at their work; one whose action hangs holds up nothing but itself. */
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

  /** One round, to the end of what it has taken over. */
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

  /** Requests round after round. All requests share one loop, at the shortest interval. */
  start(everyMs: number = EVERY_MS, { isAutomatic = false } = {}): MaintenanceLoop {
    return this.#loop.add({ everyMs, isAutomatic })
  }

  /** Ends the loop. What rounds have begun is waited for. */
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

  /** Work that was taken over holds up no other. */
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

  /** Sends the monitors out that are due, and waits for none. */
  #watch(signal: AbortSignal): void {
    const now = performance.now()
    for (const monitor of this.#maintained.monitors.values()) {
      if (this.#watching.has(monitor.name) || now < (this.#dueAt.get(monitor.name) ?? 0)) continue
      // A loop that comes a little early is not to leave it out for a whole round.
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
   * A part that fails does not stop the others, unless no part can use the database. With `leaseMs`, only one process of
   * the schema removes expired rows in that time. What is defined in a process, that process looks after.
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
    // A role without the right to write here, or a schema without our tables: every other statement would fail as well.
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
    // The last: a count may take long, and an operation that was left has waited already.
    let [parentsRecomputed, parentsFailed] = [0, 0]
    for (const aggregate of this.#maintained.aggregates.values()) {
      const done = await part<Pick<AggregateRefresh, 'recomputed' | 'failed'>>(
        () => aggregate.refresh({ signal }),
        { recomputed: 0, failed: 0 },
        // Somebody has locked its tables, which are the caller's own.
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
      /** Another process has the turn, and this one has defined nothing to run. */
      isIdle: !hasTurn && Object.values(this.#maintained).every(({ size }) => size === 0),
    }
  }

  /** One process gets the lease. Nobody renews it or gives it back, so that the others rest until it runs out. */
  async #takeTurn(leaseMs: number): Promise<boolean> {
    // Each call is a holder of its own: a holder that asks again is given what it has.
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

/** The other parts would meet it too, each after a wait. */
const away: readonly (abstract new (...args: never[]) => Error)[] = [
  ClosedError,
  ConnectionLostError,
  CommitOutcomeUnknownError,
]

const names: readonly (keyof MaintainOptions)[] = ['once', 'everyMs']

/** How often; undefined for one round only. */
export function checkMaintain(options: MaintainOptions): number | undefined {
  checkOptions(options, names)
  const { once = false, everyMs } = options
  if (typeof once !== 'boolean')
    throw new InvalidInputError('once', `must be true or false, not ${nameGiven(once)}`)
  if (once && everyMs !== undefined) throw new InvalidInputError('everyMs', 'must not be given with `once`')
  return once ? undefined : checkDuration('everyMs', everyMs ?? EVERY_MS, 100, 2 ** 30)
}
