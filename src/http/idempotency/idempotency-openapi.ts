import { checkOptions } from '../../options/check-options.js'
import { checked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { boolean, instance, string } from '../../options/value-options.js'
import { type ProblemName, problems } from '../problem.js'

/** The options of the middleware that a description of the API shows. */
export interface OpenApiOptions {
  /** The name of the header. Default `Idempotency-Key`. */
  readonly header?: string | undefined
  /** Whether a key is required. Default true. */
  readonly required?: boolean | undefined
  /** The pattern for keys. */
  readonly keyPattern?: RegExp | undefined
  /** The statuses that replace the default ones, by the name of the problem. */
  readonly statuses?: Readonly<Partial<Record<ProblemName, number>>> | undefined
}

export const openApiOptions = optionTable<OpenApiOptions>()('openApi', {
  header: string({ default: 'Idempotency-Key' }),
  required: boolean({ default: true }),
  keyPattern: instance(RegExp),
  statuses: checked((field, value) => checkOptions(value, Object.keys(problems), field), { default: {} }),
})

/** The parts to put into an OpenAPI 3.0 or 3.1 description. */
export interface OpenApiFragment {
  /** For the `parameters` of an operation: the header of the key. */
  readonly parameter: object
  /** For the `responses` of an operation, by status: the responses of the middleware. */
  readonly responses: Readonly<Record<string, object>>
  /** For the `headers` of the responses that can be replayed. */
  readonly headers: Readonly<Record<string, object>>
  /** For `components.schemas`: the schemas that `responses` refers to. */
  readonly schemas: Readonly<Record<string, object>>
}

const meanings: readonly (readonly [ProblemName, string])[] = [
  ['keyMissing', 'The key is missing.'],
  ['keyInvalid', 'The key must be one value of 1 to 255 printable ASCII characters.'],
  [
    'inProgress',
    'The first request with this key is still in progress. Repeat the request with the same key.',
  ],
  ['ambiguous', 'The outcome of an earlier attempt is unknown.'],
  ['keyReused', 'The key was used for a different request. Use a new key.'],
  ['failed', 'The request could not be committed, or its response could not be stored.'],
  ['unavailable', 'Nothing was done, or the outcome is unknown. Repeat the request with the same key.'],
]

/**
 * Describes the header and the responses of the middleware, for an OpenAPI description.
 *
 * @example
 * const idempotent = openApi({ required: true })
 * const operation = {
 *   parameters: [idempotent.parameter],
 *   responses: { 201: { description: 'Created', headers: idempotent.headers }, ...idempotent.responses },
 * }
 * const components = { schemas: { ...idempotent.schemas } }
 */
export function openApi(options?: OpenApiOptions): OpenApiFragment {
  const { header, required, keyPattern, statuses } = openApiOptions.read(options)
  const schema = { type: 'string', minLength: 1, maxLength: 255 }
  return {
    parameter: {
      name: header,
      in: 'header',
      required,
      description:
        'A key that the client chooses: the same for each repetition of a request, and another for each new request. A repetition gets the first response.',
      schema: keyPattern ? { ...schema, pattern: keyPattern.source } : schema,
      ...(keyPattern ? {} : { example: '8e03978e-40d5-43e8-bc93-6894a57f9324' }),
    },
    responses: describeResponses(required, statuses),
    headers: {
      'Idempotency-Replayed': {
        description: '`true`: this is the response of an earlier request with the same key.',
        schema: { type: 'string', enum: ['true'] },
      },
    },
    schemas: { IdempotencyProblem: problemSchema },
  }
}

/** Describes the responses by status. Several problems may share one status. */
function describeResponses(
  required: boolean,
  statuses: Readonly<Partial<Record<ProblemName, number>>>,
): Record<string, object> {
  const byStatus = new Map<number, string[]>()
  for (const [name, meaning] of meanings) {
    if (name === 'keyMissing' && !required) continue
    const status = statuses[name] ?? problems[name].status
    byStatus.set(status, [...(byStatus.get(status) ?? []), meaning])
  }
  const retryAfter = { description: 'When to repeat the request, in seconds.', schema: { type: 'integer' } }
  const content = {
    'application/problem+json': { schema: { $ref: '#/components/schemas/IdempotencyProblem' } },
  }
  return Object.fromEntries(
    [...byStatus].map(([status, meanings]) => [
      String(status),
      { description: meanings.join(' '), headers: { 'Retry-After': retryAfter }, content },
    ]),
  )
}

/** The schema that all problems share. */
export const basicProblem = {
  type: 'object',
  required: ['type', 'title', 'status', 'detail'],
  properties: {
    type: { type: 'string', format: 'uri-reference' },
    title: { type: 'string' },
    status: { type: 'integer' },
    detail: { type: 'string' },
  },
}

const problemSchema = {
  ...basicProblem,
  properties: {
    ...basicProblem.properties,
    operationState: {
      type: 'string',
      enum: ['not started', 'running', 'not done', 'done', 'unknown'],
      description: 'The state of the operation that the key identifies.',
    },
    newKeyIsSafe: {
      type: 'boolean',
      description: 'True if a request with a new key cannot repeat the effect.',
    },
    retryAfterMs: { type: 'integer' },
  },
}
