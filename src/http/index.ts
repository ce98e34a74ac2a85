/**
 * The `Idempotency-Key` middleware for Fetch types, preconditions (`ETag`, `If-Match`), and what all frameworks share.
 *
 * @module
 */

export { type ProblemBody, type ProblemResponse, toProblem } from '../errors/to-problem.js'
export { type Claimed, claimed } from './claimed.js'
export { etagOf } from './entity-tag.js'
export { type FetchHandler, idempotent } from './fetch.js'
export { rateLimited } from './fetch-rate-limit.js'
export { type OpenApiFragment, type OpenApiOptions, openApi } from './openapi.js'
export type { IdempotencyOptions, LargeResponses, OwnTransaction, RequestScope } from './options.js'
export {
  assertIfMatch,
  assertIfNoneMatch,
  type ExpectedVersion,
  ifMatch,
  isNotModified,
} from './precondition.js'
export { preconditionOpenApi } from './precondition-openapi.js'
export type { OperationState, Problem, ProblemName } from './problem.js'
export type { RateLimitedOptions } from './rate-gate.js'
export type { RequestHeaders } from './request-headers.js'
export type { StorePolicy } from './store-policy.js'
export { withIfMatch } from './with-if-match.js'
