import { AcquireRefusedError, LockHeldError, SingletonConflictError } from './acquire-errors.js'
import { ClosedError, InvalidInputError } from './caller-errors.js'
import { BusyError, ConflictError, FenceLostError } from './claim-errors.js'
import { ConnectionLostError, ConstraintViolationError, StatementTimeoutError } from './database-errors.js'
import type { DibsError } from './dibs-error.js'
import { BusinessRuleError, SnoozeError, TransientError } from './handler-errors.js'
import { JobCanceledError, JobExpiredError, JobTimeoutError, WorkerStoppedError } from './job-errors.js'
import { NeverFitsError, RateLimitedError } from './limit-errors.js'
import { GuardedError } from './lock-errors.js'
import {
  AmbiguousOutcomeError,
  FingerprintMismatchError,
  InProgressError,
  OutcomeNotStoredError,
} from './once-errors.js'
import { PreconditionFailedError, PreconditionRequiredError } from './precondition-errors.js'
import { sharedProblems } from './problem-types.js'
import { HoldEndedError, QuotaExceededError } from './quota-errors.js'
import { InsufficientError, NotFoundError, NotWrittenError, StateConflictError } from './table-errors.js'

/** How a client sees the errors of one class. Without `like`, the type comes from the code. */
export interface View<E extends DibsError> {
  readonly like?: { readonly type: string; readonly title: string }
  readonly title?: string
  readonly detail: string | ((error: E) => string)
  /** The fields that a client may see. Never SQL, a connection, the name of a table or a constraint, a value of a column, or a stored result. */
  readonly shows?: readonly (keyof E & string)[]
  readonly retryAfterMs?: (error: E) => number
  /** Whether a client can succeed with the same request, if that differs from a retry in the same process. */
  readonly retryable?: boolean
  readonly headers?: (error: E) => Record<string, string>
}

// biome-ignore lint/suspicious/noExplicitAny: constructors of errors take different arguments
type ErrorClass<E extends DibsError> = abstract new (...args: any[]) => E

function view<E extends DibsError>(type: ErrorClass<E>, shown: View<E>): [unknown, View<DibsError>] {
  // A view is only used for errors of its class: see viewOf.
  return [type, shown as unknown as View<DibsError>]
}

const { inProgress, keyReused, ambiguous, timedOut, unknown, unavailable } = sharedProblems
const AGAIN = 'Repeat the request later.'
const IN_USE = `Another caller is using what the request needs. ${AGAIN}`

