import { PROBLEM_BASE, retryAfterSeconds, sharedProblems } from '../errors/problem-types.js'

/** The responses of the middleware in place of a handler, by the names that `statuses` uses. */
export const problems = {
  keyMissing: { type: 'key-missing', status: 400, title: 'Idempotency-Key is missing' },
  keyInvalid: { type: 'key-invalid', status: 400, title: 'Idempotency-Key is not valid' },
  inProgress: sharedProblems.inProgress,
  keyReused: sharedProblems.keyReused,
  ambiguous: sharedProblems.ambiguous,
  bodyInvalid: { type: 'body-invalid', status: 400, title: 'The body of the request is not valid' },
  bodyUnread: { type: 'body-unread', status: 415, title: 'The body of the request was not read' },
  requestTooLarge: { type: 'request-too-large', status: 413, title: 'The request is too large' },
  responseNotKept: { type: 'response-not-kept', status: 500, title: 'The response cannot be stored' },
  failed: sharedProblems.failed,
  timedOut: sharedProblems.timedOut,
  unknown: sharedProblems.unknown,
  unavailable: sharedProblems.unavailable,
  preconditionInvalid: sharedProblems.preconditionInvalid,
  preconditionFailed: sharedProblems.preconditionFailed,
  preconditionRequired: sharedProblems.preconditionRequired,
  neverFits: sharedProblems.neverFits,
  rateLimited: sharedProblems.rateLimited,
} as const

export type ProblemName = keyof typeof problems

/** Whether the request with this key was carried out. */
export type OperationState = 'not started' | 'running' | 'not done' | 'done' | 'unknown'

/** A problem as RFC 9457 defines it, with the facts that a client needs to decide what to do next. */
export interface Problem {
  /** A stable identifier. Compare this, not the title. */
  readonly type: string
  readonly title: string
  readonly status: number
  readonly detail: string
  /** The state of the requested operation. Missing in problems of a rate limit, which has no keys. */
  readonly operationState?: OperationState
  /** True if a request with a new key cannot repeat the effect. */
  readonly newKeyIsSafe?: boolean
  /** When to try again, if that is known. The header `Retry-After` has it in whole seconds. */
  readonly retryAfterMs?: number
  /** Rate limits only: when the whole limit is available again. */
  readonly resetsAt?: string
  /** Rate limits only: the limit. */
  readonly limit?: number
  /** Rate limits only: the highest cost that would have fitted. */
  readonly remaining?: number
  /** Rate limits only: the cost of the request. */
  readonly cost?: number
}

export interface ProblemDetails {
  readonly detail: string
  readonly state?: OperationState | undefined
  readonly retryAfterMs?: number | undefined
  /** More fields that a client may see. */
  readonly shown?: Partial<Pick<Problem, 'resetsAt' | 'limit' | 'remaining' | 'cost'>> | undefined
}

/** The format of problems in one application. */
export interface ProblemStyle {
  readonly statuses: Readonly<Partial<Record<ProblemName, number>>>
  /** The prefix of problem types. */
  readonly base: string
  /** Makes the response body from the problem. Undefined: the body is the problem itself. */
  readonly body: ((problem: Problem) => unknown) | undefined
}

export const DEFAULT_STYLE: ProblemStyle = { statuses: {}, base: PROBLEM_BASE, body: undefined }

const safe: readonly OperationState[] = ['not started', 'not done']

export function makeProblem(
  name: ProblemName,
  { detail, state, retryAfterMs, shown }: ProblemDetails,
  { statuses, base }: ProblemStyle,
): Problem {
  const { type, status, title } = problems[name]
  return {
    type: `${base}${type}`,
    title,
    status: statuses[name] ?? status,
    detail,
    ...(state === undefined ? {} : { operationState: state, newKeyIsSafe: safe.includes(state) }),
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    ...shown,
  }
}

/** Makes a response from a problem. */
export function problemResponse(problem: Problem, { body }: ProblemStyle = DEFAULT_STYLE): Response {
  const headers = new Headers({ 'content-type': 'application/problem+json', 'cache-control': 'no-store' })
  if (problem.retryAfterMs !== undefined) headers.set('retry-after', retryAfterSeconds(problem.retryAfterMs))
  return new Response(JSON.stringify(body ? body(problem) : problem), { status: problem.status, headers })
}
