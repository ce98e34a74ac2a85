import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { realTime } from '../../../test/real-time.js'
import { readIdempotencyKey } from './idempotency-key.js'

describe('the header', () => {
  it.each([
    ['8e03978e-40d5-43e8-bc93-6894a57f9324', '8e03978e-40d5-43e8-bc93-6894a57f9324'],
    ['"8e03978e"', '8e03978e'],
    [' "a b" ', 'a b'],
    ['"a,b"', 'a,b'],
    ['"a;b"', 'a;b'],
    ['"a\\"b\\\\c"', 'a"b\\c'],
    ['"a";x;y=1;z="q, \\" r"', 'a'],
    ['a+b/c==', 'a+b/c=='],
    ['a:b.c_d~e', 'a:b.c_d~e'],
  ])('%s is %s', (header, key) => {
    expect(readIdempotencyKey(header)).toEqual({ key })
  })

  it.each([
    ['', 'is empty'],
    ['  ', 'is empty'],
    ['""', 'is empty'],
    ['a, b', 'several values'],
    ['"a", "b"', 'several values'],
    ['"a";x=1, "b"', 'several values'],
    ['"a" "b"', 'neither'],
    ['"a', 'neither'],
    ['a"b', 'neither'],
    ['a;b', 'neither'],
    ['"a\\b"', 'neither'],
    ['a b', 'neither'],
    ['"a";v=1.2.3', 'neither'],
    ['"a" ;x=1', 'neither'],
    ['é', 'printable ASCII'],
    ['"a\tb"', 'printable ASCII'],
    ['x'.repeat(256), '256 characters'],
    [`"${'x'.repeat(256)}"`, '256 characters'],
  ])('%s is refused: %s', (header, problem) => {
    expect(readIdempotencyKey(header)).toEqual({ problem: expect.stringContaining(problem) })
  })

  it('reads back every text that RFC 8941 can write', () => {
    const printable = fc.integer({ min: 0x20, max: 0x7e }).map((code) => String.fromCharCode(code))
    fc.assert(
      fc.property(fc.array(printable, { minLength: 1, maxLength: 255 }), (characters) => {
        const key = characters.join('')
        const header = `"${key.replace(/["\\]/g, '\\$&')}"`
        expect(readIdempotencyKey(header)).toEqual({ key })
      }),
    )
  })

  it('takes no time over what was made to take long', realTime, () => {
    const since = performance.now()
    for (const text of [
      `"${'\\"'.repeat(30_000)}`,
      `"a"${';a=b'.repeat(20_000)},`,
      `"a"${' ;'.repeat(20_000)}`,
    ])
      expect(readIdempotencyKey(text)).toHaveProperty('problem')
    expect(performance.now() - since).toBeLessThan(5_000)
  })
})
