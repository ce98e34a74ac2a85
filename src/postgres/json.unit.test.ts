import { runInNewContext } from 'node:vm'
import { describe, expect, it } from 'vitest'
import { InvalidInputError, InvalidOutcomeError, PermanentError } from '../errors.js'
import { MAX_JSON_BYTES, toColumnJson, toJson, toOutcome } from './json.js'

const refusal = (value: unknown): InvalidInputError => {
  try {
    toJson('input', value)
  } catch (error) {
    expect(error).toBeInstanceOf(InvalidInputError)
    return error as InvalidInputError
  }
  throw new Error('The value was accepted.')
}

const cyclic: Record<string, unknown> = { name: 'a' }
cyclic.parent = { of: [cyclic] }

class Money {
  constructor(
    readonly amount: string,
    readonly currency: string,
  ) {}
}

class Secret {
  #value = 1
  get value() {
    return this.#value
  }
}

describe('a value that JSON would destroy', () => {
  it.each([
    ['an Error', new Error('x'), 'an Error'],
    ['an Error of another realm', runInNewContext('new Error("x")'), 'an Error'],
    ['a RegExp', /x/, 'a RegExp'],
    ['a Map', new Map([[1, 2]]), 'a Map'],
    ['a Set', new Set([1]), 'a Set'],
    ['a WeakMap', new WeakMap(), 'a WeakMap'],
    ['a promise', Promise.resolve(1), 'a Promise'],
    ['a Uint8Array', new Uint8Array(3), 'a Uint8Array'],
    ['a Buffer, although it has toJSON', Buffer.from('x'), 'a Buffer'],
    ['an ArrayBuffer', new ArrayBuffer(3), 'an ArrayBuffer'],
    ['a DataView', new DataView(new ArrayBuffer(3)), 'a DataView'],
    ['URLSearchParams', new URLSearchParams('a=1'), 'a URLSearchParams'],
    ['Headers', new Headers({ a: '1' }), 'a Headers'],
    ['a Blob', new Blob(['x']), 'a Blob'],
    ['an instance with private data', new Secret(), 'a Secret'],
    ['a function', () => {}, 'a function'],
    ['a symbol', Symbol('x'), 'a symbol'],
    ['a bigint', 1n, 'a bigint'],
    ['a boxed bigint', Object(1n), 'a bigint'],
    ['NaN', Number.NaN, 'NaN'],
    ['Infinity', Number.NEGATIVE_INFINITY, '-Infinity'],
    ['a boxed NaN', Object(Number.NaN), 'NaN'],
    ['an invalid Date', new Date(Number.NaN), 'an invalid Date'],
  ])('%s is refused wherever it is, with its path', (_, value, kind) => {
    expect(refusal(value)).toMatchObject({ field: 'input' })
    expect(refusal({ items: [{}, { photo: value }] })).toMatchObject({ field: 'input.items[1].photo' })
    expect(refusal({ 'odd key': { at: [value] } }).field).toBe('input["odd key"].at[0]')
    expect(refusal({ photo: value }).message).toContain(`\`input.photo\` is ${kind}, which JSON cannot store`)
    // The careful path, which begins after 20 levels.
    const deep = Array.from({ length: 30 }).reduce((inner) => ({ inner }), value)
    expect(refusal(deep).field).toBe(`input${'.inner'.repeat(30)}`)
  })

  it('says what to do about binary data', () => {
    expect(refusal({ items: [1, 2, 3, { photo: new Uint8Array(2) }] }).message).toBe(
      '`input.items[3].photo` is a Uint8Array, which JSON cannot store. Convert it first, for example to a base64 string.',
    )
  })

  it.each([
    [
      'undefined in an array',
      { a: [1, undefined] },
      'input.a[1]',
      'is undefined, which JSON cannot store in an array',
    ],
    [
      'a hole in an array',
      { a: Object.assign(new Array(3), { 0: 1, 2: 3 }) },
      'input.a[1]',
      'is undefined, which JSON cannot store in an array',
    ],
    ['a cycle', cyclic, 'input.parent.of[0]', 'refers back to an object that contains it'],
    ['NUL', { a: ['x\0'] }, 'input.a[0]', 'must not hold a NUL character'],
    ['NUL in a key', { a: { 'x\0': 1 } }, 'input.a["x\\u0000"]', 'must not hold a NUL character'],
    ['half of a surrogate pair', { a: '\ud83d' }, 'input.a', 'must not hold half of a surrogate pair'],
    ['undefined', undefined, 'input', 'must be JSON, not undefined'],
    [
      'a toJSON that returns undefined',
      { toJSON: () => undefined },
      'input',
      'must be JSON, not a plain object',
    ],
    ['a toJSON that returns a Map', { a: { toJSON: () => new Map() } }, 'input.a', 'is a Map'],
  ])('%s is refused', (_, value, field, problem) => {
    const error = refusal(value)
    expect(error.field).toBe(field)
    expect(error.message).toContain(problem)
  })

  it.each([
    [
      'a getter',
      {
        a: {
          get b() {
            throw new Error('no b')
          },
        },
      },
      'input.a.b',
      'cannot be read: no b',
    ],
    [
      'a toJSON',
      {
        a: {
          toJSON() {
            throw new Error('no JSON')
          },
        },
      },
      'input.a',
      'cannot be read: no JSON',
    ],
    [
      'a proxy',
      {
        a: new Proxy(
          {},
          {
            ownKeys() {
              throw new Error('no keys')
            },
          },
        ),
      },
      'input.a',
      'cannot be read: no keys',
    ],
    [
      'a getter that throws an odd value',
      {
        get a() {
          throw Object.create(null)
        },
      },
      'input.a',
      'cannot be read: a plain object',
    ],
  ])('%s that throws is refused', (_, value, field, problem) => {
    const error = refusal(value)
    expect(error.field).toBe(field)
    expect(error.message).toContain(problem)
  })

  it('is named by a path of bounded length', () => {
    const key = 'k'.repeat(90)
    const deep = Array.from({ length: 400 }).reduce<unknown>((inner) => ({ [key]: inner }), [1n])
    const { message, field } = refusal(deep)
    expect(message).toMatch(/^`input\.kkk.*….*kkk\[0\]` is a bigint/)
    expect(message.length).toBeLessThan(1_000)
    expect(field.length).toBeLessThan(1_000)
  })

  it('is refused in what a function returned, too', () => {
    const outcome = (field: string, value: unknown) => () => toOutcome(field, value)
    expect(outcome('outcome', { a: [new Map()] })).toThrow(InvalidOutcomeError)
    expect(outcome('outcome', { a: [new Map()] })).toThrow('`outcome.a[0]` is a Map, which JSON cannot store')
    expect(outcome('the result of job 7 ("email")', { a: 1n })).toThrow(
      'The result of job 7 ("email") cannot be stored: `result.a` is a bigint, which JSON cannot store. Convert it first, for example to a string.',
    )
    expect(outcome('the result of job 7 ("email")', 1n)).toThrow(
      'The result of job 7 ("email") is a bigint, which JSON cannot store.',
    )
  })
})

