import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'
import { setKnown } from './set-known.js'

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
      'The server cannot be reached, or the connection ended before COMMIT was sent. Nothing of the transaction was kept.',
    remedy: 'Try again with backoff. Check that the server runs and that the address is right.',
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
      'PostgreSQL refused a row, because a unique, foreign key, check, not-null or exclusion constraint forbids it.',
    remedy:
      'Decide by `constraint` and `kind` what this means for your application. The same input will be refused again.',
  }

  declare readonly sqlState: string
  declare readonly kind: ConstraintKind
  declare readonly constraint?: string | undefined
  declare readonly table?: string | undefined
  declare readonly column?: string | undefined

  constructor({ sqlState, kind, constraint, table, column, reason, cause }: ConstraintDetails) {
    const named = constraint ? ` "${constraint}"` : column ? ` of column "${column}"` : ''
    super(
      `The ${kind} constraint${named}${table ? ` on table "${table}"` : ''} forbids this row.${reason ? ` (${reason})` : ''}`,
      { cause },
    )
    setKnown<ConstraintViolationError>(this, { sqlState, kind, constraint, table, column })
  }
}

/**
 * A statement was canceled.
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
      'A statement was canceled by `statement_timeout`, by `lock_timeout`, by the deadline of `dibs.transaction`, or by hand. Its effects are rolled back.',
    remedy:
      'Find out what the statement waited for (`pg_blocking_pids`). Raise `deadlineMs` or the timeout if the work takes that long.',
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
 * PostgreSQL refused a statement for a reason that has no error class in Dibs.
 *
 * @example
 * if (error instanceof DatabaseError && error.sqlState === '42P01') console.error('a table is missing')
 */
export class DatabaseError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_DATABASE',
    status: 500,
    retryable: false,
    means: 'PostgreSQL refused a statement for a reason that has no error class of its own in Dibs.',
    remedy:
      'Read `sqlState` and `cause`. The code is in the appendix "Error Codes" of the PostgreSQL manual.',
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
 * The schema in the database does not fit this release of Dibs.
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
      'The schema in the database does not fit this release: it is too old, is too new, has a gap, or has a migration that was changed later.',
    remedy: 'Do what the message says: migrate, upgrade Dibs, or restore the file.',
  }

  constructor(
    message: string,
    readonly schema: string,
    /** The newest migration recorded in the database, 0 for none. */
    readonly found: number,
    /** The newest migration of this release. */
    readonly expected: number,
    options?: DibsErrorOptions,
  ) {
    super(message, options)
  }
}

/**
 * Dibs cannot use the database as it is.
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
      'Dibs cannot use the database as it is: the server is too old, is a read-only standby or refuses the user, or a migration cannot be applied.',
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
    means: 'The embedded PostgreSQL cannot be started. `reason` says why in one word.',
    remedy: 'Do what the message says, or pass the URL of a running PostgreSQL.',
  }

  constructor(
    message: string,
    readonly reason: EmbeddedServerFailure,
    /** The folder of the data. */
    readonly folder: string,
    options?: DibsErrorOptions,
  ) {
    super(message, options)
  }
}
