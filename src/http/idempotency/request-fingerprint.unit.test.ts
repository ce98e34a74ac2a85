import { brotliCompressSync, gzipSync } from 'node:zlib'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { realTime } from '../../../test/real-time.js'
import { type FingerprintedRequest, fingerprintRequest } from './request-fingerprint.js'

const request = (changes: Partial<FingerprintedRequest> = {}): FingerprintedRequest => ({
  method: 'POST',
  target: '/orders',
  headers: [],
  type: 'application/json',
  encoding: '',
  body: Buffer.from('{"a":1}'),
  maxBytes: 1_048_576,
  ...changes,
})
const of = (changes?: Partial<FingerprintedRequest>) => fingerprintRequest(request(changes))
const json = (text: string) => of({ body: Buffer.from(text) })

describe('tells apart', () => {
  it.each<[string, Partial<FingerprintedRequest>]>([
    ['methods', { method: 'PUT' }],
    ['paths', { target: '/orders/1' }],
    ['queries', { target: '/orders?x' }],
    ['headers', { headers: [['x-version', '1']] }],
    ['bodies', { body: Buffer.from('{"a":2}') }],
    ['a body and none', { body: undefined }],
    ['kinds of bodies', { type: 'text/plain' }],
  ])('%s', async (_, changes) => {
    expect(await of(changes)).not.toBe(await of())
  })

  it.each([
    ['numbers that JavaScript would round', '9007199254740993', '9007199254740992'],
    ['the same with fractions', '0.12345678901234567', '0.12345678901234568'],
    ['numbers beyond all bounds', '1e400', '1e500'],
    ['those and null', '1e400', 'null'],
    ['orders of a list', '[1,2]', '[2,1]'],
    ['a text and a number', '"1"', '1'],
    ['an absent field and null', '{}', '{"a":null}'],
    ['names that every object has', '{"__proto__":1}', '{"__proto__":2}'],
    ['the same one level down', '{"__proto__":{"a":1}}', '{}'],
    ['small exponents and long ones', '1e-300', '1e-400'],
    ['what is no JSON', '{"a":', '{"a": '],
  ])('%s', async (_, one, two) => {
    expect(await json(one)).not.toBe(await json(two))
  })

  it('two values, always', async () => {
    await fc.assert(
      fc.asyncProperty(fc.jsonValue(), fc.jsonValue(), async (one, two) => {
        const texts = [one, two].map((value) => JSON.stringify(value))
        fc.pre(
          JSON.stringify(JSON.parse(texts[0] as string)) !== JSON.stringify(JSON.parse(texts[1] as string)),
        )
        const isSame = (await json(texts[0] as string)) === (await json(texts[1] as string))
        // Only the order of fields may be another.
        if (isSame) expect(sorted(one)).toBe(sorted(two))
      }),
    )
  })
})

function sorted(value: unknown): string {
  return JSON.stringify(value, (_, inner) =>
    inner && typeof inner === 'object' && !Array.isArray(inner)
      ? Object.entries(inner).toSorted(([a], [b]) => (a < b ? -1 : 1))
      : inner,
  )
}

describe('does not tell apart', () => {
  it.each([
    ['blanks', '{"a":1,"b":2}', ' { "a" : 1,\n"b":2 } '],
    ['the order of fields', '{"a":{"x":1,"y":2},"b":2}', '{"b":2,"a":{"y":2,"x":1}}'],
    ['ways to write a text', '"\\u0061\\/"', '"a/"'],
    ['ways to write a number', '[1.0,1e2,-0]', '[1,100,0]'],
    ['words that are no numbers', '{"a":true,"b":[false,null]}', '{ "b": [false, null], "a": true }'],
    ['long digits in a text', '{"a":"12345678901234567890","b":1}', '{"b":1,"a":"12345678901234567890"}'],
  ])('%s', async (_, one, two) => {
    expect(await json(one)).toBe(await json(two))
  })

  it('what is packed from what is not', async () => {
    for (const [encoding, pack] of [
      ['gzip', gzipSync],
      ['X-GZIP', gzipSync],
      ['br', brotliCompressSync],
    ] as const)
      expect(await of({ encoding, body: pack('{ "a": 1 }') })).toBe(await of())
    expect(await of({ encoding: 'gzip' })).toBe(await of()) // a parser has unpacked it
  })

  it('what was parsed before from what was not', async () => {
    expect(await of({ body: { value: { a: 1, b: undefined } } })).toBe(await of())
    expect(await of({ body: { value: undefined } })).toBe(await of({ body: undefined }))
    expect(await of({ body: Buffer.alloc(0) })).toBe(await of({ body: undefined }))
  })
})

