import { describe, expect, it } from 'vitest'
import { realTime } from '../../../test/real-time.js'
import { toProblem } from '../../errors/to-problem.js'
import { PreconditionFailedError, PreconditionRequiredError } from '../../errors.js'
import { etagOf } from './entity-tag.js'
import { assertIfMatch, assertIfNoneMatch, ifMatch, isNotModified } from './precondition.js'
import type { RequestHeaders } from './request-headers.js'

const match = (value: string): RequestHeaders => new Headers({ 'if-match': value })
const noneMatch = (value: string): RequestHeaders => new Headers({ 'if-none-match': value })

/** Returns the error that `fn` throws. */
function thrownBy(fn: () => unknown): unknown {
  try {
    fn()
  } catch (error) {
    return error
  }
  return undefined
}

describe('etagOf', () => {
  it.each([
    [7, '"7"'],
    [0, '"0"'],
    ['1f,3!#~', '"1f,3!#~"'],
    ['\u00e4', '"\u00e4"'],
  ])('%s is %s', (version, etag) => {
    expect(etagOf(version)).toBe(etag)
    expect(etagOf(version, { weak: true })).toBe(`W/${etag}`)
    expect(new Headers({ etag }).get('etag')).toBe(etag)
  })

  it.each([
    ['a"b'],
    ['a b'],
    [''],
    ['a\n'],
    ['\u007f'],
    ['\u0100'],
    [1.5],
    [Number.NaN],
    [2 ** 53],
    [undefined],
    [{}],
  ])('refuses %j', (version) => {
    const error = thrownBy(() => etagOf(version as never))
    expect(error).toMatchObject({ code: 'DIBS_INVALID_INPUT', field: 'version', status: 500 })
  })
})

describe('ifMatch', () => {
  it.each<[string, RequestHeaders]>([
    ['Fetch', new Headers({ 'If-Match': '"7", "8"' })],
    ['Node', { 'if-match': '"7", "8"', host: 'x' }],
    ['Node, each by itself', { 'if-match': ['"7"', '"8"'] }],
    ['names as they were sent', { 'If-Match': '"7", "8"' }],
    ['what has a get', { get: (name) => (name === 'if-match' ? '"7", "8"' : undefined) }],
  ])('reads the headers of %s', (_, headers) => {
    expect(ifMatch(headers)).toEqual({ any: false, versions: ['7', '8'] })
  })

  it.each([
    ['*', { any: true }],
    [' * ', { any: true }],
    ['"7"', { any: false, versions: ['7'] }],
    ['"7","8" ,\t"9"', { any: false, versions: ['7', '8', '9'] }],
    ['"a,b", "*"', { any: false, versions: ['a,b', '*'] }],
    [', ,"7",, ', { any: false, versions: ['7'] }],
    ['""', { any: false, versions: [''] }],
    ['W/"7"', { any: false, versions: [] }],
    ['W/"7", "8"', { any: false, versions: ['8'] }],
  ])('reads %s', (value, expected) => {
    expect(ifMatch({ 'if-match': value })).toEqual(expected)
  })

  it.each([
    ['7'],
    ['"7'],
    ['7"'],
    ['"7" "8"'],
    ['"7", *'],
    ['*, *'],
    ['w/"7"'],
    ['W/ "7"'],
    ['"a b"'],
    [''],
    [','],
    ['"7"x'],
    ["'7'"],
  ])('refuses %j with 400', (value) => {
    const error = thrownBy(() => ifMatch({ 'if-match': value }))
    expect(error).toMatchObject({ code: 'DIBS_INVALID_INPUT', field: 'If-Match', status: 400 })
  })

  it('refuses a header that is long and wrong without delay', realTime, () => {
    const startedAt = performance.now()
    for (const value of [
      ' ,'.repeat(50_000),
      '"'.repeat(50_000),
      '"7",'.repeat(20_000),
      `"${'a'.repeat(50_000)}`,
    ])
      thrownBy(() => ifMatch({ 'if-match': `${value}x` }))
    expect(performance.now() - startedAt).toBeLessThan(2_000)
  })

  it('asks for the header, unless it is told not to', () => {
    const error = thrownBy(() => ifMatch(new Headers()))
    expect(error).toBeInstanceOf(PreconditionRequiredError)
    expect(error).toMatchObject({ code: 'DIBS_PRECONDITION_REQUIRED', status: 428, header: 'If-Match' })
    expect(ifMatch({}, { required: false })).toBeUndefined()
    expect(thrownBy(() => ifMatch({}, { require: false } as never))).toMatchObject({ field: 'require' })
  })

  it.each([undefined, null, 'if-match', new Request('http://x'), { headers: { 'if-match': '"7"' } }])(
    'refuses %s in place of headers as a mistake of the application',
    (given) => {
      const error = thrownBy(() => ifMatch(given as never, { required: false }))
      expect(error).toMatchObject({ field: 'headers', status: 500 })
    },
  )
})

