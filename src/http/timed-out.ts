import { Refusal } from './explain-error.js'
import type { OperationState } from './problem.js'

/** A client is not kept waiting any longer. */
export const timedOut = (state: OperationState): Refusal =>
  new Refusal({
    name: 'timedOut',
    state,
    detail: 'It is not done yet. Repeat the request, with the same key, to learn what came of it.',
    retryAfterMs: 1_000,
  })
