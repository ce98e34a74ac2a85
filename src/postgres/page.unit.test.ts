import { describe, expect, it } from 'vitest'
import { InvalidInputError } from '../errors.js'
import { ANY_TEXT, decodeCursor, encodeCursor, pageOptions, toPage, WHOLE_NUMBER } from './page.js'

describe('the limit of a page', () => {
  it('is a number from 1 to 1,000, and 100 for none', () => {
    expect([undefined, 1, 1_000].map((limit) => pageOptions.read({ limit }).limit)).toEqual([100, 1, 1_000])
  })

  it.each([
    [0, '0'],
    [1_001, '1001'],
    [1.5, '1.5'],
    [Number.NaN, 'NaN'],
    ['10', '"10"'],
    [null, 'null'],
  ])('refuses %s', (limit, given) => {
    expect(() => pageOptions.read({ limit: limit as number })).toThrow(
      `\`limit\` must be a whole number from 1 to 1000, not ${given}.`,
    )
  })
})

describe('a cursor', () => {
  const patterns = [ANY_TEXT, WHOLE_NUMBER]

  it('is opaque, safe in a URL, and gives its place back', () => {
    const place = ['user:ä/?& 🙂\n', '42']
    const cursor = encodeCursor('locks', place)
    expect(cursor).toMatch(/^[\w-]+$/)
    expect(decodeCursor('locks', cursor, patterns)).toEqual(place)
  })

  it('may be absent', () => {
    expect(decodeCursor('locks', undefined, patterns)).toBeUndefined()
  })

  const raw = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
  it.each([
    ['an empty string', ''],
    ['another string', 'next'],
    ['null', null],
    ['a number', 7],
    ['an object', { name: 'a' }],
    ['JSON that is no array', raw({ length: 3 })],
    ['a cursor of another list', encodeCursor('claims', ['a', '1'])],
    ['too few parts', encodeCursor('locks', ['a'])],
    ['too many parts', encodeCursor('locks', ['a', '1', '1'])],
    ['a part that is no text', raw(['locks', 7, '1'])],
    ['a part that is no number', encodeCursor('locks', ['a', '1; --'])],
    ['NUL', encodeCursor('locks', ['\0', '1'])],
    ['half of a surrogate pair', raw(['locks', '\ud800', '1'])],
    ['an endless one', encodeCursor('locks', ['x'.repeat(100_000), '1'])],
  ])('that is %s is refused with 400', (_, cursor) => {
    let refused: unknown
    try {
      decodeCursor('locks', cursor, patterns)
    } catch (error) {
      refused = error
    }
    expect(refused).toBeInstanceOf(InvalidInputError)
    expect(refused).toMatchObject({ field: 'cursor', status: 400 })
  })
})

describe('toPage', () => {
  const pageOf = (rows: readonly number[]) =>
    toPage(
      'numbers',
      rows,
      2,
      (n) => [String(n)],
      (n) => n * 10,
    )

  it('has a next page if there is one row more', () => {
    expect(pageOf([1, 2, 3])).toEqual({ items: [10, 20], nextCursor: encodeCursor('numbers', ['2']) })
  })

  it('has none if there is not', () => {
    expect(pageOf([1, 2])).toEqual({ items: [10, 20], nextCursor: undefined })
    expect(pageOf([])).toEqual({ items: [], nextCursor: undefined })
  })
})
