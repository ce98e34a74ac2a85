export type {
  Acquire,
  AcquireAnswer,
  AcquireAttempt,
  JoinedAcquire,
  LeasedAcquire,
  TryAcquire,
} from './claims/acquire.js'
export {
  type AcquireClaim,
  claim,
  type Grants,
  type LockClaim,
  type LockGrant,
  type OnceClaim,
  type OnceClaimSpec,
  type OnceGrant,
  type QuotaClaim,
  type QuotaGrant,
  type RateClaim,
  type RateGrant,
  type SingletonClaim,
  type SingletonClaimSpec,
  type SingletonFields,
  type Slot,
} from './claims/acquire-claims.js'
export type { AcquireLease } from './claims/acquire-leased.js'
export type { Claim, StepContext } from './claims/claim.js'
export type { ClaimAddress, ClaimDecision, ClaimFilter, ClaimRecord, Claims } from './claims/claims.js'
export type { Hold, ReserveAttempt } from './claims/hold.js'
export type { Kv } from './claims/kv.js'
export type { FieldPath } from './claims/kv-input.js'
export type {
  KvClaim,
  KvDeleteOptions,
  KvDeletion,
  KvEntry,
  KvFields,
  KvFilter,
  KvListedEntry,
  KvListOptions,
  KvPatchOptions,
  KvReadOptions,
  KvSwap,
  KvWriteOptions,
} from './claims/kv-types.js'
export type {
  AmbiguousVerdict,
  JoinedSpec,
  LeasedSpec,
  Once,
  OnceAttempt,
  OnceDetailed,
  OnceResult,
  OnceSpec,
  TryOnce,
} from './claims/once-spec.js'
export type { Operation, OperationOptions, RunOptions } from './claims/operation.js'
export type { CalendarUnit, CronSlots, PeriodOptions, RequiredPeriod } from './claims/period.js'
export type { Quota } from './claims/quota.js'
export type {
  IfLate,
  QuotaOptions,
  ReserveOptions,
  SubjectOptions,
  TakeOptions,
} from './claims/quota-spec.js'
export type {
  QuotaAttempt,
  QuotaDrift,
  QuotaFilter,
  QuotaRefund,
  QuotaRefusal,
  QuotaTake,
  QuotaUse,
} from './claims/quota-told.js'
export type { RateAttempt, RateLeft, RateLimit, RateRefusal, RateTakeOptions } from './claims/rate-limit.js'
export type { IfDown, RateAlgorithm, RateLimitOptions } from './claims/rate-spec.js'
export type {
  JoinedSingleton,
  LeasedSingleton,
  Singleton,
  SingletonAttempt,
  SingletonRefusal,
  SingletonWait,
  SlotVoided,
  TrySingleton,
  UndoSlot,
  VoidSlot,
  VoidSlotSpec,
} from './claims/singleton.js'
export type { ClaimStatus } from './claims/told-claim.js'
export { Dibs } from './dibs.js'
export { type ProblemBody, type ProblemResponse, toProblem } from './errors/to-problem.js'
export * from './errors.js'
export type { Canceled, CancelOptions } from './jobs/cancel-job.js'
export type { DeadChoice, DeadFilter } from './jobs/dead-jobs.js'
export type { Handled, JobHandler, JobHandlers } from './jobs/handlers.js'
export type { JobContext, JobLog, TransactionalContext } from './jobs/job-context.js'
export type { AttemptRecord, JobRecord, JobState } from './jobs/job-record.js'
export type { JobRef, JobRefOf, JobTarget } from './jobs/job-ref.js'
export type { ResultOptions } from './jobs/job-results.js'
export {
  type AddOptions,
  type JobDefinition,
  type JobDefinitions,
  type JobGiven,
  type JobInput,
  type JobOptions,
  type JobOutcome,
  type JobPayload,
  type JobResult,
  job,
  type TransactionalOptions,
  type TypedJob,
} from './jobs/job-spec.js'
export type { AddJobOptions, AddManyOptions, Jobs, JobToAdd } from './jobs/jobs.js'
export type {
  BoundedCount,
  PauseOptions,
  QueueFilter,
  QueueLane,
  QueueRecord,
  Queues,
} from './jobs/queues.js'
export type { CustomRetry, Retry, RetryOptions as JobRetryOptions } from './jobs/retry-policy.js'
export type { StopOptions, Worker, WorkerStats, WorkOptions } from './jobs/work-options.js'
export type { WorkerFilter, WorkerRecord, Workers } from './jobs/workers.js'
export type { Election, ElectOptions, Term } from './locks/election.js'
export type { FencedWrite } from './locks/fenced-write.js'
export type { IfBusy, LoadContext, SingleFlight, SingleFlightOptions } from './locks/flight-spec.js'
export type { GuardOptions, Lock, LockOptions, TookOver, TryLockOptions } from './locks/lock.js'
export type { WithLock } from './locks/lock-desk.js'
export type { ForceReleaseOptions, LockFilter, LockInfo, Locks } from './locks/locks.js'
export type { Health } from './ops/health.js'
export type { MaintainOptions, MaintenanceReport } from './ops/maintenance.js'
export type { MaintenanceLoop } from './ops/maintenance-loop.js'
export * from './postgres/adapters/index.js'
export type { EmbeddedOptions, ServerSettings } from './postgres/embedded/embedded-options.js'
export type {
  DibsEventName,
  DibsEvents,
  EventOrigin,
  FlightOrigin,
  KeyOrigin,
  LockOrigin,
  MonitorOrigin,
  RateOrigin,
} from './postgres/events.js'
export type { Executor, QueryResult, Row, Tx } from './postgres/executor.js'
export type { Json, NotStorable, Storable, Stored } from './postgres/json.js'
export { keyOf } from './postgres/key.js'
export type { Logger } from './postgres/logger.js'
export { onEvent } from './postgres/on-event.js'
export type { OpenOptions } from './postgres/open-options.js'
export type { Page, PageOptions } from './postgres/page.js'
export {
  type RetryContext,
  type RetryOnConflictOptions,
  retryOnConflict,
} from './postgres/retry-on-conflict.js'
export type { RowPatch } from './postgres/rows/row-args.js'
export type { RowId } from './postgres/rows/row-id.js'
export type { RowOptions } from './postgres/rows/rows.js'
export type { CountedWriteOptions } from './postgres/rows/version-column.js'
export type { StandardSchema } from './postgres/standard-schema.js'
export type { TransactionOptions } from './postgres/transaction.js'
export type { Isolation, Transaction } from './postgres/transaction-types.js'
export type { Adjust, AdjustOptions, AmountChange, ExactAmount } from './tables/adjust.js'
export type { Aggregate, DerivedOptions, RecomputeOptions } from './tables/aggregate.js'
export type { AggregateOptions } from './tables/aggregate-spec.js'
export type { ClaimOrder, ClaimOrderBy } from './tables/claim-order.js'
export type { ClaimRows, ClaimRowsOptions } from './tables/claim-rows.js'
export type { ClaimWhere, ClaimWhereEqual, ClaimWhereSql } from './tables/claim-where.js'
export type { CountedTransitionOptions } from './tables/counted-transition.js'
export type { Inserted, InsertOnce } from './tables/insert-once.js'
export type { LastWriteWins } from './tables/last-write-wins.js'
export type { Monitor, MonitorReport, MonitorRunOptions } from './tables/monitor.js'
export type { MonitorIndexes } from './tables/monitor-indexes.js'
export type { MonitorAction, MonitorOptions, MonitorVerdict } from './tables/monitor-options.js'
export type { AggregateRefresh } from './tables/refresh-marked.js'
export type { LockRows, RowLockMode, RowLockOptions } from './tables/row-lock.js'
export type { TableRows } from './tables/table-rows.js'
export type { State, StateChange, Transition } from './tables/transition.js'
export type { AggregateReport, Drift, VerifyOptions } from './tables/verify-aggregate.js'
export type { UpdateRow, UpdateRowOptions, VersionedId } from './tables/versions.js'
