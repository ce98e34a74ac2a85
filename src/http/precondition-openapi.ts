import { checkOptions } from '../postgres/check-options.js'
import { basicProblem, type OpenApiFragment } from './openapi.js'
import { problems } from './problem.js'

/**
 * The header `If-Match`, the `ETag` and the answers about them, for an OpenAPI description, 3.0 or 3.1.
 *
 * @example
 * const versioned = preconditionOpenApi()
 * const operation = {
 *   parameters: [versioned.parameter],
 *   responses: { 200: { description: 'Changed', headers: versioned.headers }, ...versioned.responses },
 * }
 * const components = { schemas: { ...versioned.schemas } }
 */
export function preconditionOpenApi(options: { readonly required?: boolean } = {}): OpenApiFragment {
  checkOptions(options, ['required'])
  const { required = true } = options
  const headers = {
    ETag: {
      description: 'The version that is there now, to be sent as `If-Match` with a change of it.',
      schema: { type: 'string', example: '"7"' },
    },
  }
  const content = {
    'application/problem+json': { schema: { $ref: '#/components/schemas/PreconditionProblem' } },
  }
  const { preconditionFailed, preconditionRequired } = problems
  const failed = { description: 'The version is not the current one. Nothing was changed.', headers, content }
  const missing = { description: 'The request must name a version by `If-Match`.', content }
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
