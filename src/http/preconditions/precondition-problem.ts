import { toProblem } from '../../errors/to-problem.js'
import { InvalidInputError, PreconditionFailedError, PreconditionRequiredError } from '../../errors.js'
import type { ProblemName } from '../problem.js'

/** The problem for a client whose precondition is not met, missing or malformed. */
export interface ExplainedPrecondition {
  readonly name: Extract<ProblemName, `precondition${string}`>
  readonly detail: string
  /** The current version, for the header `ETag`. */
  readonly etag?: string | undefined
}

/** Returns undefined if the error is not about a precondition. */
export function explainPrecondition(error: unknown): ExplainedPrecondition | undefined {
  if (error instanceof PreconditionFailedError) {
    return { name: 'preconditionFailed', detail: toProblem(error).body.detail, etag: error.etag }
  }
  if (error instanceof PreconditionRequiredError)
    return { name: 'preconditionRequired', detail: toProblem(error).body.detail }
  const isHeader = error instanceof InvalidInputError && /^If-(?:None-)?Match$/.test(error.field)
  return isHeader ? { name: 'preconditionInvalid', detail: error.message } : undefined
}
