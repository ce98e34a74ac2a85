import { describeLease } from './describe-lease.js'
import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/** A period in which a thing is done once. */
export interface SlotBounds {
  /** Names the period: `day:2026-11-16`. */
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
 * Another has done this in the same period, or is doing it.
 *
 * @example
 * if (error instanceof SingletonConflictError) return `${error.holder} was first, at ${error.since?.toISOString()}`
 */
export class SingletonConflictError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_SINGLETON_CONFLICT',
    status: 409,
    retryable: false,
    means: 'Another has done this in the same period, or is doing it. Nothing was run.',
    remedy:
      '`holder`, `since`, `id` and `result` say who did it and with which result. Wait for the next period, or void the slot. While `state` is `pending` (and `retryable` true) its holder may die: try again after `retryAfterMs`.',
  }

  readonly scope: string
  readonly slot: SlotBounds
  /** Of the claim that has the slot. */
  declare readonly id?: string
  /** Who has it, as they said. */
  declare readonly holder?: string
  /** When they claimed it. */
  declare readonly since?: Date
  /** `pending`: they are at it; `active`: done; `failed`: it failed, and the slot is kept; `void`: undone, and the slot is kept. */
  readonly state: 'pending' | 'active' | 'failed' | 'void'
  /** What came of it. */
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
    this.scope = scope
    this.slot = slot
    this.state = state
    if (id !== undefined) this.id = id
    if (by !== undefined) this.holder = by
    if (since) this.since = since
    if (result !== undefined) this.result = result
    if (leaseUntil) this.leaseUntil = leaseUntil
    if (retryAfterMs !== undefined) this.retryAfterMs = retryAfterMs
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

  /** Who holds the lock: the name that the holder gave, else its host and process. Unknown while an open transaction holds it. */
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
    if (holder !== undefined) this.holder = holder
    if (leaseUntil) this.leaseUntil = leaseUntil
  }
}

/** One of several claims that was refused. */
export interface AcquireFailure {
  /** Its place in the list that was given. */
  readonly index: number
  readonly kind: 'once' | 'singleton' | 'quota' | 'rate' | 'lock'
  readonly error: DibsError
}

/**
 * Of several claims, some were refused, and so none was made.
 *
 * @example
 * if (error instanceof AcquireRefusedError) for (const { kind, error: why } of error.failures) console.log(kind, why.message)
 */
export class AcquireRefusedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_ACQUIRE_REFUSED',
    status: 409,
    retryable: false,
    means:
      'Of several claims, some were refused, and so none was made. Nothing was run, and nothing was taken.',
    remedy:
      '`failures` has the reason of each; `status` is theirs if they agree. If `isFinal`, asking again ends the same way; else try after `retryAfterMs`.',
  }

  /** When all of them may fit; missing if one of them does not free itself. */
  declare readonly retryAfterMs?: number

  constructor(
    /** Every claim that was refused, with its reason. */
    readonly failures: readonly AcquireFailure[],
    /** Asking again would end the same way. Under an idempotency key it is the outcome. */
    readonly isFinal: boolean,
    /** It is the outcome of an earlier call with the same key. */
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
