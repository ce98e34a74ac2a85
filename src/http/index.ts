/**
 * The `Idempotency-Key` on Fetch types, and what all frameworks share.
 *
 * @module
 */

export { type Claimed, claimed } from './claimed.js'
export { type FetchHandler, idempotent } from './fetch.js'
export { rateLimited } from './fetch-rate-limit.js'
export { type OpenApiFragment, type OpenApiOptions, openApi } from './openapi.js'
export type { IdempotencyOptions, LargeResponses, OwnTransaction, RequestScope } from './options.js'
export type { OperationState, Problem, ProblemName } from './problem.js'
export type { RateLimitedOptions } from './rate-gate.js'
export type { StorePolicy } from './store-policy.js'