it('knows bytes inside of what was parsed', async () => {
  const withFile = (text: string) =>
    of({ body: { value: { file: Buffer.from(text), at: new Date(0), n: 1n } } })
  expect(await withFile('a')).toBe(await withFile('a'))
  expect(await withFile('a')).not.toBe(await withFile('b'))
})

it.each([
  ['a Map', new Map([['a', 1]])],
  [
    'a class of its own',
    new (class Order {
      amount = 1
    })(),
  ],
])('refuses a parsed body that it cannot compare: %s', async (_, value) => {
  await expect(of({ body: { value } })).rejects.toThrow(
    'so repetitions cannot be compared: give `fingerprint`',
  )
  await expect(of({ body: { value: { inner: value } } })).rejects.toThrow('repetitions cannot be compared')
})

it('refuses a parsed body that refers to itself', async () => {
  const value: Record<string, unknown> = {}
  value.self = value
  await expect(of({ body: { value } })).rejects.toThrow('refers to itself')
})

it('knows forms and pairs that were parsed before', async () => {
  const pairs = (text: string) => of({ body: { value: new URLSearchParams(text) } })
  expect(await pairs('a=1&b=2')).toBe(await pairs('a=1&b=2'))
  expect(await pairs('amount=1')).not.toBe(await pairs('amount=1000'))
  const form = (file: string, name = 'f.txt') => {
    const value = new FormData()
    value.set('a', '1')
    value.set('f', new Blob([file]), name)
    return of({ body: { value } })
  }
  expect(await form('x')).toBe(await form('x'))
  expect(await form('x')).not.toBe(await form('y'))
  expect(await form('x')).not.toBe(await form('x', 'g.txt'))
  const buffer = (text: string) => of({ body: { value: { file: new TextEncoder().encode(text).buffer } } })
  expect(await buffer('x')).not.toBe(await buffer('y'))
})

it('tells bytes apart that are no UTF-8', async () => {
  const latin = (text: string) => of({ body: Buffer.from(`{"name":"${text}"}`, 'latin1') })
  expect(await latin('Ren\u00e9')).not.toBe(await latin('Ren\u00e8'))
  const part = (text: string, name = 'a') =>
    of({
      type: 'multipart/form-data; boundary=b',
      body: Buffer.from(
        `--b\r\nContent-Disposition: form-data; name="${name}"\r\n\r\n${text}\r\n--b--\r\n`,
        'latin1',
      ),
    })
  expect(await part('\u00e9')).not.toBe(await part('\u00e8'))
  expect(await part('x', '\u00e9')).not.toBe(await part('x', '\u00e8'))
})

describe('is not broken by', () => {
  it('what is nested deep', async () => {
    const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`
    expect(await json(deep)).toBe(await json(deep))
    let value: unknown = 1
    for (let n = 0; n < 5_000; n++) value = [value]
    await expect(of({ body: { value } })).rejects.toMatchObject({
      explained: { name: 'bodyInvalid', detail: expect.stringContaining('deeper than 1000 levels') },
    })
  })

  it('what grows when it is unpacked', async () => {
    const bomb = gzipSync(Buffer.alloc(2_000_000, '[],'))
    expect(bomb.length).toBeLessThan(10_000)
    await expect(of({ encoding: 'gzip', body: bomb })).rejects.toMatchObject({
      explained: { name: 'requestTooLarge' },
    })
  })

  it('what was made to take long', realTime, async () => {
    const since = performance.now()
    for (const text of [
      `"${'\\"'.repeat(500_000)}`,
      `"${'a'.repeat(1_000_000)}"`,
      `[${'1,'.repeat(300_000)}1]`,
    ])
      await json(text)
    expect(performance.now() - since).toBeLessThan(5_000) // the first alone took minutes once
  })
})
