import { InvalidInputError } from '../errors.js'
import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import { duration, wholeNumber } from '../options/number-options.js'
import { checked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { abortSignal, boolean } from '../options/value-options.js'
import type { Executor, QueryResult, Row, Tx } from '../postgres/executor.js'
import { checkKey } from '../postgres/key.js'
import type { FencedWrite } from './fenced-write.js'
import { POLL_MS } from './poll-delay.js'

export interface GuardOptions {
  /**
   * Whether the server ends the transaction when it stays idle for `leaseMs`, so that a stalled transaction does not block the next holder. Default true.
   *
   * Default false for a transaction of Kysely, whose client has no error listener, and of postgres.js (also below Drizzle). There a disconnect would end
   * the process.
   */
  readonly endsIdle?: boolean | undefined
}

export const guardOptions = optionTable<GuardOptions>()('lock.guard, term.guard', { endsIdle: boolean() })

/** The previous holder of a lock, whose lease expired without a release. Work of that holder may be half done. */
export interface TookOver {
  readonly holder: string
  readonly fence: number
  /** When the lease of that holder expired. */
  readonly leaseUntil: Date
}

/**
 * A lock that this process holds. Its lease is renewed automatically until the lock is released or lost.
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
  /** The number of this permit, from 0. */
  readonly permit: number
  /** A number that is higher for each later holder. Pass it on to other systems that you write to. */
  readonly fence: number
  /** Names this holder: the `holder` option, or host and process, plus a unique suffix. */
  readonly holder: string
  /** When this holder got the lock, by the database's clock. */
  readonly acquiredAt: Date
  /** Set if the lease of the previous holder expired: that holder did not release the lock. */
  readonly tookOver: TookOver | undefined
  /** Fires when the lock is lost. Its reason is a `FenceLostError` that has the `reason`. Pass the signal to `fetch` and similar calls. */
  readonly signal: AbortSignal
  /** Throws a `FenceLostError` if the lock is lost, even before `signal` fires, as after this process was suspended. */
  assertHeld(): void
  /**
   * Ties an open transaction to this lock. Once another holder has taken over, the transaction cannot commit. Until the transaction has ended, no other
   * holder can take over. If the lock is already lost, `guard` throws a `FenceLostError` and the transaction has failed.
   *
   * @example
   * await dibs.transaction(async (tx) => {
   *   await lock.guard(tx)
   *   await tx.query('update counter set n = n + 1')
   * })
   */
  guard(tx: Tx, options?: GuardOptions): Promise<void>
  /**
   * Writes a row in a store that does not know this lock, such as another database. The row is written only if no later holder has written it before. The row
   * keeps the highest fence in a column of its own.
   *
   * @example
   * await lock.writeFenced(warehouse, { table: 'report', where: { day }, set: { body }, fenceColumn: 'fence' })
   */
  writeFenced<R extends object = Row>(store: Executor, write: FencedWrite): Promise<QueryResult<R>>
  /** Releases the lock. Resolves to `released`, or to `lost`, without a round trip, if the lock was lost before. May be called again. */
  release(): Promise<'released' | 'lost'>
}

export interface TryLockOptions {
  /** How long the lease lasts without a renewal: 50 to 86,400,000. Renewed automatically. Default 30,000. */
  readonly leaseMs?: number | undefined
  /** The longest time to hold the lock, however often it was renewed. After that the lock is lost. Default: no limit. */
  readonly maxHoldMs?: number | undefined
  /** How many callers may hold the lock at a time: 1 to 1,000. All users of the name should give the same number. Default 1. */
  readonly permits?: number | undefined
  /** Names this holder for others to see. Default: host and process. */
  readonly holder?: string | undefined
}

export interface LockOptions extends TryLockOptions {
  /** How long to wait for the lock. 0: do not wait. Default 10,000. */
  readonly waitMs?: number | undefined
  /** Ends the wait. A lock that is already held stays held. */
  readonly signal?: AbortSignal | undefined
}

/** The checked arguments of a lock call, with defaults filled in. */
export interface LockSpec {
  readonly name: string
  readonly leaseMs: number
  readonly maxHoldMs: number
  readonly permits: number
  readonly holder: string | undefined
  readonly waitMs: number
  /** The longest pause between two polls of a waiting call. A notification may be lost, and a holder that dies sends none. */
  readonly pollMs: number
  readonly signal: AbortSignal | undefined
}

const MAX_LEASE_MS = 24 * 3_600_000
const MAX_HOLDER_BYTES = 200

function checkHolder(field: string, holder: unknown): void {
  if (Buffer.byteLength(checkKey(field, holder)) > MAX_HOLDER_BYTES)
    throw new InvalidInputError(field, `must be at most ${MAX_HOLDER_BYTES} bytes long`)
}

const refused = {
  tx: 'is not an option. To lock until a transaction ends, use dibs.acquire([claim.lock(name)], { tx }, fn)',
}

export const tryLockOptions = optionTable<TryLockOptions>()(
  'dibs.tryLock',
  {
    leaseMs: duration({ default: 30_000, min: 50, max: MAX_LEASE_MS }),
    maxHoldMs: duration({ max: MAX_TIMER_MS }),
    permits: wholeNumber({ default: 1, max: 1_000 }),
    holder: checked(checkHolder, { bounds: `at most ${MAX_HOLDER_BYTES} bytes` }),
  },
  { refused },
)

export const lockOptions = optionTable<LockOptions>()(
  'dibs.lock, dibs.withLock',
  {
    ...tryLockOptions.fields,
    waitMs: duration({ default: 10_000, min: 0, max: MAX_TIMER_MS }),
    signal: abortSignal(),
  },
  { refused },
)

export function checkLock(name: string, options: LockOptions, waits: boolean): LockSpec {
  checkKey('name', name)
  const noWait = { waitMs: 0, signal: undefined }
  const read = waits ? lockOptions.read(options) : { ...tryLockOptions.read(options), ...noWait }
  return { ...read, name, maxHoldMs: read.maxHoldMs ?? Number.POSITIVE_INFINITY, pollMs: POLL_MS }
}
