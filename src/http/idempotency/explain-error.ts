import {
  AmbiguousOutcomeError,
  BusyError,
  ClosedError,
  CommitOutcomeUnknownError,
  DibsError,
  FenceLostError,
  FingerprintMismatchError,
  InProgressError,
  InvalidInputError,
  OutcomeNotStoredError,
  PermanentError,
  StatementTimeoutError,
} from '../../errors.js'
import { explainPrecondition } from '../preconditions/precondition-problem.js'
import type { OperationState } from '../problem.js'
import { type ExplainedError, Refusal } from './refusals.js'
import { UnstorableResponseError } from './unstorable-response-error.js'

/** How far a request had come when it ended with an error. */
export interface RequestProgress {
  readonly hasKey: boolean
  /** True if the handler was called: then this request had the claim, and knows the outcome. */
  readonly hasRun: boolean
  readonly isLeased: boolean
  /** True if the framework cannot handle the error any more. */
  readonly mustExplain: boolean
}

const RETRY_MS = 1_000

const OUTCOME_UNKNOWN =
  'The request may have been carried out. Repeat it with the same key to learn its outcome.'

/**
 * The problem for the client. It contains nothing of the error's message, which may hold data of others. Undefined if the error
 * is not of Dibs and the framework can still handle it.
 */
export function explainError(error: unknown, progress: RequestProgress): ExplainedError | undefined {
  if (error instanceof Refusal) return error.explained
  if (error instanceof UnstorableResponseError)
    return {
      name: 'responseNotKept',
      // In mode `leased`, a response that says that the work is done was stored before as such.
      state: progress.isLeased ? 'unknown' : 'not done',
      detail: 'The response cannot be stored. The log of the service has the reason.',
    }
  const precondition = explainPrecondition(error)
  if (precondition) return { ...precondition, state: stateOf(progress) }
  if (error instanceof DibsError && !(error instanceof InvalidInputError))
    return explainDibsError(error, stateOf(progress))
  return progress.mustExplain ? { name: 'failed', state: 'unknown', detail: OUTCOME_UNKNOWN } : undefined
}

/** A request that had no claim cannot know the state: an earlier request with the key may have been carried out. */
const stateOf = ({ hasKey, hasRun }: RequestProgress): OperationState =>
  hasRun ? 'not done' : hasKey ? 'unknown' : 'not started'

function explainDibsError(error: DibsError, state: OperationState): ExplainedError {
  const inProgress = error instanceof BusyError ? error.cause : error
  if (inProgress instanceof InProgressError)
    return {
      name: 'inProgress',
      state: 'running',
      detail: 'The first request with this key is still in progress. Repeat the request with the same key.',
      retryAfterMs: inProgress.retryAfterMs,
    }
  if (error instanceof FingerprintMismatchError)
    return {
      name: 'keyReused',
      state: 'not started',
      detail: 'This key was used for a different request. Use a new key for a new request.',
    }
  if (error instanceof AmbiguousOutcomeError)
    return {
      name: 'ambiguous',
      state: 'unknown',
      detail:
        'An earlier attempt has no recorded outcome and may have been carried out. An operator must look into it.',
    }
  if (error instanceof PermanentError)
    return { name: 'failed', state: 'unknown', detail: 'The request has failed and will not be tried again.' }
  if (error instanceof StatementTimeoutError)
    return {
      name: 'timedOut',
      state,
      detail: 'The request was not done in time. Repeat it with the same key.',
      retryAfterMs: RETRY_MS,
    }
  if (
    error instanceof CommitOutcomeUnknownError ||
    error instanceof OutcomeNotStoredError ||
    error instanceof FenceLostError
  )
    return { name: 'unknown', state: 'unknown', detail: OUTCOME_UNKNOWN, retryAfterMs: RETRY_MS }
  // After `ClosedError`, another process serves the next request.
  if (!error.retryable && !(error instanceof ClosedError))
    return {
      name: 'failed',
      state,
      detail: 'The request could not be committed. The log of the service has the reason.',
    }
  return {
    name: 'unavailable',
    state,
    detail: 'This attempt has done nothing. Repeat the request with the same key.',
    retryAfterMs: error.retryAfterMs ?? RETRY_MS,
  }
}
