import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * There is no such row.
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
      'There is no row with this id, or this transaction cannot see it; or no such job, or it is not kept any more. Nothing was changed.',
    remedy:
      'Check the id. Another may have deleted the row; one that was made by an open transaction is not there yet.',
  }

  constructor(
    /** What was looked for, as a reader would name it: `row 7 of table "orders"`. */
    readonly subject: string,
    readonly table: string,
    /** As it was given; of several that are missing, an array. */
    readonly id: unknown,
    /** `isRead`: nothing was to be changed. */
    options?: DibsErrorOptions & { readonly isRead?: boolean },
  ) {
    super(`There is no ${subject}.${options?.isRead ? '' : ' Nothing was changed.'}`, options)
  }
}

/**
 * The row is as it must be, nobody is in the way, and the database does not write it; or a row to insert is kept out by one that is not found.
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
      'A row could have been written, and the database did not. Causes that are known: a trigger answered null or another row than the new one, or wrote somewhere else; a trigger changed the columns that `insertOnce` looks for; a policy hides the row. What the trigger did is undone. Nothing was changed.',
    remedy:
      'Look at the triggers and policies of the table: one that answers null, as `suppress_redundant_updates_trigger` does, or the old row keeps the row as it is; for one that changes the key (to lower case, for instance), give the key as it will be. Where that is meant, treat this error as the answer.',
  }

  constructor(
    /** What was to be written, as a reader would name it: `row 7 of table "orders"`. */
    readonly subject: string,
    readonly table: string,
    /** As it was given; of a row to insert, the columns that tell whether it is there. */
    readonly id: unknown,
    options?: DibsErrorOptions,
  ) {
    super(
      `The database did not write ${subject}. It may be that a trigger answered null or another row than the new one, or wrote somewhere else, that it changed the key of a row to insert, or that a policy hides the row. Nothing was changed.`,
      options,
    )
  }
}

/** A column of a row, and what was found there. */
export interface StateConflictDetails extends DibsErrorOptions {
  readonly subject: string
  readonly table: string
  readonly id: unknown
  readonly column: string
  readonly expected: readonly string[]
  readonly current: string | null
}

/**
 * A row is not in a state from which it may go on as asked.
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
      'A row is not in a state from which it may change as asked: perhaps another was first. Nothing was changed.',
    remedy:
      'Decide by `current`: where it is what you want, all is well; else the same call is refused again.',
  }

  readonly subject: string
  readonly table: string
  readonly id: unknown
  /** The column that holds the state. */
  readonly column: string
  /** From which it could have changed. */
  readonly expected: readonly string[]
  /** What it is. */
  readonly current: string | null

  constructor({ subject, table, id, column, expected, current, cause }: StateConflictDetails) {
    const wanted = expected.map((state) => JSON.stringify(state)).join(' or ')
    super(
      `Column "${column}" of ${subject} is ${JSON.stringify(current)}, and would have to be ${wanted}. Nothing was changed.`,
      { cause },
    )
    this.subject = subject
    this.table = table
    this.id = id
    this.column = column
    this.expected = expected
    this.current = current
  }
}

/** Amounts are texts, as exact as they are stored. */
export interface InsufficientDetails extends DibsErrorOptions {
  readonly subject: string
  readonly table: string
  readonly id: unknown
  readonly column: string
  readonly current: string | null
  readonly delta: string
  readonly min: string | null
  readonly max: string | null
  /** Why, where it is neither `min` nor `max`. */
  readonly reason?: string | undefined
}

/**
 * A change of an amount would have led below the least or above the most that is allowed.
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
      'An amount would have become less than is allowed, or more, or it is null and cannot be added to. Nothing was changed.',
    remedy: 'Ask for less: `current` is what is there. It may change, and then the same call can succeed.',
  }

  readonly subject: string
  readonly table: string
  readonly id: unknown
  readonly column: string
  /** What is there, exactly, as text. */
  readonly current: string | null
  readonly delta: string
  readonly min: string | null
  readonly max: string | null

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
    this.subject = subject
    this.table = table
    this.id = id
    this.column = column
    this.current = current
    this.delta = delta
    this.min = min
    this.max = max
  }
}
