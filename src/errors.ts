/**
 * Every error that Dibs raises, in one place: class, stable `code`, whether running again can help, the HTTP
 * status a server would answer with, and the ids a reader needs. `docs/errors.md` is generated from this file.
 *
 * @module
 */

/** One line of the registry; each error class carries its own as the static `entry`. */
export interface ErrorEntry {
  /** Stable across releases: compare this, not the message or the class name. */
  readonly code: `DIBS_${string}`
  /** The HTTP status that says the same to a remote caller. */
  readonly status: number
  /** True when the same call, made again from its start, can succeed. */
  readonly retryable: boolean
  /** What has happened. */
  readonly means: string
  /** What the caller does about it. */
  readonly remedy: string
}

export interface DibsErrorOptions {
  readonly cause?: unknown
}

/**
 * The base of every error here.
 *
 * @example
 * try {
 *   await dibs.transaction(work)
 * } catch (error) {
 *   if (error instanceof DibsError && error.retryable) return tryAgainLater(error.code)
 *   throw error
 * }
 */
export abstract class DibsError extends Error {
  static readonly entry: ErrorEntry = {
    code: 'DIBS_ERROR',
    status: 500,
    retryable: false,
    means: 'An error of a class made outside of Dibs.',
    remedy: 'Extend one of the classes below, or give yours an `entry`.',
  }

  readonly code: ErrorEntry['code']
  readonly retryable: boolean
  readonly status: number

  constructor(message: string, options?: DibsErrorOptions) {
    super(message, options?.cause === undefined ? undefined : { cause: options.cause })
    const { code, retryable, status } = new.target.entry
    // Not enumerable, as on every Error, so that `toJSON` lists it once and first.
    Object.defineProperty(this, 'name', { value: new.target.name, configurable: true, writable: true })
    this.code = code
    this.retryable = retryable
    this.status = status
  }

  /** Name, message, code and ids, without stack or cause: fit for a log line or an HTTP body. */
  toJSON(): Record<string, unknown> {
    const fields: Record<string, unknown> = { name: this.name, message: this.message }
    return Object.assign(fields, this)
  }
}

// ── claims, locks, waiting ──────────────────────────────────────────────────

/**
 * The claim you held is someone else's by now.
 *
 * @example
 * if (error instanceof FenceLostError) return // another holder does this work
 */
export class FenceLostError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_FENCE_LOST',
    status: 409,
    retryable: false,
    means: 'The claim you held was taken over or released; nothing was written under its fence.',
    remedy: 'Stop the work: someone else owns it now. Do not write its result anywhere.',
  }

  constructor(
    /** What was claimed, as a reader would name it: `lock "nightly-report"`. */
    readonly subject: string,
    readonly fence: number,
    options?: DibsErrorOptions,
  ) {
    super(
      `The claim on ${subject} with fence ${fence} is lost: another holder took it over or it was released. Nothing was written. Stop this work.`,
      options,
    )
  }
}

/**
 * A bounded wait ended.
 *
 * @example
 * if (error instanceof BusyError) response.setHeader('Retry-After', Math.ceil(error.retryAfterMs / 1000))
 */
export class BusyError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_BUSY',
    status: 503,
    retryable: true,
    means: 'A bounded wait ended before its turn came, or the server has no room for another connection.',
    remedy: 'Try again after `retryAfterMs`; raise the wait if this is usual.',
  }

  constructor(
    /** What was waited for. */
    readonly subject: string,
    readonly waitedMs: number,
    readonly retryAfterMs: number,
    options?: DibsErrorOptions,
  ) {
    const waited =
      waitedMs > 0
        ? `Waited ${Math.round(waitedMs)} ms for ${subject} and did not get it`
        : `There is no ${subject} now`
    super(`${waited}. Try again in ${retryAfterMs} ms.`, options)
  }
}

