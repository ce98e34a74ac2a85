import {
  AmbiguousOutcomeError,
  BusyError,
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
import { UnstorableResponse } from './exchange.js'
import type { ProblemDetails, ProblemName } from './problem.js'

export interface Explained extends ProblemDetails {
  readonly name: ProblemName
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

/** What a client is told of an error: nothing of its message, which may name what is not theirs. Undefined: not ours to explain. */
export function explainError(error: unknown): Explained | undefined {
  if (error instanceof Refusal) return error.explained
  if (error instanceof UnstorableResponse)
    return {
      name: 'responseNotKept',
      state: 'not done',
      detail: 'The response cannot be stored, so nothing was done. The log of the service has the reason.',
    }
  if (!(error instanceof DibsError) || error instanceof InvalidInputError) return undefined
  return explainOurs(error)
}

function explainOurs(error: DibsError): Explained {
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
      state: 'not done',
      detail: 'It was not done in time, and nothing of it was kept. Repeat the request, with the same key.',
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
  if (!error.retryable)
    return {
      name: 'failed',
      state: 'not done',
      detail: 'It could not be stored, so nothing was done. The log of the service has the reason.',
    }
  return {
    name: 'unavailable',
    state: 'not done',
    detail: 'Nothing was done. Repeat the request, with the same key.',
    retryAfterMs: error.retryAfterMs ?? RETRY_MS,
  }
}
