import { InvalidInputError } from '../errors.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Executor, QueryResult, Row, Tx } from '../postgres/executor.js'
import { checkKey } from '../postgres/key.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import type { FencedWrite } from './fenced-write.js'
import { POLL_MS } from './look-again.js'

export interface GuardOptions {
  /**
   * The server ends the transaction if it stands still for as long as the lease lasts, so that it does not keep everybody else away. Default true; false for a
   * transaction of Kysely, on whose client nobody listens, and of postgres.js (also below Drizzle): there a disconnect would end the process.
   */
  readonly endsIdle?: boolean | undefined
}

/** The previous holder of a lock, whose lease ended without a release. Its work may be half done. */
export interface TookOver {
  readonly holder: string
  readonly fence: number
  /** When the lease of that holder ended. */
  readonly leaseUntil: Date
}

/**
 * A lock in the hands of this process, kept alive until it is released or lost.
 *
 * @example
 * await using lock = await dibs.lock('nightly-report', { leaseMs: 10_000 })
 * await dibs.transaction(async (tx) => {
 *   await lock.guard(tx)
 *   await tx.query('update report set done = true where id = $1', [id])
 * })
 */
export interface Lock extends AsyncDisposable {
  readonly name: string
  /** Which of the permits it is, from 0. */
  readonly permit: number
  /** A number that is higher for each holder after this one: hand it on to whatever else is written to. */
  readonly fence: number
  /** How this holder is named to others: what was given as `holder`, or host and process, and what makes it the only one. */
  readonly holder: string
  /** By the database's clock. */
  readonly acquiredAt: Date
  /** Set if the lease of the one before had run out: that one has not given it back. */
  readonly tookOver: TookOver | undefined
  /** Fires when the lock is lost; its reason is a `FenceLostError` that has the `reason`. Give it to `fetch` and the like. */
  readonly signal: AbortSignal
  /** Throws a `FenceLostError` if the lock is lost, also while the signal is still on its way since this process stood still. */
  assertHeld(): void
  /**
   * Ties an open transaction to this lock: once another has taken over it cannot commit, and until it has ended nobody can take over. Rejected
   * with a `FenceLostError`, and the transaction has failed, if the lock is another's by now.
   *
   * @example
   * await dibs.transaction(async (tx) => {
   *   await lock.guard(tx)
   *   await tx.query('update counter set n = n + 1')
   * })
   */
  guard(tx: Tx, options?: GuardOptions): Promise<void>
  /**
   * Writes a row of a store that knows nothing of this lock, such as another database: only if no later holder has written there before. The row keeps the
   * highest fence in a column of its own.
   *
   * @example
   * await lock.writeFenced(warehouse, { table: 'report', where: { day }, set: { body }, fenceColumn: 'fence' })
   */
  writeFenced<R extends object = Row>(store: Executor, write: FencedWrite): Promise<QueryResult<R>>
  /** Gives it back: `released`, or `lost` if it was lost before, without asking the server. May be called again. */
  release(): Promise<'released' | 'lost'>
}

export interface TryLockOptions {
  /** How long it lasts unless it is renewed, which happens by itself: 50 to 86,400,000. Default 30,000. */
  readonly leaseMs?: number | undefined
  /** It is given up after so long, however often it was renewed. Default: never. */
  readonly maxHoldMs?: number | undefined
  /** How many may hold it at a time, 1 to 1,000; all who use the name should agree. Default 1. */
  readonly permits?: number | undefined
  /** Who it is, for others to see. Default: host and process. */
  readonly holder?: string | undefined
}

export interface LockOptions extends TryLockOptions {
  /** How long to wait for it. 0: not at all. Default 10,000. */
  readonly waitMs?: number | undefined
  /** Ends the waiting. A lock that is held stays so. */
  readonly signal?: AbortSignal | undefined
}

/** What was asked for, checked and whole. */
export interface LockSpec {
  readonly name: string
  readonly leaseMs: number
  readonly maxHoldMs: number
  readonly permits: number
  readonly holder: string | undefined
  readonly waitMs: number
  /** Whoever waits looks again after so long at the latest: a hint may be lost, and holders that die send none. */
  readonly pollMs: number
  readonly signal: AbortSignal | undefined
}

const MIN_LEASE_MS = 50
const MAX_LEASE_MS = 24 * 3_600_000
const MAX_PERMITS = 1_000
const MAX_HOLDER_BYTES = 200

const tryNames = ['leaseMs', 'maxHoldMs', 'permits', 'holder']

export function checkLock(name: string, options: LockOptions, waits: boolean): LockSpec {
  checkKey('name', name)
  if (typeof options === 'object' && options !== null && 'tx' in options)
    throw new InvalidInputError(
      'tx',
      'is no option here: for the length of a transaction a lock is had by dibs.acquire([claim.lock(name)], { tx }, fn)',
    )
  checkOptions(options, waits ? [...tryNames, 'waitMs', 'signal'] : tryNames)
  const { leaseMs = 30_000, maxHoldMs, permits = 1, holder, waitMs = 10_000, signal } = options
  if (!Number.isSafeInteger(permits) || permits < 1 || permits > MAX_PERMITS)
    throw new InvalidInputError(
      'permits',
      `must be a whole number from 1 to ${MAX_PERMITS}, not ${showGiven(permits)}`,
    )
  if (holder !== undefined && Buffer.byteLength(checkKey('holder', holder)) > MAX_HOLDER_BYTES)
    throw new InvalidInputError('holder', `must be at most ${MAX_HOLDER_BYTES} bytes long`)
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new InvalidInputError('signal', `must be an AbortSignal, not ${nameGiven(signal)}`)
  return {
    name,
    leaseMs: checkDuration('leaseMs', leaseMs, MIN_LEASE_MS, MAX_LEASE_MS),
    maxHoldMs:
      maxHoldMs === undefined
        ? Number.POSITIVE_INFINITY
        : checkDuration('maxHoldMs', maxHoldMs, 1, MAX_TIMER_MS),
    permits,
    holder,
    waitMs: waits ? checkDuration('waitMs', waitMs, 0, MAX_TIMER_MS) : 0,
    pollMs: POLL_MS,
    signal,
  }
}