export interface ConflictDetails extends DibsErrorOptions {
  /** What two writers met on: a record, or the transaction. */
  readonly subject: string
  readonly expected?: number | undefined
  readonly current?: number | undefined
  readonly sqlState?: string | undefined
  /** How often it was tried before giving up. */
  readonly attempts?: number | undefined
  readonly reason?: string | undefined
}

/**
 * Another writer was first. Thrown inside `dibs.transaction`, it makes that run again.
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
      'Another writer was first: the version has moved on, or PostgreSQL refused the order of two transactions (40001, 40P01).',
    remedy:
      'Run the whole unit again, reading included. `dibs.transaction` does so by itself; when it gives up, back off.',
  }

  readonly subject: string
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
    this.subject = subject
    if (expected !== undefined) this.expected = expected
    if (current !== undefined) this.current = current
    if (sqlState !== undefined) this.sqlState = sqlState
    if (attempts !== undefined) this.attempts = attempts
    if (reason !== undefined) this.reason = reason
  }
}

// ── transactions ────────────────────────────────────────────────────────────

/**
 * What was given as `tx` is not an open transaction.
 *
 * @example
 * if (error instanceof NotInTransactionError) console.error(`tx was ${error.given}`)
 */
export class NotInTransactionError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_NOT_IN_TRANSACTION',
    status: 500,
    retryable: false,
    means:
      'What was given as `tx` is not an open transaction: a pool, a client before BEGIN, or a library handle.',
    remedy:
      'Pass the transaction itself: a pg client after BEGIN, or `fromKysely(trx)`, `fromDrizzle(tx)` and so on. Leave `tx` out to run alone.',
  }

  constructor(
    /** What was given instead. */
    readonly given: string,
    advice = 'Pass an open transaction, or leave `tx` out to run alone.',
    options?: DibsErrorOptions,
  ) {
    super(`\`tx\` must be an open transaction, but it is ${given}. ${advice}`, options)
  }
}

/**
 * `dibs.transaction` inside `dibs.transaction`.
 *
 * @example
 * const save = (tx: Transaction) => tx.query('insert into log default values') // takes the tx of its caller
 * await dibs.transaction(async (tx) => void (await save(tx)))
 */
export class NestedTransactionError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_NESTED_TRANSACTION',
    status: 500,
    retryable: false,
    means:
      '`dibs.transaction` was called inside `dibs.transaction`. The inner one would run on a second connection, outside the first, and could wait for it for ever.',
    remedy: 'Pass the outer `tx` down and use it; for a part that may fail alone use `tx.savepoint`.',
  }

  constructor(options?: DibsErrorOptions) {
    super(
      'dibs.transaction was called inside another dibs.transaction of the same instance. Pass the outer `tx` down instead, or use tx.savepoint for a part that may fail alone.',
      options,
    )
  }
}

/**
 * COMMIT was answered with ROLLBACK.
 *
 * @example
 * if (error instanceof RolledBackError) console.error('an error was dropped inside:', error.cause)
 */
export class RolledBackError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_ROLLED_BACK',
    status: 500,
    retryable: false,
    means:
      'COMMIT was answered with ROLLBACK: a statement had failed before and its error was caught and dropped.',
    remedy: 'Let the error out of the function, or run the statement that may fail inside `tx.savepoint`.',
  }

  constructor(
    /** What was undone. */
    readonly part: 'transaction' | 'savepoint',
    options?: DibsErrorOptions,
  ) {
    super(
      `The ${part} was rolled back at its end, because one of its statements had failed and the error was caught. Nothing of it was kept. Let the error out, or run that statement inside a tx.savepoint of its own.`,
      options,
    )
  }
}

/**
 * The transaction ended before its function did.
 *
 * @example
 * if (error instanceof TransactionEndedError) console.error('something inside has sent COMMIT or ROLLBACK')
 */