describe('assertIfMatch', () => {
  it.each<[string, number | string | undefined]>([
    ['"7"', 7],
    ['"6", "7"', 7],
    ['"abc"', 'abc'],
    ['*', 7],
  ])('%s passes at %s', (value, current) => {
    expect(assertIfMatch(match(value), current)).toBeUndefined()
  })

  it.each<[string, number | undefined]>([
    ['"6"', 7],
    ['W/"7"', 7],
    ['"07"', 7],
    ['*', undefined],
    ['"undefined"', undefined],
  ])('%s fails at %s', (value, current) => {
    const error = thrownBy(() => assertIfMatch(match(value), current))
    expect(error).toBeInstanceOf(PreconditionFailedError)
    expect(error).toMatchObject({
      code: 'DIBS_PRECONDITION_FAILED',
      status: 412,
      header: 'If-Match',
      retryable: false,
    })
    const { current: told, etag } = error as PreconditionFailedError
    expect({ told, etag }).toEqual(current === undefined ? {} : { told: 7, etag: '"7"' })
  })

  it('asks for the header, unless it is told not to', () => {
    expect(thrownBy(() => assertIfMatch({}, 7))).toBeInstanceOf(PreconditionRequiredError)
    expect(thrownBy(() => assertIfMatch({}, 7, { required: false }))).toBeUndefined()
    expect(thrownBy(() => assertIfMatch(match('"6"'), 7, { required: false }))).toMatchObject({ status: 412 })
  })
})

describe('If-None-Match', () => {
  it('keeps a request from making what is there', () => {
    expect(thrownBy(() => assertIfNoneMatch(noneMatch('*'), undefined))).toBeUndefined()
    expect(thrownBy(() => assertIfNoneMatch(new Headers(), 7))).toBeUndefined()
    expect(thrownBy(() => assertIfNoneMatch(noneMatch('"6"'), 7))).toBeUndefined()
    const refused = { status: 412, header: 'If-None-Match', current: 7, etag: '"7"' }
    for (const value of ['*', '"6", "7"', 'W/"7"'])
      expect(thrownBy(() => assertIfNoneMatch(noneMatch(value), 7))).toMatchObject(refused)
    expect(thrownBy(() => assertIfNoneMatch(noneMatch('7'), 7))).toMatchObject({
      status: 400,
      field: 'If-None-Match',
    })
  })

  it.each<[string, number | undefined, boolean]>([
    ['"7"', 7, true],
    ['W/"7"', 7, true],
    ['"6", "7"', 7, true],
    ['*', 7, true],
    ['*', undefined, false],
    ['"6"', 7, false],
    ['7', 7, false],
  ])('%s at %s: is not modified is %s', (value, current, expected) => {
    expect(isNotModified(noneMatch(value), current)).toBe(expected)
  })

  it('without it everything is modified', () => expect(isNotModified(new Headers(), 7)).toBe(false))
})

describe('the problem', () => {
  const plain = { 'content-type': 'application/problem+json', 'cache-control': 'no-store' }

  it('of a version that has moved on has the current one', () => {
    const problem = toProblem(thrownBy(() => assertIfMatch(match('"6"'), 7)))
    expect(problem).toMatchObject({
      status: 412,
      body: {
        type: 'urn:dibs:problem:precondition-failed',
        status: 412,
        detail: expect.stringContaining('not the current one'),
      },
    })
    expect(problem.headers).toEqual({ ...plain, etag: '"7"' })
  })

  it('of something that is there already says so', () => {
    const problem = toProblem(thrownBy(() => assertIfNoneMatch(noneMatch('*'), 7)))
    expect(problem.body.detail).toContain('exists already')
  })

  it('of a missing header and of a malformed one', () => {
    const missing = toProblem(thrownBy(() => ifMatch({})))
    expect(missing).toMatchObject({
      status: 428,
      headers: plain,
      body: { type: 'urn:dibs:problem:precondition-required' },
    })
    const malformed = toProblem(thrownBy(() => ifMatch({ 'if-match': '7' })))
    expect(malformed).toMatchObject({ status: 400, body: { type: 'urn:dibs:problem:precondition-invalid' } })
  })
})
