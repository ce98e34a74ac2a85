import { InvalidInputError } from '../errors.js'
import { checkAmount, checkLimit } from '../postgres/check-amount.js'
import { checkDuration, checkLifetime, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Tx } from '../postgres/executor.js'
import { checkKey } from '../postgres/key.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import { type PeriodAt, type PeriodOptions, periodNames, readPeriod } from './period.js'

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

/** The values that most statements begin with. */
export interface Asked {
  readonly subject: string
  readonly limit: number
  /** As JSON. Null for a stock. */
  readonly per: string | null
}

const names = ['limit', ...periodNames, 'waitMs', 'ledger', 'keepMs', 'ifLate']
const policies: readonly unknown[] = ['take', 'overdraw', 'fail'] satisfies IfLate[]
const DAY_MS = 24 * 3_600_000

/** The validated options of a quota. */
export class QuotaSpec {
  readonly name: string
  readonly limit: number
  readonly waitMs: number
  readonly ledger: boolean
  readonly keepMs: string | null
  readonly ifLate: IfLate
  readonly #given: PeriodOptions
  readonly #period: PeriodAt | undefined

  constructor(name: string, options: QuotaOptions) {
    checkOptions(options, names)
    const { limit, per, timeZone, perMs, from, waitMs = 500, ledger = false, ifLate = 'take' } = options
    this.name = checkKey('name', name)
    this.limit = checkLimit('limit', limit)
    this.#given = { per, timeZone, perMs, from }
    this.#period = readPeriod(this.#given)
    const { keepMs = this.#period ? DAY_MS : 30 * DAY_MS } = options
    this.waitMs = checkDuration('waitMs', waitMs, 0, MAX_TIMER_MS)
    if (typeof ledger !== 'boolean')
      throw new InvalidInputError('ledger', `must be true or false, not ${nameGiven(ledger)}`)
    this.ledger = ledger
    this.keepMs = checkLifetime('keepMs', keepMs)
    if (!policies.includes(ifLate))
      throw new InvalidInputError('ifLate', `must be 'take', 'overdraw' or 'fail', not ${showGiven(ifLate)}`)
    this.ifLate = ifLate
  }

  ask(subject: unknown, amount: unknown, options: SubjectOptions): Asked & { readonly amount: number } {
    return { ...this.read(subject, options), amount: checkAmount('amount', amount) }
  }

  read(subject: unknown, { limit = this.limit, timeZone }: SubjectOptions): Asked {
    return {
      subject: checkKey('subject', subject),
      limit: checkLimit('limit', limit),
      per: this.perOf(timeZone),
    }
  }

  perOf(timeZone: string | undefined): string | null {
    const period = timeZone === undefined ? this.#period : readPeriod({ ...this.#given, timeZone })
    return period ? JSON.stringify(period(0)) : null
  }
}