export class TransactionEndedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_TRANSACTION_ENDED',
    status: 500,
    retryable: false,
    means:
      'Something inside the function given to `dibs.transaction` has sent COMMIT or ROLLBACK, with `tx.client` in hand or in a string of statements. What came before may be kept, and what came after ran outside of the transaction.',
    remedy:
      'Return to commit, throw to roll back, and let nobody who is given `tx.client` end the transaction.',
  }

  constructor(options?: DibsErrorOptions) {
    super(
      'The transaction ended before its function did: something inside has sent COMMIT or ROLLBACK. A part of the work may be kept. Return to commit, throw to roll back.',
      options,
    )
  }
}

/**
 * The answer to COMMIT was lost: the work is all there or not at all.
 *
 * @example
 * if (error instanceof CommitOutcomeUnknownError && (await isDone(id))) return
 */
export class CommitOutcomeUnknownError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_COMMIT_OUTCOME_UNKNOWN',
    status: 500,
    retryable: false,
    means:
      'The connection was lost after COMMIT (or a statement that commits by itself) was sent and before its answer: the work is either all there or not at all.',
    remedy:
      'Look whether it is there before doing it again, or make it idempotent with a key. It is never retried for you.',
  }

  constructor(
    /** The statement whose answer was lost. */
    readonly statement: string,
    options?: DibsErrorOptions,
  ) {
    super(
      `The connection was lost after ${statement} was sent and before its answer came, so it is unknown whether it took effect. Look before you do it again.`,
      options,
    )
  }
}

// ── the database ────────────────────────────────────────────────────────────

/**
 * The server cannot be reached, or the connection ended before COMMIT was sent.
 *
 * @example
 * if (error instanceof ConnectionLostError) return tryAgainLater(error.code)
 */
export class ConnectionLostError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_CONNECTION_LOST',
    status: 503,
    retryable: true,
    means:
      'The server cannot be reached, or the connection ended before COMMIT was sent: nothing of it was kept.',
    remedy: 'Try again with backoff; check that the server runs and that the address is right.',
  }

  constructor(message: string, options?: DibsErrorOptions) {
    super(message, options)
  }
}

export type ConstraintKind =
  | 'unique'
  | 'foreign key'
  | 'check'
  | 'not null'
  | 'exclusion'
  | 'restrict'
  | 'other'

export interface ConstraintDetails extends DibsErrorOptions {
  readonly sqlState: string
  readonly kind: ConstraintKind
  readonly constraint?: string | undefined
  readonly table?: string | undefined
  readonly column?: string | undefined
  readonly reason?: string | undefined
}

/**
 * PostgreSQL refused a row.
 *
 * @example
 * if (error instanceof ConstraintViolationError && error.constraint === 'user_email_key') return 'this address is taken'
 */
export class ConstraintViolationError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_CONSTRAINT_VIOLATION',
    status: 409,
    retryable: false,
    means:
      'PostgreSQL refused a row: a unique, foreign key, check, not-null or exclusion constraint forbids it.',
    remedy:
      'Decide by `constraint` and `kind` what it means in your terms; the same input will be refused again.',
  }

  readonly sqlState: string
  readonly kind: ConstraintKind
  declare readonly constraint?: string | undefined
  declare readonly table?: string | undefined
  declare readonly column?: string | undefined

  constructor({ sqlState, kind, constraint, table, column, reason, cause }: ConstraintDetails) {
    const named = constraint ? ` "${constraint}"` : column ? ` of column "${column}"` : ''
    super(
      `The ${kind} constraint${named}${table ? ` on table "${table}"` : ''} forbids this row.${reason ? ` (${reason})` : ''}`,
      { cause },
    )
    this.sqlState = sqlState
    this.kind = kind
    if (constraint !== undefined) this.constraint = constraint
    if (table !== undefined) this.table = table
    if (column !== undefined) this.column = column
  }
}

/**
 * A statement was cancelled.
 *
 * @example
 * if (error instanceof StatementTimeoutError) return tryAgainLater(error.code)
 */
