import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import { duration, wholeNumber } from '../options/number-options.js'
import { optionTable } from '../options/option-table.js'
import { boolean, stringList } from '../options/value-options.js'

export interface WorkOptions {
  /** How many jobs the worker runs at a time. Default 10. */
  readonly concurrency?: number | undefined
  /**
   * How many more jobs the worker may claim ahead, for jobs so short that claiming each takes longer than running it. The worker never claims more ahead than
   * it finished in the last 50 ms. Default 1,000.
   */
  readonly prefetch?: number | undefined
  /** Take only jobs of these queues. Default: all queues of the handlers. */
  readonly queues?: readonly string[] | undefined
  /** How often the worker polls without a notification, plus or minus a quarter. Default 1,000. */
  readonly pollMs?: number | undefined
  /** How long `stop` waits for running jobs before it releases them. Default 10,000. */
  readonly drainMs?: number | undefined
  /**
   * Renews leases from a separate thread with its own connection, for all workers of the instance. For handlers that compute for longer than a lease without
   * a pause. The thread renews the lease of a job for at most its `timeoutMs`, or for ten minutes if it has none. Default false.
   */
  readonly heartbeatThread?: boolean | undefined
}

export interface StopOptions {
  /** How long to wait for running jobs. Default: the `drainMs` of `work`. */
  readonly drainMs?: number | undefined
}

/** Counters of a worker since it started, and its current state. */
export interface WorkerStats {
  readonly started: number
  readonly succeeded: number
  /** Failed for good: these jobs are dead. */
  readonly failed: number
  /** Failed, and retried later. */
  readonly retried: number
  readonly snoozed: number
  readonly canceled: number
  /** Another worker had the job, or may have had it, when this worker finished it. */
  readonly lost: number
  /** Claimed, and released. */
  readonly released: number
  readonly running: number
  /** Claimed ahead, and not started. */
  readonly waiting: number
  /** Handlers that Dibs has given up and that still run. */
  readonly stuck: number
  readonly isStopping: boolean
  /** The state of the circuit breaker. `open`: the worker sends no queries, because the database was unavailable five times in a row. */
  readonly breaker: 'closed' | 'open' | 'half-open'
}

/** A running worker, which runs jobs until it is stopped. */
export interface Worker extends AsyncDisposable {
  /** The id of the worker, as `dibs.workers.list()` and the records of its jobs show it. */
  readonly id: string
  /** Resolves when the worker takes jobs. While the database is unavailable, `ready` waits for it, and `work` does not. */
  readonly ready: Promise<void>
  readonly stats: WorkerStats
  /** Takes no more jobs, waits for running jobs, releases the rest, and ends the worker. */
  stop(options?: StopOptions): Promise<void>
}

const MAX_CONCURRENCY = 100_000

export const workOptions = optionTable<WorkOptions>()('dibs.work, jobs.work', {
  concurrency: wholeNumber({ default: 10, max: MAX_CONCURRENCY }),
  // Enough jobs to make one statement worth its cost.
  prefetch: wholeNumber({ default: 1_000, min: 0, max: MAX_CONCURRENCY }),
  queues: stringList(),
  pollMs: duration({ default: 1_000, min: 10, max: MAX_TIMER_MS }),
  drainMs: duration({ default: 10_000, min: 0, max: MAX_TIMER_MS }),
  heartbeatThread: boolean({ default: false }),
})

export const stopOptions = optionTable<StopOptions>()('worker.stop', {
  drainMs: duration({ min: 0, max: MAX_TIMER_MS }),
})

export type ResolvedWorkOptions = ReturnType<typeof workOptions.read>
