import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'
import { setKnown } from './set-known.js'

/**
 * The row does not exist.
 *
 * @example
 * if (error instanceof NotFoundError) response.writeHead(404).end(`no ${error.table}`)
 */
export class NotFoundError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_NOT_FOUND',
    status: 404,
    retryable: false,
    means:
      'There is no row with this id, or this transaction cannot see it. Or the job does not exist, or is no longer kept. Nothing was changed.',
    remedy:
      'Check the id. Another transaction may have deleted the row. A row that an open transaction has inserted is not visible yet.',
  }

  constructor(
    /** The missing thing, in readable form: `row 7 of table "orders"`. */
    readonly subject: string,
    readonly table: string,
    /** The given id. An array if several are missing. */
    readonly id: unknown,
    /** `isRead`: the call only reads, so the message does not say that nothing was changed. */
    options?: DibsErrorOptions & { readonly isRead?: boolean },
  ) {
    super(`There is no ${subject}.${options?.isRead ? '' : ' Nothing was changed.'}`, options)
  }
}

/**
 * The row could be written, but the database did not write it. Or a row could not be inserted because of another row that cannot be found.
 *
 * @example
 * if (error instanceof NotWrittenError) console.error(`see the triggers of ${error.table}`)
 */
export class NotWrittenError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_NOT_WRITTEN',
    status: 409,
    retryable: false,
    means:
      'The database did not write a row that could have been written. A trigger may have returned null or another row than the new one, or written somewhere else. A trigger may have changed the columns that `insertOnce` looks for. Or a policy hides the row. The effects of the trigger are undone. Nothing was changed.',
    remedy:
      'Look at the triggers and policies of the table. A trigger that returns null, as `suppress_redundant_updates_trigger` does, or that returns the old row, leaves the row unchanged. If a trigger changes the key (to lower case, for example), pass the key as it will be stored. If this behavior is intended, treat this error as the answer.',
  }

  constructor(
    /** The row to write, in readable form: `row 7 of table "orders"`. */
    readonly subject: string,
    readonly table: string,
    /** The given id. For a row to insert, the columns that identify it. */
    readonly id: unknown,
    options?: DibsErrorOptions,
  ) {
    super(
      `The database did not write ${subject}. It may be that a trigger answered null or another row than the new one, or wrote somewhere else, that it changed the key of a row to insert, or that a policy hides the row. Nothing was changed.`,
      options,
    )
  }
}

/** A column of a row, and its current value. */
export interface StateConflictDetails extends DibsErrorOptions {
  readonly subject: string
  readonly table: string
  readonly id: unknown
  readonly column: string
  readonly expected: readonly string[]
  readonly current: string | null
}

/**
 * The current state of a row does not allow the requested change.
 *
 * @example
 * if (error instanceof StateConflictError && error.current === 'paid') return 'it is paid already'
 */
export class StateConflictError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_STATE_CONFLICT',
    status: 409,
    retryable: false,
    means:
      'The current state of a row does not allow the requested change. Another writer may have been first. Nothing was changed.',
    remedy:
      'Decide by `current`. If it is the state that you want, nothing is wrong. Otherwise the same call will be refused again.',
  }

  declare readonly subject: string
  declare readonly table: string
  declare readonly id: unknown
  /** The column that holds the state. */
  declare readonly column: string
  /** The states from which the change is allowed. */
  declare readonly expected: readonly string[]
  /** The current state. */
  declare readonly current: string | null

  constructor({ subject, table, id, column, expected, current, cause }: StateConflictDetails) {
    const wanted = expected.map((state) => JSON.stringify(state)).join(' or ')
    super(
      `Column "${column}" of ${subject} is ${JSON.stringify(current)}, and would have to be ${wanted}. Nothing was changed.`,
      { cause },
    )
    setKnown<StateConflictError>(this, { subject, table, id, column, expected, current })
  }
}

/** Amounts are strings, as exact as they are stored. */
export interface InsufficientDetails extends DibsErrorOptions {
  readonly subject: string
  readonly table: string
  readonly id: unknown
  readonly column: string
  readonly current: string | null
  readonly delta: string
  readonly min: string | null
  readonly max: string | null
  /** The reason, if it is neither `min` nor `max`. */
  readonly reason?: string | undefined
}

/**
 * A change would move an amount below its minimum or above its maximum.
 *
 * @example
 * if (error instanceof InsufficientError) return `only ${error.current} left`
 */
export class InsufficientError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_INSUFFICIENT',
    status: 409,
    retryable: false,
    means:
      'The change would move an amount below its minimum or above its maximum, or the amount is null. Nothing was changed.',
    remedy:
      'Ask for less. `current` is the current amount. It may change, and then the same call can succeed.',
  }

  declare readonly subject: string
  declare readonly table: string
  declare readonly id: unknown
  declare readonly column: string
  /** The exact current amount, as a string. */
  declare readonly current: string | null
  declare readonly delta: string
  declare readonly min: string | null
  declare readonly max: string | null

  constructor({ subject, table, id, column, current, delta, min, max, reason, cause }: InsufficientDetails) {
    const bounds = [min === null ? '' : `at least ${min}`, max === null ? '' : `at most ${max}`].filter(
      Boolean,
    )
    const must = bounds.length > 0 ? ` It must be ${bounds.join(' and ')}.` : ''
    const rule = reason === undefined ? must : ` ${reason}`
    super(
      `Column "${column}" of ${subject} is ${current ?? 'null'} and cannot change by ${delta}.${rule} Nothing was changed.`,
      { cause },
    )
    setKnown<InsufficientError>(this, { subject, table, id, column, current, delta, min, max })
  }
}
