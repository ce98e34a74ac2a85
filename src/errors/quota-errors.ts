import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'
import { setKnown } from './set-known.js'

/** The state of a quota when it refused. */
export interface QuotaExceededDetails extends DibsErrorOptions {
  readonly quota: string
  readonly subject: string
  readonly limit: number
  readonly used: number
  readonly held: number
  readonly requested: number
  readonly resetsAt?: Date | undefined
  readonly retryAfterMs?: number | undefined
}

/**
 * The requested amount does not fit into the rest of a quota. Nothing was taken.
 *
 * @example
 * if (error instanceof QuotaExceededError) console.log(`${error.remaining} left until ${error.resetsAt}`)
 */
export class QuotaExceededError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_QUOTA_EXCEEDED',
    status: 429,
    retryable: true,
    means: 'The requested amount does not fit into the rest of a quota. Nothing was taken.',
    remedy:
      'Ask for less (`remaining`), or try again after `retryAfterMs`. Without `retryAfterMs`, a stock is sold out: `status` is 409, `retryable` is false, and only a refund or a higher limit makes room.',
  }

  declare readonly quota: string
  declare readonly subject: string
  declare readonly limit: number
  /** The amount that was taken in this window. */
  declare readonly used: number
  /** The amount that is reserved, and neither settled nor released. */
  declare readonly held: number
  declare readonly requested: number
  /** The amount that would have fitted. */
  declare readonly remaining: number
  /** When the next window begins. A stock has no windows. */
  declare readonly resetsAt?: Date
  /** How many milliseconds until this amount fits, if no other caller takes any. Reservations may expire before the window ends. */
  declare readonly retryAfterMs?: number

  constructor(details: QuotaExceededDetails) {
    const { quota, subject, limit, used, held, requested, resetsAt, retryAfterMs, cause } = details
    const remaining = Math.max(0, limit - used - held)
    const reserved = held > 0 ? ` and ${held} reserved` : ''
    const when =
      retryAfterMs === undefined
        ? 'Nothing becomes free by itself.'
        : `It fits in ${retryAfterMs} ms at the earliest.`
    super(
      `Quota "${quota}" of "${subject}" has ${remaining} left, and ${requested} ${requested === 1 ? 'was' : 'were'} asked for: ${used} of ${limit} used${reserved}. Nothing was taken. ${when}`,
      // Clients retry a 429, and no wait helps with a stock that is sold out.
      { cause, ...(retryAfterMs === undefined ? { retryable: false, status: 409 } : {}) },
    )
    setKnown<QuotaExceededError>(this, {
      quota,
      subject,
      limit,
      used,
      held,
      requested,
      remaining,
      resetsAt,
      retryAfterMs,
    })
  }
}

/** The state of a reservation, or of a take. */
export type QuotaEntryState = 'held' | 'taken' | 'void' | 'expired' | 'refunded' | 'unknown'

/**
 * The state of a reservation or a take does not allow the call: it has ended in another way, has expired, or is unknown.
 *
 * @example
 * if (error instanceof HoldEndedError && error.state === 'expired') console.log('too late: it is free for others again')
 */
export class HoldEndedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_HOLD_ENDED',
    status: 409,
    retryable: false,
    means:
      'A reservation or a take of a quota has ended in another way, has expired, or is unknown. Nothing was changed.',
    remedy:
      '`state` says how it ended. An expired reservation can be settled late (`ifLate`), or made again. Raise `leaseMs` if reservations need more time.',
  }

  constructor(
    readonly quota: string,
    readonly id: string,
    readonly state: QuotaEntryState,
    what: string,
    options?: DibsErrorOptions,
  ) {
    const known =
      state === 'unknown'
        ? 'is not known: it was forgotten, or made in a transaction that has not committed (then pass that as `tx`)'
        : `is ${state}`
    super(`"${id}" of quota "${quota}" ${known}. So it cannot be ${what}. Nothing was changed.`, options)
  }
}
