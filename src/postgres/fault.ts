import {
  BusyError,
  CommitOutcomeUnknownError,
  ConflictError,
  ConnectionLostError,
  type ConstraintKind,
  ConstraintViolationError,
  DatabaseError,
  DibsError,
  StatementTimeoutError,
} from '../errors.js'

/**
 * The kinds of database errors:
 *
 * - `conflict`: PostgreSQL refused the order of two transactions; run the whole transaction again
 * - `constraint`: a row was refused
 * - `connection`: the server or the connection is gone
 * - `timeout`: a statement was cancelled
 * - `unknown outcome`: the server itself says that it does not know whether the work was kept
 * - `retryable`: short of some resource
 * - `other`: anything else that carries an SQLSTATE
 */
export type FaultKind =
  | 'conflict'
  | 'constraint'
  | 'connection'
  | 'timeout'
  | 'unknown outcome'
  | 'retryable'
  | 'other'

export interface Fault {
  readonly kind: FaultKind
  readonly message: string
  /** The code of the server. Missing if the error did not come from a server. */
  readonly sqlState?: string
  /** True if the connection cannot be used any more. */
  readonly fatal: boolean
  readonly constraint?: string
  readonly table?: string
  readonly column?: string
}

const constraintKinds: Record<string, ConstraintKind> = {
  '23001': 'restrict',
  '23502': 'not null',
  '23503': 'foreign key',
  '23505': 'unique',
  '23514': 'check',
  '23P01': 'exclusion',
}

const exact: Record<string, FaultKind> = {
  '40001': 'conflict',
  '40P01': 'conflict',
  // These two belong to classes 40 and 08, but mean that the work may have been committed.
  '40003': 'unknown outcome',
  '08007': 'unknown outcome',
  // A constraint that was violated at COMMIT.
  '40002': 'constraint',
  '53000': 'retryable',
  '53100': 'retryable',
  '53200': 'retryable',
  '53300': 'retryable',
  '57014': 'timeout',
  '55P03': 'timeout',
  '25P03': 'connection',
  '25P04': 'connection',
  '57P01': 'connection',
  '57P02': 'connection',
  '57P03': 'connection',
  '57P04': 'connection',
  '57P05': 'connection',
}

function kindOf(sqlState: string): FaultKind {
  const known = exact[sqlState]
  if (known) return known
  if (sqlState.startsWith('23')) return 'constraint'
  if (sqlState.startsWith('08')) return 'connection'
  return 'other'
}

const socketCodes = new Set([
  ...[
    'ECONNREFUSED',
    'ECONNRESET',
    'ECONNABORTED',
    'EPIPE',
    'ETIMEDOUT',
    'ENOTFOUND',
    'EAI_AGAIN',
    'EHOSTUNREACH',
  ],
  ...['ENETUNREACH', 'EADDRNOTAVAIL', 'ENETDOWN', 'EHOSTDOWN', 'EPROTO', 'EMFILE', 'ERR_STREAM_DESTROYED'],
  ...['DEPTH_ZERO_SELF_SIGNED_CERT', 'SELF_SIGNED_CERT_IN_CHAIN', 'UNABLE_TO_VERIFY_LEAF_SIGNATURE'],
  ...['CERT_HAS_EXPIRED', 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY'],
  // the code of postgres.js
  ...['CONNECTION_CLOSED', 'CONNECTION_ENDED', 'CONNECTION_DESTROYED', 'CONNECT_TIMEOUT'],
  // Prisma: cannot reach, timed out, closed by the server
  ...['P1001', 'P1002', 'P1008', 'P1017'],
])

/** `pg` gives these no code. */
const pgConnectionMessage =
  /^(Connection terminated|Connection ended|Client has encountered a connection error|Client was closed|timeout expired|timeout exceeded when trying to connect|The server does not support SSL|There was an error establishing an SSL|Cannot use a pool after calling end|Received unexpected .* from backend)/

type Fields = Record<string, unknown>

const isFields = (value: unknown): value is Fields => typeof value === 'object' && value !== null

const text = (value: unknown): string | undefined =>
  typeof value === 'string' && value !== '' ? value : undefined

/** The driver's error inside a library's error: Drizzle has it in `cause`, TypeORM in `driverError`, Prisma in `meta`. */
function inner(error: Fields): unknown {
  const meta = error.meta
  return error.driverError ?? (isFields(meta) ? meta.driverAdapterError : undefined) ?? error.cause
}

function readServerError(error: Fields): Fault | undefined {
  // Only errors of a server have a `severity`. Without that check, EPIPE or Prisma's P2010 would count as an SQLSTATE.
  const sqlState = text(error.originalCode) ?? (error.severity === undefined ? undefined : text(error.code))
  if (!sqlState || !/^[0-9A-Z]{5}$/.test(sqlState)) return undefined
  const message = text(error.originalMessage) ?? text(error.message) ?? 'unknown error'
  const known = kindOf(sqlState)
  // The session goes on after an ERROR: 08006 is then about another server (dblink, a foreign table). Other severities
  // may be translated, so the code compares only this one.
  const kind = known === 'connection' && error.severity === 'ERROR' ? 'other' : known
  return {
    kind,
    sqlState,
    message,
    fatal: kind === 'connection' || error.severity === 'FATAL' || error.severity === 'PANIC',
    constraint: text(error.constraint) ?? text(error.constraint_name) ?? constraintOfPrisma(error, sqlState),
    table: text(error.table) ?? text(error.table_name),
    column: text(error.column) ?? text(error.column_name) ?? columnOfPrisma(error, sqlState),
  }
}

/** Prisma keeps few fields of the server's error. Its message is in English in some locales only. */
function constraintOfPrisma(error: Fields, sqlState: string): string | undefined {
  if (error.originalCode === undefined || !sqlState.startsWith('23') || sqlState === '23502') return undefined
  const kept = isFields(error.constraint) ? text(error.constraint.index) : undefined
  return kept ?? text(error.originalMessage)?.match(/constraint "([^"]+)"/)?.[1]
}

