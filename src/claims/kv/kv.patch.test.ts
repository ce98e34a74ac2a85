import { describe, expect, it } from 'vitest'
import { kv, openKv, schema } from '../../../test/kv-fixture.js'
import { InvalidInputError } from '../../errors.js'

openKv()

describe('patch', () => {
  it.each([
    [{ a: 1 }, { b: 2 }, { a: 1, b: 2 }],
    [{ a: { x: 1, y: { z: 1 } } }, { a: { y: { w: 2 } } }, { a: { x: 1, y: { z: 1, w: 2 } } }],
    [{ a: { x: 1 } }, { a: {} }, { a: { x: 1 } }],
    [{ a: { x: 1 } }, { a: null }, { a: null }],
    [{ a: { x: 1 } }, { a: [1] }, { a: [1] }],
    [{ a: [1, 2] }, { a: [3] }, { a: [3] }],
    [{ a: null }, { a: { x: 1 } }, { a: { x: 1 } }],
    [{ a: 'text' }, { a: { b: { c: 1 } } }, { a: { b: { c: 1 } } }],
    [{ '': { '"': 1 } }, { '': { $: 2 } }, { '': { '"': 1, $: 2 } }],
    [{ a: 1 }, {}, { a: 1 }],
    [{}, { a: undefined, b: { c: undefined } }, { b: {} }],
  ])('%j with %j is %j', async (before, fields, after) => {
    const { version } = await kv.set('p', before)
    const patched = await kv.patch('p', fields)
    expect(patched).toEqual({ value: after, version: expect.any(Number) })
    expect(patched?.version).toBeGreaterThan(version)
    expect(await kv.get('p')).toEqual(patched)
  })

  it.each([
    [['a'], { b: { c: [{ d: 1 }], e: 2 } }],
    [[['b', 'e']], { a: 1, b: { c: [{ d: 1 }] } }],
    [['a', ['b']], {}],
    [['none', ['b', 'none'], ['a', 'x'], ['none', 'x']], { a: 1, b: { c: [{ d: 1 }], e: 2 } }],
    // An element of an array is no field.
    [[['b', 'c', '0']], { a: 1, b: { c: [{ d: 1 }], e: 2 } }],
    [[['b', 'c', '0', 'd']], { a: 1, b: { c: [{}], e: 2 } }],
  ])('removes %j', async (remove, after) => {
    await kv.set('p', { a: 1, b: { c: [{ d: 1 }], e: 2 } })
    expect((await kv.patch('p', {}, { remove }))?.value).toEqual(after)
  })

  it('replaces whole what it removes and sets', async () => {
    await kv.set('p', { a: { x: 1 } })
    expect((await kv.patch('p', { a: { y: 2 } }, { remove: ['a'] }))?.value).toEqual({ a: { y: 2 } })
  })

  it('keeps the expiry, or moves it', async () => {
    await schema.clock.freeze(new Date(1_000_000))
    await kv.set('p', {}, { ttlMs: 1_000 })
    await kv.patch('p', { a: 1 })
    expect((await kv.get('p'))?.expiresAt).toEqual(new Date(1_001_000))
    await kv.patch('p', { a: 1 }, { ttlMs: 5_000 })
    expect((await kv.get('p'))?.expiresAt).toEqual(new Date(1_005_000))
  })

  it('says what is there if that is no object, and nothing if there is nothing', async () => {
    expect(await kv.patch('none', { a: 1 })).toBeUndefined()
    for (const [value, said] of [
      [[1], 'a JSON array'],
      ['text', 'a JSON string'],
      [null, 'null'],
    ] as const) {
      await kv.set('p', value)
      const error = await kv.patch('p', { a: 1 }).catch((thrown: unknown) => thrown)
      expect(error).toBeInstanceOf(InvalidInputError)
      expect(error).toMatchObject({
        field: 'key',
        message: expect.stringContaining(`what is there is ${said};`),
      })
    }
  })

  it('does not let a value grow without end, patch by patch', async () => {
    await kv.set('p', {})
    const half = 'x'.repeat(600_000)
    await kv.patch('p', { a: half })
    await expect(kv.patch('p', { b: half })).rejects.toThrow('larger than 1048576 bytes')
    expect((await kv.get<object>('p'))?.value).toEqual({ a: half })
  })

  it('takes as many fields as there is room for', async () => {
    const fields = Object.fromEntries(Array.from({ length: 60_000 }, (_, n) => [n.toString(36), n]))
    await kv.set('p', { 0: -1, a: { b: 1 } })
    expect((await kv.patch('p', fields))?.value).toEqual(fields)
  })

  it('goes as deep as it says', async () => {
    const nest = (levels: number, leaf: object): object =>
      levels === 1 ? leaf : { inner: nest(levels - 1, leaf) }
    await kv.set('p', nest(50, { a: 1 }))
    expect((await kv.patch('p', nest(50, { b: 2 })))?.value).toEqual(nest(50, { a: 1, b: 2 }))
    await expect(kv.patch('p', nest(51, { b: 2 }))).rejects.toThrow('deeper than 50 levels')
  })
})
