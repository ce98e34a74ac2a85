import { InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import { nameGiven } from '../postgres/name-given.js'
import { type ProblemName, problems } from './problem.js'

/** The options of the middleware that a description of the API shows. */
export interface OpenApiOptions {
  readonly header?: string | undefined
  readonly required?: boolean | undefined
  readonly keyPattern?: RegExp | undefined
  readonly statuses?: Readonly<Partial<Record<ProblemName, number>>> | undefined
}

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
  ['keyInvalid', 'The key is not valid: 1 to 255 printable ASCII characters, one value.'],
  [
    'inProgress',
    'The first request with this key is still being carried out. Repeat the request with the same key.',
  ],
  ['ambiguous', 'It is not known how an earlier attempt ended.'],
  ['keyReused', 'The key was used before for another request. Use a new one.'],
  ['failed', 'It could not be committed, or its response could not be kept.'],
  ['unavailable', 'Nothing was done, or it is not known. Repeat the request with the same key.'],
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
export function openApi(options: OpenApiOptions = {}): OpenApiFragment {
  checkOptions(options, ['header', 'required', 'keyPattern', 'statuses'])
  const { header = 'Idempotency-Key', required = true, keyPattern, statuses = {} } = options
  if (keyPattern !== undefined && !(keyPattern instanceof RegExp))
    throw new InvalidInputError('keyPattern', `must be a regular expression, not ${nameGiven(keyPattern)}`)
  checkOptions(statuses, Object.keys(problems))
  const schema = { type: 'string', minLength: 1, maxLength: 255 }
  return {
    parameter: {
      name: header,
      in: 'header',
      required,
      description:
        'A key of your own for this request: the same for each repetition, another for each new one. A repetition gets the response of the first.',
      schema: keyPattern ? { ...schema, pattern: keyPattern.source } : schema,
      ...(keyPattern ? {} : { example: '8e03978e-40d5-43e8-bc93-6894a57f9324' }),
    },
    responses: describeAnswers(required, statuses),
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
function describeAnswers(
  required: boolean,
  statuses: Readonly<Partial<Record<ProblemName, number>>>,
): Record<string, object> {
  const said = new Map<number, string[]>()
  for (const [name, meaning] of meanings) {
    if (name === 'keyMissing' && !required) continue
    const status = statuses[name] ?? problems[name].status
    said.set(status, [...(said.get(status) ?? []), meaning])
  }
  const retryAfter = { description: 'When to repeat the request, in seconds.', schema: { type: 'integer' } }
  const content = {
    'application/problem+json': { schema: { $ref: '#/components/schemas/IdempotencyProblem' } },
  }
  return Object.fromEntries(
    [...said].map(([status, meanings]) => [
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
      description: 'What became of the operation that the key stands for.',
    },
    newKeyIsSafe: {
      type: 'boolean',
      description: 'A request with a new key cannot do the same thing twice.',
    },
    retryAfterMs: { type: 'integer' },
  },
}
