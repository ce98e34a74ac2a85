/**
 * The `Idempotency-Key` middleware for Fetch types, preconditions (`ETag`, `If-Match`), and what all frameworks share.
 *
 * @module
 */

export { type ProblemBody, type ProblemResponse, toProblem } from '../errors/to-problem.js'
export { type FetchHandler, idempotent } from './adapters/fetch.js'
export { type OpenApiFragment, type OpenApiOptions, openApi } from './idempotency/idempotency-openapi.js'
export type {
  IdempotencyOptions,
  LargeResponses,
  OwnTransaction,
  RequestScope,
} from './idempotency/idempotency-options.js'
export { type Claimed, claimed } from './idempotency/request-claim.js'
export type { StorePolicy } from './idempotency/response-store-policy.js'
export { etagOf } from './preconditions/entity-tag.js'
export {
  assertIfMatch,
  assertIfNoneMatch,
  type ExpectedVersion,
  ifMatch,
  isNotModified,
} from './preconditions/precondition.js'
export { preconditionOpenApi } from './preconditions/precondition-openapi.js'
export type { RequestHeaders } from './preconditions/request-headers.js'
export { withIfMatch } from './preconditions/with-if-match.js'
export type { OperationState, Problem, ProblemName } from './problem.js'
export { rateLimited } from './rate-limit/fetch-rate-limit.js'
export type { RateLimitedOptions } from './rate-limit/route-rate-limit.js'
