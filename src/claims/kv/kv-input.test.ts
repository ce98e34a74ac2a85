import { describe, expect, it } from 'vitest'
import { kv, openKv, pool } from '../../../test/kv-fixture.js'
import { InvalidInputError } from '../../errors.js'
import { countTraffic } from '../../testing/index.js'

openKv()

describe('what is refused before anything is sent', () => {
  const circular: Record<string, unknown> = {}
  circular.self = circular
  const cases: [string, (any: never) => Promise<unknown>, unknown[], string][] = [
    ['a key to get', (key) => kv.get(key), ['', 5, null, undefined, 'a\0', '\ud800', 'ż'.repeat(257)], 'key'],
    ['a key to set', (key) => kv.set(key, 1), ['', 'x'.repeat(513)], 'key'],
    ['a key to setIfAbsent', (key) => kv.setIfAbsent(key, 1), ['', ['a']], 'key'],
    ['a key to compareAndSet', (key) => kv.compareAndSet(key, 1, 1), [''], 'key'],
    ['a key to delete', (key) => kv.delete(key), [''], 'key'],
    ['a key to patch', (key) => kv.patch(key, {}), [''], 'key'],
    ['keys', (keys) => kv.getMany(keys), ['a', undefined, Array(1_001).fill('a')], 'keys'],
    ['one of many keys', (keys) => kv.getMany(keys), [['a', '']], 'keys[1]'],
    ...(['set', 'setIfAbsent'] as const).map(
      (call): [string, (any: never) => Promise<unknown>, unknown[], string] => [
        `a value to ${call}`,
        (value) => kv[call]('a', value),
        [
          ...[undefined, () => 1, 1n, Number.NaN, Number.POSITIVE_INFINITY, Symbol('s'), circular],
          ...[new Map(), { a: new Set() }, [undefined], 'a\0', { a: '\udfff' }, { '\0': 1 }],
          'x'.repeat(1_048_576),
        ],
        'value',
      ],
    ),
    ['a value to compareAndSet', (value) => kv.compareAndSet('a', 1, value), [undefined, 1n], 'value'],
    ['fields', (f) => kv.patch('a', f), [null, 1, 'a', [], undefined, new Map()], 'fields'],
    ['remove', (remove) => kv.patch('a', {}, { remove }), ['a', [1], [[]], [['a', 1]], ['\0']], 'remove'],
    ['too many to remove', (remove) => kv.patch('a', {}, { remove }), [Array(1_001).fill('a')], 'remove'],
    ['a time to live of patch', (ttlMs) => kv.patch('a', {}, { ttlMs }), [0, null, 1e15], 'ttlMs'],
    ...(['set', 'setIfAbsent'] as const).map(
      (call): [string, (any: never) => Promise<unknown>, unknown[], string] => [
        `a time to live of ${call}`,
        (ttlMs) => kv[call]('a', {}, { ttlMs }),
        [0, -1, 1.5, Number.NaN, '5', null, 1e15, Number.NEGATIVE_INFINITY],
        'ttlMs',
      ],
    ),
    ['a time to live of compareAndSet', (ttlMs) => kv.compareAndSet('a', 1, 1, { ttlMs }), [0], 'ttlMs'],
    [
      'a version',
      (v) => kv.compareAndSet('a', v, 1),
      [0, -1, 1.5, Number.NaN, 2 ** 53, '1', null],
      'version',
    ],
    ['a version to delete', (v) => kv.delete('a', { ifVersion: v }), [0, '1', null], 'ifVersion'],
    ['a prefix', (prefix) => kv.list({ prefix }), [null, 5, 'a\0', '\ud800', 'x'.repeat(513)], 'prefix'],
    ['a limit', (limit) => kv.list({}, { limit }), [0, -1, 1.5, 1_001, '5', null, Number.NaN], 'limit'],
    ['a cursor', (cursor) => kv.list({}, { cursor }), ['', 5, null, 'k3'], 'cursor'],
    ['options', (options) => kv.get('a', options), [null, 5, 'tx', []], 'options'],
  ]
  it.each(cases)('%s', async (_, call, given, field) => {
    const { roundTrips } = await countTraffic(pool, async () => {
      for (const value of given) {
        const error = await call(value as never).catch((thrown: unknown) => thrown)
        expect(error).toBeInstanceOf(InvalidInputError)
        // A refusal inside a value names the path to it.
        expect((error as InvalidInputError).field.startsWith(field)).toBe(true)
      }
    })
    expect(roundTrips).toBe(0)
  })

  it('an option that is misspelled, of every call', async () => {
    const wrong = { ttl: 5 } as never
    const { roundTrips } = await countTraffic(pool, async () => {
      for (const call of [
        () => kv.setIfAbsent('a', 1, wrong),
        () => kv.get('a', wrong),
        () => kv.getMany(['a'], wrong),
        () => kv.set('a', 1, wrong),
        () => kv.compareAndSet('a', 1, 1, wrong),
        () => kv.delete('a', wrong),
        () => kv.patch('a', {}, wrong),
        () => kv.list({ prefix: 'a' }, wrong),
        () => kv.list(wrong),
      ])
        await expect(call()).rejects.toMatchObject({ field: 'ttl', name: 'InvalidInputError' })
    })
    expect(roundTrips).toBe(0)
  })
})
