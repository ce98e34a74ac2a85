import { toProblem } from '../errors/to-problem.js'
import { InvalidInputError, PreconditionFailedError, PreconditionRequiredError } from '../errors.js'
import { DEFAULT_STYLE, makeProblem, type Problem, type ProblemName } from './problem.js'

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

/** A problem in parts, for whatever sends it. */
export interface ProblemAnswer {
  readonly status: 400 | 412 | 428
  readonly headers: Readonly<Record<string, string>>
  readonly body: Problem
}

/**
 * What to answer to an error of `ifMatch` and its kin, as RFC 9457 has it: 412 with the current `ETag`, 428, or 400 for a malformed header. Undefined for
 * any other error. For the error handler of your application.
 *
 * @example
 * const problem = preconditionProblem(error)
 * if (problem) return Response.json(problem.body, problem)
 */
export function preconditionProblem(error: unknown): ProblemAnswer | undefined {
  const explained = explainPrecondition(error)
  if (!explained) return undefined
  const { name, detail, etag } = explained
  const body = makeProblem(name, { detail }, DEFAULT_STYLE)
  const headers = { 'content-type': 'application/problem+json', 'cache-control': 'no-store' }
  return {
    status: body.status as ProblemAnswer['status'],
    headers: etag ? { ...headers, etag } : headers,
    body,
  }
}
