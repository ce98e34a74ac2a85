/**
 * Every error that Dibs raises, in one place: class, stable `code`, whether running again can help, the HTTP
 * status a server would answer with, and the ids a reader needs. `docs/errors.md` is generated from this file.
 *
 * @module
 */

import { AcquireRefusedError, LockHeldError, SingletonConflictError } from './errors/acquire-errors.js'
import { ClosedError, InvalidInputError } from './errors/caller-errors.js'
import { BusyError, ConflictError, FenceLostError } from './errors/claim-errors.js'
import {
  ConnectionLostError,
  ConstraintViolationError,
  DatabaseError,
  EmbeddedServerError,
  SchemaVersionError,
  SetupError,
  StatementTimeoutError,
} from './errors/database-errors.js'
import { BusinessRuleError, PermanentError, SnoozeError, TransientError } from './errors/handler-errors.js'
import {
  JobCanceledError,
  JobExpiredError,
  JobTimeoutError,
  WorkerStoppedError,
} from './errors/job-errors.js'
import { NeverFitsError, RateLimitedError } from './errors/limit-errors.js'
import { GuardedError } from './errors/lock-errors.js'
import {
  AmbiguousOutcomeError,
  FingerprintMismatchError,
  InProgressError,
  InvalidOutcomeError,
  OutcomeNotStoredError,
  StoredValueError,
} from './errors/once-errors.js'
import { PreconditionFailedError, PreconditionRequiredError } from './errors/precondition-errors.js'
import {
  CrashFoundError,
  ExplorationError,
  RaceFoundError,
  ScheduleDivergedError,
} from './errors/proof-errors.js'
import { HoldEndedError, QuotaExceededError } from './errors/quota-errors.js'
import {
  InsufficientError,
  NotFoundError,
  NotWrittenError,
  StateConflictError,
} from './errors/table-errors.js'
import {
  CommitOutcomeUnknownError,
  NestedRetryError,
  NestedTransactionError,
  NotAwaitedError,
  NotInTransactionError,
  RolledBackError,
  TransactionEndedError,
} from './errors/transaction-errors.js'

export * from './errors/acquire-errors.js'
export * from './errors/caller-errors.js'
export * from './errors/claim-errors.js'
export * from './errors/database-errors.js'
export * from './errors/dibs-error.js'
export * from './errors/handler-errors.js'
export * from './errors/job-errors.js'
export * from './errors/limit-errors.js'
export * from './errors/lock-errors.js'
export * from './errors/once-errors.js'
export * from './errors/precondition-errors.js'
export * from './errors/proof-errors.js'
export * from './errors/quota-errors.js'
export * from './errors/table-errors.js'
export * from './errors/transaction-errors.js'

/**
 * Every class, in the order in which `docs/errors.md` lists them.
 *
 * @example
 * const retryable = errorRegistry.filter(({ entry }) => entry.retryable).map(({ entry }) => entry.code)
 */
export const errorRegistry = [
  FenceLostError,
  BusyError,
  ConflictError,
  PreconditionFailedError,
  PreconditionRequiredError,
  NotFoundError,
  NotWrittenError,
  StateConflictError,
  InsufficientError,
  RateLimitedError,
  NeverFitsError,
  InProgressError,
  FingerprintMismatchError,
  AmbiguousOutcomeError,
  OutcomeNotStoredError,
  InvalidOutcomeError,
  StoredValueError,
  SingletonConflictError,
  QuotaExceededError,
  HoldEndedError,
  LockHeldError,
  GuardedError,
  AcquireRefusedError,
  NotInTransactionError,
  NestedTransactionError,
  NestedRetryError,
  NotAwaitedError,
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
  JobTimeoutError,
  JobCanceledError,
  JobExpiredError,
  WorkerStoppedError,
  RaceFoundError,
  CrashFoundError,
  ScheduleDivergedError,
  ExplorationError,
] as const