export class StatementTimeoutError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_STATEMENT_TIMEOUT',
    status: 504,
    retryable: true,
    means:
      'A statement was cancelled: `statement_timeout`, `lock_timeout`, the deadline of `dibs.transaction`, or by hand. What it did is rolled back.',
    remedy:
      'See what it waited for (`pg_blocking_pids`); raise `deadlineMs` or the timeout if the work is that long.',
  }

  constructor(
    message: string,
    readonly sqlState?: string,
    options?: DibsErrorOptions,
  ) {
    super(message, options)
  }
}

/**
 * PostgreSQL refused a statement for another reason.
 *
 * @example
 * if (error instanceof DatabaseError && error.sqlState === '42P01') console.error('a table is missing')
 */
export class DatabaseError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_DATABASE',
    status: 500,
    retryable: false,
    means: 'PostgreSQL refused a statement for a reason that has no class of its own here.',
    remedy:
      'Read `sqlState` and `cause`: the code is in the appendix "Error Codes" of the PostgreSQL manual.',
  }

  constructor(
    message: string,
    readonly sqlState: string,
    options?: DibsErrorOptions,
  ) {
    super(message, options)
  }
}

/**
 * The schema and this release do not fit.
 *
 * @example
 * if (error instanceof SchemaVersionError) console.error(`at ${error.found}, needs ${error.expected}`)
 */
export class SchemaVersionError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_SCHEMA_VERSION',
    status: 500,
    retryable: false,
    means:
      'The schema in the database and this release do not fit: too old, too new, with a gap, or a migration that was changed after it was applied.',
    remedy: 'Do what the message says: migrate, upgrade Dibs, or restore the file.',
  }

  constructor(
    message: string,
    readonly schema: string,
    /** The newest migration recorded in the database, 0 for none. */
    readonly found: number,
    /** The newest migration this release brings. */
    readonly expected: number,
    options?: DibsErrorOptions,
  ) {
    super(message, options)
  }
}

/**
 * The database cannot be used as it is.
 *
 * @example
 * if (error instanceof SetupError) process.exit(1) // the message says what to grant or change
 */
export class SetupError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_SETUP',
    status: 500,
    retryable: false,
    means:
      'The database cannot be used as it is: the server is too old, is a read-only standby, refuses the user, or a migration cannot be applied.',
    remedy: 'Do what the message says.',
  }

  constructor(message: string, options?: DibsErrorOptions) {
    super(message, options)
  }
}

/** Why an embedded PostgreSQL does not run. */
export type EmbeddedServerFailure =
  | 'already-running'
  | 'bad-setting'
  | 'disk-full'
  | 'locale-missing'
  | 'no-binaries'
  | 'no-permission'
  | 'other-version'
  | 'port-taken'
  | 'shared-memory'
  | 'unknown'

/**
 * The embedded PostgreSQL cannot be started.
 *
 * @example
 * if (error instanceof EmbeddedServerError && error.reason === 'port-taken') return Dibs.open({ embedded: {} })
 */
export class EmbeddedServerError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_EMBEDDED_SERVER',
    status: 500,
    retryable: false,
    means: 'The embedded PostgreSQL cannot be started; `reason` tells why in one word.',
    remedy: 'Do what the message says, or give the URL of a PostgreSQL that runs.',
  }

  constructor(
    message: string,
    readonly reason: EmbeddedServerFailure,
    /** The folder that was asked for. */
    readonly folder: string,
    options?: DibsErrorOptions,
  ) {
    super(message, options)
  }
}

// ── the caller ──────────────────────────────────────────────────────────────

/**
 * An argument is not acceptable; nothing was sent.
 *
 * @example
 * if (error instanceof InvalidInputError) return `please correct ${error.field}`
 */
export class InvalidInputError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_INVALID_INPUT',
    status: 400,
    retryable: false,
    means: 'An argument is not acceptable. Nothing was sent to the database.',
    remedy: 'Correct the argument named in `field`.',
  }

  constructor(
    /** The argument, as a path: `attempts`, `schema`. */
    readonly field: string,
    /** What is wrong, in a form that follows "`field` ": `must be positive, not -1`. */
    problem: string,
    options?: DibsErrorOptions,
  ) {
    super(`\`${field}\` ${problem}.`, options)
  }
}