describe('a value that is too large', () => {
  it('by its length', () => {
    expect(refusal('x'.repeat(MAX_JSON_BYTES)).message).toContain(
      `must be at most ${MAX_JSON_BYTES} bytes as JSON, and is ${MAX_JSON_BYTES + 2}`,
    )
    expect(toJson('input', 'x'.repeat(MAX_JSON_BYTES - 2))).toHaveLength(MAX_JSON_BYTES)
    expect(toColumnJson('input', 'x'.repeat(MAX_JSON_BYTES))).toHaveLength(MAX_JSON_BYTES + 2)
  })

  it('by its depth', () => {
    const nested = (levels: number) => Array.from({ length: levels }).reduce<unknown>((inner) => [inner], 1)
    expect(JSON.parse(toJson('input', nested(500)))).toEqual(nested(500))
    expect(refusal(nested(501)).message).toContain('nested deeper than 500 levels')
    expect(refusal(nested(100_000)).message).toContain('nested deeper than 500 levels')
  })

  it('because its parts refer to the same parts, without writing them all', () => {
    const doubled = Array.from({ length: 60 }).reduce<unknown>((inner) => ({ a: inner, b: inner }), 1)
    expect(refusal(doubled).message).toContain('bytes as JSON, and is more')
  })
})

describe('a value that JSON can store', () => {
  it.each([
    ['plain data', { a: [1, 'x', null, true, { b: {} }], n: -0 }, '{"a":[1,"x",null,true,{"b":{}}],"n":0}'],
    ['a property that is undefined, left out', { a: undefined, b: 1 }, '{"b":1}'],
    ['a Date as its ISO string', { at: new Date(0) }, '{"at":"1970-01-01T00:00:00.000Z"}'],
    ['a URL as its string', { url: new URL('http://localhost/x') }, '{"url":"http://localhost/x"}'],
    [
      'an instance with properties',
      { price: new Money('1.20', 'EUR') },
      '{"price":{"amount":"1.20","currency":"EUR"}}',
    ],
    [
      'an instance of which all properties are undefined',
      Object.assign(new Secret(), { a: undefined }),
      '{}',
    ],
    ['an object without a prototype', Object.assign(Object.create(null), { a: 1 }), '{"a":1}'],
    ['an empty object without a prototype', { a: Object.create(null) }, '{"a":{}}'],
    ['an empty object of another realm', { a: runInNewContext('({})') }, '{"a":{}}'],
    ['an array of another realm', { a: runInNewContext('[1, {}]') }, '{"a":[1,{}]}'],
    ['boxed primitives', [Object(1), Object('x'), Object(false)], '[1,"x",false]'],
    [
      'an error with toJSON',
      { error: new PermanentError('no') },
      /^\{"error":\{"name":"PermanentError","message":"no"/,
    ],
    ['the key __proto__', JSON.parse('{"__proto__":{"a":1}}'), '{"__proto__":{"a":1}}'],
    [
      'the key __proto__ beside a Date',
      { at: new Date(0), a: JSON.parse('{"__proto__":1}') },
      /"a":\{"__proto__":1\}/,
    ],
    [
      'a part that occurs twice',
      (() => {
        const b = [new Date(0)]
        return [b, b]
      })(),
      /^\[\[/,
    ],
    ['a symbol key, left out', { [Symbol('x')]: 1, a: 2 }, '{"a":2}'],
    [
      'text that looks like an escaped NUL',
      { a: '\\u0000 \\\\ud800 😀' },
      '{"a":"\\\\u0000 \\\\\\\\ud800 😀"}',
    ],
  ])('%s', (_, value, json) => {
    const text = toJson('input', value)
    if (typeof json === 'string') expect(text).toBe(json)
    else expect(text).toMatch(json)
    expect(text).toBe(JSON.stringify(value))
  })

  it('a bigint, if the application has given it a toJSON', () => {
    const prototype = BigInt.prototype as { toJSON?: () => string }
    prototype.toJSON = function (this: bigint) {
      return `${this}`
    }
    try {
      expect(toJson('input', { n: 2n ** 70n })).toBe('{"n":"1180591620717411303424"}')
    } finally {
      delete prototype.toJSON
    }
  })

  it('calls each toJSON once, with its key', () => {
    const keys: string[] = []
    const value = { toJSON: (key: string) => keys.push(key) }
    toJson('input', { a: value, b: [value] })
    expect(keys).toEqual(['a', '0'])
  })
})
