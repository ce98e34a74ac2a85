import { toProblem } from '../errors/to-problem.js'
import { InvalidInputError, PreconditionFailedError, PreconditionRequiredError } from '../errors.js'
import type { ProblemName } from './problem.js'

/** What a client is told of a precondition. */
export interface ExplainedPrecondition {
  readonly name: Extract<ProblemName, `precondition${string}`>
  readonly detail: string
  /** What is there, for an `ETag`. */
  readonly etag?: string | undefined
}

/** Undefined: the error is about something else. */
export function explainPrecondition(error: unknown): ExplainedPrecondition | undefined {
  if (error instanceof PreconditionFailedError) {
    return { name: 'preconditionFailed', detail: toProblem(error).body.detail, etag: error.etag }
  }
  if (error instanceof PreconditionRequiredError)
    return { name: 'preconditionRequired', detail: toProblem(error).body.detail }
  const isHeader = error instanceof InvalidInputError && /^If-(?:None-)?Match$/.test(error.field)
  return isHeader ? { name: 'preconditionInvalid', detail: error.message } : undefined
}
