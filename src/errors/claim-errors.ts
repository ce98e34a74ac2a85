import { describeLease } from './describe-lease.js'
import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'
import { setKnown } from './set-known.js'

/**
 * Why a claim is lost.
 *
 * - `stolen`: another holder has it, or it was taken away
 * - `expired`: this process was paused for too long
 * - `lost contact`: the lease could not be renewed in time
 * - `max hold`: it was held for its whole `maxHoldMs`
 * - `closed`: its instance was closed
 * - `resigned`: a leader stops and hands over
 */
export type LossReason = 'stolen' | 'expired' | 'lost contact' | 'max hold' | 'closed' | 'resigned'

const whyLost: Record<LossReason, string> = {
  stolen: 'is lost: another holder took it over, or it was taken away',
  expired: 'has run out while this process stood still, so another may have taken it over',
  'lost contact': 'could not be renewed before its lease ran out, so another may have taken it over',
  'max hold': 'was held for as long as it was to be (`maxHoldMs`), and is given up',
  closed: 'is given up, since its instance was closed',
  resigned: 'is given up, to hand it over',
}

/**
 * Another holder has the claim that you held, or may have it.
 *
 * @example
 * if (error instanceof FenceLostError) return // another holder does this work, or may
 */
export class FenceLostError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_FENCE_LOST',
    status: 409,
    retryable: false,
    means:
      'The claim that you held was taken over or released, or its lease ran out before it could be renewed. Nothing was written under its fence.',
    remedy: 'Stop the work: another holder owns it now, or may own it. Do not write its result anywhere.',
  }

  /** Why the claim is lost: for locks, terms of an election, and jobs. */
  declare readonly reason?: LossReason

  constructor(
    /** The subject of the claim, in readable form: `lock "nightly-report"`. */
    readonly subject: string,
    /** The fence of the lost claim. 0 if several things were claimed, each with its own fence. */
    readonly fence: number,
    /** `isLate`: the lease could not be renewed in time, so the claim counts as lost although no statement was refused. */
    options?: DibsErrorOptions & {
      readonly isLate?: boolean | undefined
      readonly reason?: LossReason | undefined
    },
  ) {
    const claim = `The claim on ${subject}${fence > 0 ? ` with fence ${fence}` : ''}`
    const reason = options?.reason ?? (options?.isLate ? 'lost contact' : undefined)
    super(
      reason === undefined
        ? `${claim} is lost: another holder took it over, it was released, or its lease ran out. Nothing was written. Stop this work.`
        : `${claim} ${whyLost[reason]}. Stop this work.`,
      options,
    )
    if (options?.reason !== undefined) this.reason = options.reason
  }
}

/** A session that blocked the wait, as far as the server shows it to this role. */
export interface Blocker {
  readonly pid: number
  /** The `application_name` of the session. */
  readonly application: string
  /** When the transaction of the session began. */
  readonly since?: Date
  /** The last statement of the session. */
  readonly query?: string
  /** False if it is only known that the session has locked rows of the same table. */
  readonly isSure: boolean
}

export interface BusyDetails extends DibsErrorOptions {
  readonly blockers?: readonly Blocker[] | undefined
  readonly holder?: string | undefined
  readonly leaseUntil?: Date | undefined
}

/**
 * A bounded wait ended before the resource became free.
 *
 * @example
 * if (error instanceof BusyError) response.setHeader('Retry-After', Math.ceil(error.retryAfterMs / 1000))
 */
export class BusyError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_BUSY',
    status: 503,
    retryable: true,
    means:
      'A bounded wait ended before the resource became free, or the server has no room for another connection.',
    remedy:
      'Try again after `retryAfterMs`. If they are known, `holder` and `leaseUntil` say who has the resource and until when. If this happens often, raise `waitMs` of calls that have it, or keep transactions short.',
  }

  declare readonly waitedMs: number
  /** The sessions that held the row locks, if the server shows them. */
  declare readonly blockers?: readonly Blocker[]
  /** The holder of the resource: the name that it gave, else its host and process. Missing if there is no holder with a lease. */
  declare readonly holder?: string
  /** When the lease of that holder ends, unless it is renewed. By the database's clock. */
  declare readonly leaseUntil?: Date

  constructor(
    /** The resource that the caller waited for. */
    readonly subject: string,
    waitedMs: number,
    override readonly retryAfterMs: number,
    { blockers, holder, leaseUntil, cause }: BusyDetails = {},
  ) {
    const waited = waitedMs > 0 ? `Waited ${Math.round(waitedMs)} ms for` : 'Did not wait for'
    const held = holder === undefined ? '' : ` It is held by "${holder}"${describeLease(leaseUntil)}.`
    const blocked = blockers?.length ? ` Blocked by ${blockers.map(nameBlocker).join(', ')}.` : ''
    super(`${waited} ${subject}.${held}${blocked} Try again in ${retryAfterMs} ms.`, { cause })
    setKnown<BusyError>(this, { waitedMs: Math.round(waitedMs), blockers, holder, leaseUntil })
  }
}

function nameBlocker({ pid, application, since, isSure }: Blocker): string {
  const known = [application, since && `in a transaction since ${since.toISOString()}`].filter(Boolean)
  return `${isSure ? '' : 'possibly '}process ${pid}${known.length > 0 ? ` (${known.join(', ')})` : ''}`
}

export interface ConflictDetails extends DibsErrorOptions {
  /** The subject of the conflict: a record, or the transaction. */
  readonly subject: string
  readonly expected?: number | undefined
  readonly current?: number | undefined
  readonly sqlState?: string | undefined
  /** The number of attempts before Dibs gave up. */
  readonly attempts?: number | undefined
  readonly reason?: string | undefined
}

/**
 * Another writer was first. If you throw this error inside `dibs.transaction`, the transaction runs again.
 *
 * @example
 * if (row.version !== seen) throw new ConflictError({ subject: `order ${id}`, expected: seen, current: row.version })
 */
export class ConflictError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_CONFLICT',
    status: 409,
    retryable: true,
    means:
      'Another writer was first: the version has changed, or PostgreSQL refused the order of two transactions (40001, 40P01).',
    remedy:
      'Run the whole unit again, including its reads. `dibs.transaction` does so itself. When it gives up, back off.',
  }

  declare readonly subject: string
  declare readonly expected?: number | undefined
  declare readonly current?: number | undefined
  declare readonly sqlState?: string | undefined
  declare readonly attempts?: number | undefined
  declare readonly reason?: string | undefined

  constructor({ subject, expected, current, sqlState, attempts, reason, cause }: ConflictDetails) {
    const versions =
      expected === undefined ? '' : ` Expected version ${expected}, found ${current ?? 'none'}.`
    const tries =
      attempts === undefined ? '' : ` Gave up after ${attempts} ${attempts === 1 ? 'attempt' : 'attempts'}.`
    super(
      `Conflict on ${subject}: another writer was first.${versions}${tries}${reason ? ` (${reason})` : ''}`,
      { cause },
    )
    setKnown<ConflictError>(this, { subject, expected, current, sqlState, attempts, reason })
  }
}