/** The views by class. A class with status 500 needs none. */
export const views = new Map<unknown, View<DibsError>>([
  view(BusyError, {
    like: unavailable,
    detail: IN_USE,
    shows: ['leaseUntil'],
  }),
  view(LockHeldError, {
    title: 'Another caller holds the lock',
    detail: IN_USE,
    shows: ['leaseUntil'],
  }),
  view(GuardedError, { like: unavailable, detail: IN_USE }),
  view(FenceLostError, {
    title: 'The claim is lost',
    detail: 'Another caller took over the work of this request. Read the current state before you repeat it.',
  }),
  view(ConflictError, {
    title: 'Another writer was first',
    detail: 'The data changed while the request was carried out. Read it again, then repeat the request.',
    shows: ['expected', 'current'],
  }),
  view(PreconditionFailedError, {
    like: sharedProblems.preconditionFailed,
    detail: ({ header }) =>
      header === 'If-Match'
        ? 'The version that the request names is not the current one. Get it anew and decide again.'
        : 'The request asks to create something that exists already.',
    shows: ['header', 'current', 'etag'],
    headers: ({ etag }): Record<string, string> => (etag === undefined ? {} : { etag }),
  }),
  view(PreconditionRequiredError, {
    like: sharedProblems.preconditionRequired,
    detail: ({ header }) => `Send the ETag of the version that you have seen as \`${header}\`.`,
    shows: ['header'],
  }),
  view(NotFoundError, { title: 'Not found', detail: 'What the request names does not exist.' }),
  view(NotWrittenError, {
    title: 'The change was refused',
    detail: 'The database did not accept the change.',
  }),
  view(StateConflictError, {
    title: 'The current state does not allow this change',
    detail: 'The state may have changed since you saw it. Read it again and decide again.',
  }),
  view(InsufficientError, {
    title: 'The amount is not available',
    detail: 'The change would exceed a bound of the amount. Ask for less.',
  }),
  view(ConstraintViolationError, {
    title: 'The data is refused',
    detail: 'A constraint of the stored data forbids this change. The same request will be refused again.',
    shows: ['kind'],
  }),
  view(RateLimitedError, {
    like: sharedProblems.rateLimited,
    detail: `Too many requests were made recently. ${AGAIN}`,
    shows: ['limit', 'remaining', 'cost'],
  }),
  view(NeverFitsError, {
    like: sharedProblems.neverFits,
    detail: 'No wait helps. Ask for less.',
    shows: ['limit', 'requested'],
  }),
  view(QuotaExceededError, {
    title: 'The quota is exceeded',
    detail: ({ retryAfterMs }) =>
      retryAfterMs === undefined
        ? 'Less is left than the request asks for, and no wait helps. Ask for less.'
        : 'Less is left than the request asks for. Ask for less, or repeat the request later.',
    shows: ['limit', 'used', 'held', 'remaining', 'requested'],
  }),
  view(HoldEndedError, {
    title: 'The reservation has ended',
    detail: 'The reservation was ended before, has expired, or does not exist.',
    shows: ['state'],
  }),
  view(SingletonConflictError, {
    title: 'This is done once in each period',
    detail: 'Another caller has done this in the current period, or is doing it.',
    // No `holder`: by default it names a host and a process.
    shows: ['state', 'slot', 'since', 'leaseUntil'],
  }),
  view(AcquireRefusedError, {
    title: 'Some claims were refused',
    detail: 'The request needs several things at once, and `failures` says which are not available.',
    shows: ['isFinal'],
  }),
  view(InProgressError, {
    like: inProgress,
    shows: ['leaseUntil'],
    detail:
      'The first request with this key is still being carried out. Repeat the request, with the same key.',
  }),
  view(FingerprintMismatchError, {
    like: keyReused,
    detail: 'This key was used for a request that was not the same. Use a new key for a new request.',
  }),
  view(AmbiguousOutcomeError, {
    like: ambiguous,
    detail: 'An earlier attempt may have been carried out. A person has to find out.',
  }),
  view(OutcomeNotStoredError, {
    like: unknown,
    detail: 'The request may have been carried out. Repeat it, with the same key, to learn its outcome.',
  }),
  view(ConnectionLostError, { like: unavailable, detail: AGAIN }),
  view(StatementTimeoutError, { like: timedOut, detail: AGAIN }),
  // Another process serves the next request.
  view(ClosedError, { like: unavailable, detail: `The service is shutting down. ${AGAIN}`, retryable: true }),
  view(TransientError, { like: unavailable, detail: AGAIN }),
  view(SnoozeError, { like: unavailable, detail: AGAIN, retryAfterMs: ({ delayMs }) => delayMs }),
  view(BusinessRuleError, {
    title: 'A rule forbids the request',
    // The application wrote this message for the caller.
    detail: ({ message }) => message,
    shows: ['rule'],
  }),
  view(InvalidInputError, {
    title: 'The input is not valid',
    // Shown with status 400 only: the message is then about a value that the client sent.
    detail: ({ message }) => message,
    shows: ['field'],
  }),
  view(JobTimeoutError, { like: timedOut, detail: 'The job took too long.' }),
  view(JobCanceledError, {
    title: 'The job was canceled',
    detail: 'The job was canceled before it succeeded.',
  }),
  view(JobExpiredError, { title: 'The job has expired', detail: 'Nobody started the job in time.' }),
  view(WorkerStoppedError, { like: unavailable, detail: AGAIN }),
])
