export type {
  Acquire,
  AcquireAnswer,
  AcquireAttempt,
  JoinedAcquire,
  LeasedAcquire,
  TryAcquire,
} from './claims/acquire/acquire.js'
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
} from './claims/acquire/acquire-claims.js'
export type { AcquireLease } from './claims/acquire/leased-acquire-call.js'
export type { Claim, StepContext } from './claims/claim.js'
export type { ClaimRecord } from './claims/claim-record.js'
export type { ClaimStatus } from './claims/claim-result.js'
export type {
  ClaimAddress,
  ClaimDecision,
  ClaimFilter,
  Claims,
  ForgetClaimOptions,
  ResolveClaimOptions,
} from './claims/claims.js'
export type { Kv } from './claims/kv/kv.js'
export type {
  FieldPath,
  KvDeleteOptions,
  KvFilter,
  KvListOptions,
  KvPatchOptions,
  KvReadOptions,
  KvWriteOptions,
} from './claims/kv/kv-options.js'
export type { KvClaim, KvDeletion, KvEntry, KvFields, KvListedEntry, KvSwap } from './claims/kv/kv-types.js'
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
} from './claims/once/once-spec.js'
export type { Operation, OperationOptions, RunOptions } from './claims/once/operation.js'
export type { CalendarUnit, CronSlots, PeriodOptions, RequiredPeriod } from './claims/period.js'
export type { Hold, ReserveAttempt } from './claims/quota/hold.js'
export type { Quota } from './claims/quota/quota.js'
export type {
  QuotaAttempt,
  QuotaDrift,
  QuotaRefund,
  QuotaRefusal,
  QuotaTake,
  QuotaUse,
} from './claims/quota/quota-result.js'
export type {
  IfLate,
  QuotaFilter,
  QuotaOptions,
  RefundOptions,
  ReserveOptions,
  SubjectOptions,
  TakeOptions,
} from './claims/quota/quota-spec.js'
export type {
  RateAttempt,
  RateLeft,
  RateLimit,
  RateRefusal,
  RateTakeOptions,
} from './claims/rate-limit/rate-limit.js'
export type { IfDown, RateAlgorithm, RateLimitOptions } from './claims/rate-limit/rate-spec.js'
export type {
  JoinedSingleton,
  LeasedSingleton,
  Singleton,
  SingletonAttempt,
  SingletonRefusal,
  SingletonWait,
  TrySingleton,
} from './claims/singleton/singleton.js'
export type { SlotVoided, UndoSlot, VoidSlot, VoidSlotSpec } from './claims/singleton/void-slot.js'
export { Dibs } from './dibs.js'
export { type ProblemBody, type ProblemResponse, toProblem } from './errors/to-problem.js'
export * from './errors.js'
export type { AddJobOptions, AddManyOptions, AddOptions } from './jobs/add-options.js'
export type { Canceled, CancelOptions } from './jobs/cancel-job.js'
export type { DeadChoice, DeadFilter } from './jobs/dead-jobs.js'
export type { Handled, JobHandler, JobHandlers } from './jobs/handlers.js'
export type { JobContext, JobLog, TransactionalContext } from './jobs/job-context.js'
export {
  type JobAddInput,
  type JobDefinition,
  type JobDefinitions,
  type JobInput,
  type JobOptions,
  type JobOutcome,
  type JobPayload,
  type JobResult,
  job,
  type TransactionalOptions,
  type TypedJob,
} from './jobs/job-definition.js'
export type { AttemptRecord, JobRecord, JobState } from './jobs/job-record.js'
export type { JobRef, JobRefOf, JobTarget } from './jobs/job-ref.js'
export type { ResultOptions } from './jobs/job-results.js'
export type { Jobs, JobToAdd } from './jobs/jobs.js'
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
export type { Election, ElectOptions } from './locks/election.js'
export type { FencedWrite } from './locks/fenced-write.js'
export type { GuardOptions, Lock, LockOptions, TookOver, TryLockOptions } from './locks/lock.js'
export type { WithLock } from './locks/lock-manager.js'
export type { ForceReleaseOptions, LockFilter, LockInfo, Locks } from './locks/locks.js'
export type { Term } from './locks/term.js'
export type { Health } from './ops/health.js'
export type { MaintainOptions, MaintenanceReport } from './ops/maintenance.js'
export type { MaintenanceLoop } from './ops/round-scheduler.js'
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
export type { StandardSchema } from './postgres/standard-schema.js'
export type { TransactionOptions } from './postgres/transaction.js'
export type { Isolation, Transaction } from './postgres/transaction-types.js'
export type { IfBusy, LoadContext, SingleFlight, SingleFlightOptions } from './single-flight/flight-spec.js'
export type { Aggregate, DerivedOptions, RecomputeOptions } from './tables/aggregate/aggregate.js'
export type { AggregateOptions } from './tables/aggregate/aggregate-spec.js'
export type { CountedTransitionOptions } from './tables/aggregate/counted-transition.js'
export type { AggregateRefresh } from './tables/aggregate/refresh-marked.js'
export type { AggregateReport, Drift, VerifyOptions } from './tables/aggregate/verify-aggregate.js'
export type { Monitor, MonitorReport, MonitorRunOptions } from './tables/monitor/monitor.js'
export type { MonitorIndexes } from './tables/monitor/monitor-indexes.js'
export type { MonitorAction, MonitorOptions, MonitorVerdict } from './tables/monitor/monitor-options.js'
export type { RowId } from './tables/row-id.js'
export type { RowOptions } from './tables/row-options.js'
export type { Adjust, AdjustOptions, AmountChange, ExactAmount } from './tables/rows/adjust.js'
export type { ClaimOrder, ClaimOrderBy } from './tables/rows/claim-order.js'
export type { ClaimRows, ClaimRowsOptions } from './tables/rows/claim-rows.js'
export type { ClaimWhere, ClaimWhereEqual, ClaimWhereSql } from './tables/rows/claim-where.js'
export type { Inserted, InsertOnce } from './tables/rows/insert-once.js'
export type { LastWriteWins } from './tables/rows/last-write-wins.js'
export type { LockRows, RowLockMode, RowLockOptions } from './tables/rows/row-lock.js'
export type { State, StateChange, Transition } from './tables/rows/transition.js'
export type { UpdateRow, UpdateRowOptions, VersionedId } from './tables/rows/update-row.js'
export type { CountedWriteOptions } from './tables/rows/version-column.js'
export type { RowPatch } from './tables/sql-values.js'
export type { TableRows } from './tables/table-rows.js'
