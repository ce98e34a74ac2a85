import { InvalidInputError } from '../errors.js'
import { checkAmount } from '../postgres/check-amount.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import { nameGiven } from '../postgres/name-given.js'

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

export interface ReadWorkOptions {
  readonly concurrency: number
  readonly prefetch: number
  readonly queues: readonly string[] | undefined
  readonly pollMs: number
  readonly drainMs: number
  readonly heartbeatThread: boolean
}

const MOST = 100_000
/** Enough jobs to make one statement worth its cost. */
const AHEAD = 1_000

export function readWorkOptions(options: WorkOptions): ReadWorkOptions {
  checkOptions(options, ['concurrency', 'prefetch', 'queues', 'pollMs', 'drainMs', 'heartbeatThread'])
  const {
    concurrency = 10,
    prefetch = AHEAD,
    queues,
    pollMs = 1_000,
    drainMs = 10_000,
    heartbeatThread = false,
  } = options
  if (checkAmount('concurrency', concurrency) > MOST)
    throw new InvalidInputError('concurrency', `must be at most ${MOST}`)
  if (checkAmount('prefetch', prefetch, 0) > MOST)
    throw new InvalidInputError('prefetch', `must be at most ${MOST}`)
  if (queues !== undefined && !(Array.isArray(queues) && queues.every((queue) => typeof queue === 'string')))
    throw new InvalidInputError('queues', `must be names of queues, not ${nameGiven(queues)}`)
  checkDuration('pollMs', pollMs, 10, MAX_TIMER_MS)
  checkDuration('drainMs', drainMs, 0, MAX_TIMER_MS)
  if (typeof heartbeatThread !== 'boolean')
    throw new InvalidInputError('heartbeatThread', `must be true or false, not ${nameGiven(heartbeatThread)}`)
  return { concurrency, prefetch, queues, pollMs, drainMs, heartbeatThread }
}
