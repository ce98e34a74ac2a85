import { Validator } from '@seriousme/openapi-schema-validator'
import { describe, expect, it } from 'vitest'
import { preconditionOpenApi } from '../preconditions/precondition-openapi.js'
import { openApi } from './idempotency-openapi.js'

const describeApi = (version: string, fragment = openApi()) => ({
  openapi: version,
  info: { title: 'Orders', version: '1' },
  paths: {
    '/orders': {
      post: {
        parameters: [fragment.parameter],
        responses: { '201': { description: 'Created', headers: fragment.headers }, ...fragment.responses },
      },
    },
  },
  components: { schemas: fragment.schemas },
})

describe('the fragment', () => {
  it.each(['3.0.3', '3.1.0'])('is valid OpenAPI %s', async (version) => {
    expect(await new Validator().validate(describeApi(version))).toEqual({ valid: true })
    expect(await new Validator().validate({ ...describeApi(version), info: {} })).toMatchObject({
      valid: false,
    })
  })

  it('says what the middleware does', () => {
    const { parameter, responses, headers } = openApi()
    expect(parameter).toMatchObject({ name: 'Idempotency-Key', in: 'header', required: true })
    expect(Object.keys(responses)).toEqual(['400', '409', '422', '500', '503'])
    expect(Object.keys(headers)).toEqual(['Idempotency-Replayed'])
  })

  it('follows the options of a route', () => {
    const { parameter, responses } = openApi({
      header: 'X-Key',
      required: false,
      keyPattern: /^\w+$/,
      statuses: { keyReused: 409, keyInvalid: 428 },
    })
    expect(parameter).toMatchObject({ name: 'X-Key', required: false, schema: { pattern: '^\\w+$' } })
    expect(Object.keys(responses)).toEqual(['409', '428', '500', '503'])
    expect(() => openApi({ wrong: 1 } as never)).toThrow('Unknown option "wrong"')
  })
})

describe('the fragment of a precondition', () => {
  it.each(['3.0.3', '3.1.0'])('is valid OpenAPI %s, beside the other too', async (version) => {
    const [key, versioned] = [openApi(), preconditionOpenApi()]
    const both = {
      parameter: versioned.parameter,
      responses: { ...key.responses, ...versioned.responses },
      headers: { ...key.headers, ...versioned.headers },
      schemas: { ...key.schemas, ...versioned.schemas },
    }
    expect(await new Validator().validate(describeApi(version, versioned))).toEqual({ valid: true })
    expect(await new Validator().validate(describeApi(version, both))).toEqual({ valid: true })
    expect(Object.keys(both.responses)).toEqual(['400', '409', '412', '422', '428', '500', '503'])
  })

  it('says what is asked for and answered', () => {
    const { parameter, responses, headers, schemas } = preconditionOpenApi()
    expect(parameter).toMatchObject({ name: 'If-Match', in: 'header', required: true })
    expect(responses).toMatchObject({ 412: { headers: { ETag: {} } }, 428: {} })
    expect(Object.keys(headers)).toEqual(['ETag'])
    expect(Object.keys(schemas)).toEqual(['PreconditionProblem'])
    const optional = preconditionOpenApi({ required: false })
    expect(optional.parameter).toMatchObject({ required: false })
    expect(Object.keys(optional.responses)).toEqual(['412'])
    expect(() => preconditionOpenApi({ wrong: 1 } as never)).toThrow('Unknown option "wrong"')
  })
})