function columnOfPrisma(error: Fields, sqlState: string): string | undefined {
  if (error.originalCode === undefined || sqlState !== '23502') return undefined
  return text(error.originalMessage)?.match(/column "([^"]+)"/)?.[1]
}

function readConnectionError(error: Fields): Fault | undefined {
  const message = text(error.message) ?? ''
  if (
    typeof error.code === 'string' &&
    (socketCodes.has(error.code) || /^ERR_(SSL|TLS)_/.test(error.code) || isMissingSocket(error))
  ) {
    return { kind: 'connection', message: message || error.code, fatal: true }
  }
  if (pgConnectionMessage.test(message)) return { kind: 'connection', message, fatal: true }
  if (isReadTimeout(error)) return { kind: 'timeout', message, fatal: true }
  return undefined
}

const isMissingSocket = (error: Fields): boolean =>
  (error.code === 'ENOENT' || error.code === 'EACCES') && error.syscall === 'connect'

/** An error and the errors inside it, from the outermost. */
function layersOf(error: unknown): Fields[] {
  const layers: Fields[] = []
  for (let current = error; layers.length < 6 && isFields(current); current = inner(current))
    layers.push(current)
  return layers
}

const readLayer = (layer: Fields): Fault | undefined => readServerError(layer) ?? readConnectionError(layer)

/** Reads an error of `pg` or of a library around it. Returns undefined if the error is not about the database. */
export function readFault(error: unknown): Fault | undefined {
  for (const layer of layersOf(error)) {
    const fault = readLayer(layer)
    if (fault) return fault
  }
  return undefined
}

/** Translates an error about the database to an error of Dibs, with the original as its `cause`. Returns other errors as they are. */
export function translateError(error: unknown): unknown {
  if (error instanceof DibsError) return error
  const fault = readFault(error)
  if (!fault) return error
  const { kind, sqlState, message, constraint, table, column } = fault
  const cause = error
  switch (kind) {
    case 'conflict':
      return new ConflictError({ subject: 'the transaction', sqlState, reason: message, cause })
    case 'constraint':
      return new ConstraintViolationError({
        sqlState: sqlState ?? '23000',
        kind: constraintKinds[sqlState ?? ''] ?? 'other',
        constraint,
        table,
        column,
        reason: message,
        cause,
      })
    case 'connection':
      return new ConnectionLostError(`The connection to PostgreSQL is lost: ${message}.`, { cause })
    case 'timeout':
      return new StatementTimeoutError(`A statement was cancelled: ${message}.`, sqlState, { cause })
    case 'unknown outcome':
      return new CommitOutcomeUnknownError('the statement', { cause })
    case 'retryable':
      return new BusyError(`room on the server (${message})`, 0, 1000, { cause })
    default:
      return new DatabaseError(`PostgreSQL answered ${sqlState}: ${message}`, sqlState ?? 'XX000', { cause })
  }
}

/** True if a bounded wait for a lock timed out. */
export const hasWaitedInVain = (error: unknown): boolean =>
  error instanceof StatementTimeoutError && error.sqlState === '55P03'

/** True if the client gave up on an answer that may still come, so that the connection cannot be used any more. */
export const isReadTimeout = (error: unknown): boolean =>
  isFields(error) && error.message === 'Query read timeout'

/** True if the whole transaction, run again, can succeed. */
export function isConflict(error: unknown): boolean {
  for (const layer of layersOf(error)) {
    // An error of Dibs decides by its own class: a conflict may be the cause of a final error.
    if (layer instanceof DibsError) return layer instanceof ConflictError
    const fault = readLayer(layer)
    if (fault) return fault.kind === 'conflict'
  }
  return false
}

/** True if the connection is lost, or may still receive an answer that no caller waits for. */
export function isUnusable(error: unknown): boolean {
  return readFault(error)?.fatal === true
}

/** True if the server has rolled the statement back, so that it may be sent again in another form. */
export const wasRefused = (error: unknown): boolean =>
  error instanceof DatabaseError ||
  error instanceof ConstraintViolationError ||
  error instanceof StatementTimeoutError ||
  error instanceof ConflictError
