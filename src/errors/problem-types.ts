/** The prefix of the types of all problems. */
export const PROBLEM_BASE = 'urn:dibs:problem:'

/** Problems that both `toProblem` and the HTTP middleware respond with. A client sees one type and one title per meaning. */
export const sharedProblems = {
  inProgress: {
    type: 'in-progress',
    status: 409,
    title: 'A request with this Idempotency-Key is in progress',
  },
  keyReused: { type: 'key-reused', status: 422, title: 'Idempotency-Key was used for another request' },
  ambiguous: { type: 'ambiguous', status: 409, title: 'The outcome of an earlier attempt is unknown' },
  failed: { type: 'failed', status: 500, title: 'The request has failed' },
  timedOut: { type: 'timed-out', status: 504, title: 'The request took too long' },
  unknown: { type: 'outcome-unknown', status: 503, title: 'The outcome of the request is unknown' },
  unavailable: { type: 'unavailable', status: 503, title: 'The request could not be carried out now' },
  preconditionInvalid: { type: 'precondition-invalid', status: 400, title: 'A precondition is not valid' },
  preconditionFailed: { type: 'precondition-failed', status: 412, title: 'A precondition is not met' },
  preconditionRequired: {
    type: 'precondition-required',
    status: 428,
    title: 'The request must name a version',
  },
  neverFits: { type: 'never-fits', status: 422, title: 'The request asks for more than the limit' },
  rateLimited: { type: 'rate-limited', status: 429, title: 'Too many requests' },
} as const

/** Converts milliseconds to whole seconds, for `Retry-After`. */
export const retryAfterSeconds = (ms: number): string => String(Math.max(1, Math.ceil(ms / 1_000)))
