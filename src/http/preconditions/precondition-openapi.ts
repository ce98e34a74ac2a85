import { basicProblem, type OpenApiFragment } from '../idempotency/idempotency-openapi.js'
import { problems } from '../problem.js'
import { type PreconditionOptions, preconditionOptions } from './precondition.js'

/**
 * Describes the header `If-Match`, the `ETag` and the responses about them, for an OpenAPI 3.0 or 3.1 description.
 *
 * @example
 * const versioned = preconditionOpenApi()
 * const operation = {
 *   parameters: [versioned.parameter],
 *   responses: { 200: { description: 'Changed', headers: versioned.headers }, ...versioned.responses },
 * }
 * const components = { schemas: { ...versioned.schemas } }
 */
export function preconditionOpenApi(options?: PreconditionOptions): OpenApiFragment {
  const { required } = preconditionOptions.read(options)
  const headers = {
    ETag: {
      description: 'The current version. Send it as `If-Match` with a change.',
      schema: { type: 'string', example: '"7"' },
    },
  }
  const content = {
    'application/problem+json': { schema: { $ref: '#/components/schemas/PreconditionProblem' } },
  }
  const { preconditionFailed, preconditionRequired } = problems
  const failed = { description: 'The version is not the current one. Nothing was changed.', headers, content }
  const missing = { description: 'The request must name a version in `If-Match`.', content }
  return {
    parameter: {
      name: 'If-Match',
      in: 'header',
      required,
      description: 'The `ETag` of the version that the change is meant for.',
      schema: { type: 'string' },
      example: '"7"',
    },
    responses: {
      [preconditionFailed.status]: failed,
      ...(required ? { [preconditionRequired.status]: missing } : {}),
    },
    headers,
    schemas: { PreconditionProblem: basicProblem },
  }
}
