import { describeLease } from './describe-lease.js'
import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'
import { setKnown } from './set-known.js'

/** A period in which something is done once. */
export interface SlotBounds {
  /** The name of the period: `day:2026-11-16`. */
  readonly key: string
  readonly startsAt: Date
  readonly endsAt: Date
}

export interface SingletonConflictDetails extends DibsErrorOptions {
  readonly scope: string
  readonly slot: SlotBounds
  readonly id?: string | undefined
  readonly holder?: string | undefined
  readonly since?: Date | undefined
  readonly state: 'pending' | 'active' | 'failed' | 'void'
  readonly result?: unknown
  readonly leaseUntil?: Date | undefined
  readonly retryAfterMs?: number | undefined
}

/**
 * Another caller has done this in the same period, or is doing it.
 *
 * @example
 * if (error instanceof SingletonConflictError) return `${error.holder} was first, at ${error.since?.toISOString()}`
 */
export class SingletonConflictError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_SINGLETON_CONFLICT',
    status: 409,
    retryable: false,
    means: 'Another caller has done this in the same period, or is doing it. Nothing was run.',
    remedy:
      '`holder`, `since`, `id` and `result` say who did it, and with which result. Wait for the next period, or void the slot. While `state` is `pending` (and `retryable` true), the holder may die: try again after `retryAfterMs`.',
  }

  declare readonly scope: string
  declare readonly slot: SlotBounds
  /** The id of the claim that has the slot. */
  declare readonly id?: string
  /** The name of the holder of the slot, as the holder gave it. */
  declare readonly holder?: string
  /** When the holder claimed the slot. */
  declare readonly since?: Date
  /** `pending`: the holder is doing it. `active`: done. `failed`: it failed, and the slot is kept. `void`: undone, and the slot is kept. */
  declare readonly state: 'pending' | 'active' | 'failed' | 'void'
  /** The result of the holder. */
  declare readonly result?: unknown
  /** When the lease of a pending holder ends, unless it is renewed. By the database's clock. */
  declare readonly leaseUntil?: Date
  /** How long until the lease of a pending holder ends. */
  declare readonly retryAfterMs?: number

  constructor({
    scope,
    slot,
    id,
    holder: by,
    since,
    state,
    result,
    leaseUntil,
    retryAfterMs,
    cause,
  }: SingletonConflictDetails) {
    const who = by === undefined ? 'another caller' : `"${by}"`
    const what = {
      pending: 'is at it',
      active: 'has done it',
      failed: 'has failed at it',
      void: 'did it, and it was undone',
    }
    const when = since ? ` (claimed ${since.toISOString()})` : ''
    super(
      `"${scope}" is done once in each period, and ${slot.key} is taken: ${who} ${what[state]}${when}. Nothing was run.`,
      { cause, retryable: state === 'pending' },
    )
    setKnown<SingletonConflictError>(this, {
      scope,
      slot,
      state,
      id,
      holder: by,
      since,
      result,
      leaseUntil,
      retryAfterMs,
    })
  }
}

export interface LockHeldDetails extends DibsErrorOptions {
  readonly holder?: string | undefined
  readonly leaseUntil?: Date | undefined
}

/**
 * Another caller holds the lock.
 *
 * @example
 * if (error instanceof LockHeldError) console.log(`free in ${error.retryAfterMs} ms at the latest, unless it is renewed`)
 */
export class LockHeldError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_LOCK_HELD',
    status: 409,
    retryable: true,
    means: 'Another caller holds the lock, or is taking it. Nothing was done.',
    remedy:
      'Try again after `retryAfterMs`. `holder` and `leaseUntil` say who holds the lock and until when.',
  }

  /** The holder of the lock: the name that it gave, else its host and process. Unknown while an open transaction holds the lock. */
  declare readonly holder?: string
  /** When the lease of that holder ends, unless it is renewed. By the database's clock. */
  declare readonly leaseUntil?: Date

  constructor(
    readonly lock: string,
    override readonly retryAfterMs: number,
    { holder, leaseUntil, cause }: LockHeldDetails = {},
  ) {
    const who = holder === undefined ? 'another caller' : `"${holder}"`
    super(`Lock "${lock}" is held by ${who}${describeLease(leaseUntil)}. Try again in ${retryAfterMs} ms.`, {
      cause,
    })
    setKnown<LockHeldError>(this, { holder, leaseUntil })
  }
}

/** One of several claims that was refused. */
export interface AcquireFailure {
  /** The index of the claim in the given list. */
  readonly index: number
  readonly kind: 'once' | 'singleton' | 'quota' | 'rate' | 'lock'
  readonly error: DibsError
}

/**
 * Some of several claims were refused, so none was made.
 *
 * @example
 * if (error instanceof AcquireRefusedError) for (const { kind, error: why } of error.failures) console.log(kind, why.message)
 */
export class AcquireRefusedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_ACQUIRE_REFUSED',
    status: 409,
    retryable: false,
    means: 'Some of several claims were refused, so none was made. Nothing was run, and nothing was taken.',
    remedy:
      '`failures` has the reason of each refused claim. `status` is theirs if they agree. If `isFinal` is true, the same call would be refused again. Otherwise try again after `retryAfterMs`.',
  }

  /** How many milliseconds until all claims may fit. Missing if one of them does not become free by itself. */
  declare readonly retryAfterMs?: number

  constructor(
    /** Every claim that was refused, with its reason. */
    readonly failures: readonly AcquireFailure[],
    /** True if the same call would be refused again. Under an idempotency key, this refusal is the outcome. */
    readonly isFinal: boolean,
    /** True if this is the outcome of an earlier call with the same key. */
    readonly replayed: boolean = false,
    options?: DibsErrorOptions,
  ) {
    const waits = failures.map(({ error }) => error.retryAfterMs)
    const retryAfterMs = isFinal || waits.includes(undefined) ? undefined : Math.max(...waits.map(Number))
    const statuses = new Set(failures.map(({ error }) => error.status))
    const [status = 409] = statuses.size === 1 ? statuses : []
    const what =
      failures.length === 1
        ? 'One claim was refused, so none was made'
        : `${failures.length} claims were refused, so none was made`
    super(`${what}: ${failures.map(({ error }) => error.message).join(' ')}`, {
      ...options,
      status,
      retryable: !isFinal && failures.every(({ error }) => error.retryable),
    })
    if (retryAfterMs !== undefined) this.retryAfterMs = retryAfterMs
  }
}
