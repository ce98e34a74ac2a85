import { InvalidInputError } from '../errors.js'
import { checkAmount } from '../postgres/check-amount.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import { nameGiven } from '../postgres/name-given.js'

export interface WorkOptions {
  /** How many jobs it runs at a time. Default 10. */
  readonly concurrency?: number | undefined
  /** How many it may claim ahead of those, where jobs are so short that asking for each takes longer than running it. What is ahead is no more than what was finished in the last 50 ms. Default 1,000. */
  readonly prefetch?: number | undefined
  /** Only jobs of these queues. Default: of all that its handlers are for. */
  readonly queues?: readonly string[] | undefined
  /** How often it looks for jobs that nobody has told it of, give or take a quarter. Default 1,000. */
  readonly pollMs?: number | undefined
  /** How long `stop` waits for jobs that run, before they are given back. Default 10,000. */
  readonly drainMs?: number | undefined
  /**
   * Leases are renewed from a thread of their own, with a connection of its own: for handlers that compute for longer than a lease without a pause. For all workers of the instance.
   * A handler is kept alive so for its `timeoutMs` at most, else for ten minutes. Default false.
   */
  readonly heartbeatThread?: boolean | undefined
}

export interface StopOptions {
  /** Instead of that of `work`. */
  readonly drainMs?: number | undefined
}

/** What a worker has done since it began, and what it is doing. */
export interface WorkerStats {
  readonly started: number
  readonly succeeded: number
  /** For good: they are dead. */
  readonly failed: number
  /** Failed, and tried again later. */
  readonly retried: number
  readonly snoozed: number
  readonly canceled: number
  /** Another had, or may have had, the job when this one was done with it. */
  readonly lost: number
  /** Claimed, and given back. */
  readonly released: number
  readonly running: number
  /** Claimed ahead, and not begun. */
  readonly waiting: number
  /** Handlers that were given up, and that still run. */
  readonly stuck: number
  readonly isStopping: boolean
  /** Whether it asks the database: `open`, it does not, since that was away five times in a row. */
  readonly breaker: 'closed' | 'open' | 'half-open'
}

/** Runs jobs until it is stopped. */
export interface Worker extends AsyncDisposable {
  /** As it is listed, and as its jobs name it. */
  readonly id: string
  /** Resolves when it takes jobs; while the database is away it waits for that, and `work` does not. */
  readonly ready: Promise<void>
  readonly stats: WorkerStats
  /** Takes no more jobs, waits for those that run, gives the rest back, and is gone. */
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
/** As many as make a statement worth its while. */
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
