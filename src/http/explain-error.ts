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
} from '../errors.js'
import { explainPrecondition } from './precondition-problem.js'
import type { OperationState, ProblemDetails, ProblemName } from './problem.js'
import { UnstorableResponse } from './unstorable-response.js'

export interface Explained extends ProblemDetails {
  readonly name: ProblemName
  /** What those who run the service are told of it. */
  readonly cause?: unknown
}

/** What is known of a request that has ended with an error. */
export interface Known {
  readonly hasKey: boolean
  /** Its handler was let go: then this call had the claim, and knows what became of it. */
  readonly hasRun: boolean
  readonly isLeased: boolean
  /** No framework can be told of the error any more. */
  readonly mustExplain: boolean
}

/** Thrown where the layer itself has something to say. */
export class Refusal extends Error {
  readonly explained: Explained

  constructor(explained: Explained) {
    super(explained.detail)
    this.explained = explained
  }
}

const RETRY_MS = 1_000

/** Of an error that is not ours, after the handler was let go. */
const unexplained: Explained = {
  name: 'failed',
  state: 'unknown',
  detail: 'The request may have been carried out. Repeat it, with the same key, to learn what came of it.',
}

/** What a client is told of an error: nothing of its message, which may name what is not theirs. Undefined: not ours to explain. */
export function explainError(error: unknown, known: Known): Explained | undefined {
  if (error instanceof Refusal) return error.explained
  if (error instanceof UnstorableResponse)
    return {
      name: 'responseNotKept',
      // Leased, one that says that the work is done was stored as such.
      state: known.isLeased ? 'unknown' : 'not done',
      detail: 'The response cannot be kept. The log of the service has the reason.',
    }
  const refused = explainPrecondition(error)
  if (refused) return { ...refused, state: stateOf(known) }
  if (!(error instanceof DibsError) || error instanceof InvalidInputError)
    return known.mustExplain ? unexplained : undefined
  return explainOurs(error, known)
}

/** Without the claim it is not known what became of the key: an earlier request may have been carried out. */
const stateOf = ({ hasKey, hasRun }: Known): OperationState =>
  hasRun ? 'not done' : hasKey ? 'unknown' : 'not started'

function explainOurs(error: DibsError, known: Known): Explained {
  const state = stateOf(known)
  const inProgress = error instanceof BusyError ? error.cause : error
  if (inProgress instanceof InProgressError)
    return {
      name: 'inProgress',
      state: 'running',
      detail:
        'The first request with this key is still being carried out. Repeat the request, with the same key.',
      retryAfterMs: inProgress.retryAfterMs,
    }
  if (error instanceof FingerprintMismatchError)
    return {
      name: 'keyReused',
      state: 'not started',
      detail: 'This key was used for a request that was not the same. Use a new key for a new request.',
    }
  if (error instanceof AmbiguousOutcomeError)
    return {
      name: 'ambiguous',
      state: 'unknown',
      detail:
        'An earlier attempt did not say how it ended, and may have been carried out. Somebody has to look into it.',
    }
  if (error instanceof PermanentError)
    return { name: 'failed', state: 'unknown', detail: 'The request has failed and will not be tried again.' }
  if (error instanceof StatementTimeoutError)
    return {
      name: 'timedOut',
      state,
      detail: 'It was not done in time. Repeat the request, with the same key.',
      retryAfterMs: RETRY_MS,
    }
  if (
    error instanceof CommitOutcomeUnknownError ||
    error instanceof OutcomeNotStoredError ||
    error instanceof FenceLostError
  )
    return {
      name: 'unknown',
      state: 'unknown',
      detail:
        'The request may have been carried out. Repeat it, with the same key, to learn what came of it.',
      retryAfterMs: RETRY_MS,
    }
  // A closed instance: another process serves the next request.
  if (!error.retryable && !(error instanceof ClosedError))
    return {
      name: 'failed',
      state,
      detail: 'It could not be committed. The log of the service has the reason.',
    }
  return {
    name: 'unavailable',
    state,
    detail: 'This attempt has done nothing. Repeat the request, with the same key.',
    retryAfterMs: error.retryAfterMs ?? RETRY_MS,
  }
}