/**
 * This instance was closed.
 *
 * @example
 * if (error instanceof ClosedError) return // we are shutting down
 */
export class ClosedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_CLOSED',
    status: 503,
    retryable: false,
    means: 'This Dibs instance was closed.',
    remedy: 'Stop what still uses it before calling `close()`, or open a new one.',
  }

  constructor(options?: DibsErrorOptions) {
    super(
      'This Dibs instance is closed. Stop what still uses it before calling close(), or open a new one.',
      options,
    )
  }
}

// ── thrown by handlers, to say what should happen next ──────────────────────

/**
 * Thrown by a handler: failed now, may work later.
 *
 * @example
 * if (response.statusCode === 503) throw new TransientError('the bank is down', { cause: error })
 */
export class TransientError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_TRANSIENT',
    status: 503,
    retryable: true,
    means: 'A handler says: this failed now and may work later.',
    remedy: 'Thrown by your handler to be run again under its retry policy.',
  }

  constructor(message: string, options?: DibsErrorOptions) {
    super(message, options)
  }
}

/**
 * Thrown by a handler: will never work.
 *
 * @example
 * if (response.statusCode === 404) throw new PermanentError(`there is no account ${id}`)
 */
export class PermanentError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_PERMANENT',
    status: 500,
    retryable: false,
    means: 'A handler says: this will never work, do not try again.',
    remedy: 'Thrown by your handler; the work is set aside for a person to look at.',
  }

  constructor(message: string, options?: DibsErrorOptions) {
    super(message, options)
  }
}

/**
 * Thrown by a handler: understood, and refused by a rule of the business.
 *
 * @example
 * if (left < 1) throw new BusinessRuleError('sold out', 'sold-out')
 */
export class BusinessRuleError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_BUSINESS_RULE',
    status: 422,
    retryable: false,
    means: 'A handler says: the request is understood and refused by a rule of the business.',
    remedy: 'Thrown by your handler; it is an answer to the caller and no fault, so nothing is retried.',
  }

  constructor(
    message: string,
    /** Your own stable name of the rule: `sold-out`. */
    readonly rule?: string,
    options?: DibsErrorOptions,
  ) {
    super(message, options)
  }
}

/**
 * Thrown by a handler: not yet, run me again later.
 *
 * @example
 * if (!row.ready) throw new SnoozeError(30_000, 'the file is still being written')
 */
export class SnoozeError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_SNOOZE',
    status: 503,
    retryable: true,
    means: 'A handler says: not yet, run me again after `delayMs`. It is not counted as a failed attempt.',
    remedy: 'Thrown by your handler when what it needs is not there yet.',
  }

  constructor(
    readonly delayMs: number,
    reason = 'not yet',
    options?: DibsErrorOptions,
  ) {
    if (!Number.isFinite(delayMs) || delayMs < 0) {
      throw new InvalidInputError(
        'delayMs',
        `must be a duration in milliseconds of 0 or more, not ${delayMs}`,
      )
    }
    super(`Snoozed for ${delayMs} ms: ${reason}.`, options)
  }
}

/**
 * Every class above, in the order in which `docs/errors.md` lists them.
 *
 * @example
 * const retryable = errorRegistry.filter(({ entry }) => entry.retryable).map(({ entry }) => entry.code)
 */
export const errorRegistry = [
  FenceLostError,
  BusyError,
  ConflictError,
  NotInTransactionError,
  NestedTransactionError,
  RolledBackError,
  TransactionEndedError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  ConstraintViolationError,
  StatementTimeoutError,
  DatabaseError,
  SchemaVersionError,
  SetupError,
  EmbeddedServerError,
  InvalidInputError,
  ClosedError,
  TransientError,
  PermanentError,
  BusinessRuleError,
  SnoozeError,
] as const
