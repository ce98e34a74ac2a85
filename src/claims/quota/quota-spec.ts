import { checkAmount } from '../../options/check-amount.js'
import { lifetimeText } from '../../options/check-duration.js'
import { MAX_TIMER_MS } from '../../options/max-timer-ms.js'
import { duration, lifetime, wholeNumber } from '../../options/number-options.js'
import { checked, required, unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { boolean, oneOf } from '../../options/value-options.js'
import type { Tx } from '../../postgres/executor.js'
import { checkKey } from '../../postgres/key.js'
import { type PeriodAt, type PeriodOptions, periodFields, readPeriod } from '../period.js'

/** The policy for a reservation that is settled after its lease has ended. */
export type IfLate = 'take' | 'overdraw' | 'fail'

/** With a period (`per`, `perMs`), each period has its own window. Without one, the quota is a stock, which never refills by itself. */
export interface QuotaOptions extends PeriodOptions {
  /** The amount that each subject may use in each window. The limit may change at any time. The used amount stays used. */
  readonly limit: number
  /** How long to wait for other callers that write the row of the same subject, then `BusyError`. Default 500. */
  readonly waitMs?: number | undefined
  /** Records an entry for every take, so that `verify` can count it and `refund` can give it back. Without `ledger`, only takes with an `id` have entries. */
  readonly ledger?: boolean | undefined
  /** How long an id stays known after the end of its window, or for a stock after its use. Default 24 hours, for a stock 30 days. */
  readonly keepMs?: number | undefined
  /**
   * The action when a reservation is settled after its lease has ended. `take` (default): take the amount again if it fits. `overdraw`: take the amount
   * even beyond the limit. `fail`: throw a `HoldEndedError`.
   */
  readonly ifLate?: IfLate | undefined
}

/** Options of a call for its subject. `limit` and `timeZone` replace those of the quota for this call. They are not remembered, so give them in every call. */
export interface SubjectOptions {
  /** The limit of this subject. Default: that of the quota. */
  readonly limit?: number | undefined
  /** The time zone of this subject. Default: that of the quota. */
  readonly timeZone?: string | undefined
  /** Your own transaction. The change commits or rolls back with it. */
  readonly tx?: Tx | undefined
}

export interface TakeOptions extends SubjectOptions {
  /** Takes the amount once, however often the call is repeated with this id, and allows a refund. Up to 512 bytes. */
  readonly id?: string | undefined
}

export interface ReserveOptions extends TakeOptions {
  /** How long until the reservation runs out by itself. Default 60,000. */
  readonly leaseMs?: number | undefined
}

export interface RefundOptions {
  /** The amount to give back. Default: all that was taken. */
  readonly amount?: number | undefined
  /** Your own transaction. The change commits or rolls back with it. */
  readonly tx?: Tx | undefined
}

/** Selects the subjects that `quota.verify` checks. */
export interface QuotaFilter {
  /** Only this subject. Default: all. */
  readonly subject?: string | undefined
}

export const quotaOptions = optionTable<QuotaOptions>()('dibs.quota', {
  limit: required(wholeNumber()),
  ...periodFields,
  waitMs: duration({ default: 500, min: 0, max: MAX_TIMER_MS }),
  ledger: boolean({ default: false }),
  keepMs: lifetime(),
  ifLate: oneOf(['take', 'overdraw', 'fail'], { default: 'take' }),
})

export const subjectOptions = optionTable<SubjectOptions>()('quota.settle, quota.peek', {
  limit: wholeNumber(),
  timeZone: periodFields.timeZone,
  tx: unchecked<Tx>(),
})

export const voidOptions = optionTable<Pick<SubjectOptions, 'tx'>>()('quota.void', { tx: unchecked() })

export const takeOptions = optionTable<TakeOptions>()('quota.take, quota.tryTake', {
  ...subjectOptions.fields,
  id: checked<string>(checkKey),
})

const { tx: _, ...quotaClaimFields } = takeOptions.fields

export const quotaClaimOptions = optionTable<Omit<TakeOptions, 'tx'>>()('quota.claim', quotaClaimFields)

export const reserveOptions = optionTable<ReserveOptions>()('quota.reserve, quota.tryReserve', {
  ...takeOptions.fields,
  leaseMs: duration({ default: 60_000 }),
})

export const refundOptions = optionTable<RefundOptions>()('quota.refund', {
  amount: wholeNumber({ fromClient: true }),
  tx: unchecked(),
})

export const quotaFilter = optionTable<QuotaFilter>()('quota.verify, filter', {
  subject: checked<string>(checkKey),
})

/** A checked request to a quota. */
export interface QuotaRequest {
  readonly subject: string
  readonly limit: number
  /** The period as JSON. Null for a stock. */
  readonly per: string | null
  readonly amount: number
  /** Null: without an entry. */
  readonly id: string | null
}

const DAY_MS = 24 * 3_600_000

/** The checked options of a quota. */
export class QuotaSpec {
  readonly name: string
  readonly limit: number
  readonly waitMs: number
  readonly ledger: boolean
  /** Null means forever. */
  readonly keepMs: string | null
  readonly ifLate: IfLate
  readonly #periodOptions: PeriodOptions
  readonly #period: PeriodAt | undefined

  constructor(name: string, options: QuotaOptions) {
    const { limit, waitMs, ledger, keepMs, ifLate, ...period } = quotaOptions.read(options)
    this.name = checkKey('name', name)
    this.limit = limit
    this.waitMs = waitMs
    this.ledger = ledger
    this.ifLate = ifLate
    this.#periodOptions = period
    this.#period = readPeriod(period)
    this.keepMs = lifetimeText(keepMs ?? (this.#period ? DAY_MS : 30 * DAY_MS))
  }

  request(subject: string, amount: number, { limit, timeZone, id }: TakeOptions): QuotaRequest {
    return {
      subject: checkKey('subject', subject),
      limit: limit ?? this.limit,
      per: this.periodFor(timeZone),
      amount: checkAmount('amount', amount),
      id: id ?? null,
    }
  }

  /** The period in a time zone as JSON. Null for a stock. */
  periodFor(timeZone: string | undefined): string | null {
    const period = timeZone === undefined ? this.#period : readPeriod({ ...this.#periodOptions, timeZone })
    return period ? JSON.stringify(period(0)) : null
  }
}
