import { describe, expect, it } from 'vitest'
import { callersOf } from '../../../test/claims/callers.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { InvalidInputError, InvalidOutcomeError } from '../../errors.js'
import { countTraffic } from '../../testing/count-traffic.js'

const fixture = openClaims()
const at = { scope: 'orders', key: 'k' }
const { write } = callersOf(fixture, at)
describe('bad input is refused before anything is sent', () => {
  const bad: [string, object, string][] = [
    ['an empty key', { key: '' }, '`key` must not be empty'],
    ['a huge key', { key: 'x'.repeat(513) }, '`key` must be at most 512 bytes'],
    ['NUL in a key', { key: 'a\0b' }, '`key` must not hold a NUL'],
    ['half a surrogate pair', { key: 'a\ud800' }, '`key` must not hold half of a surrogate pair'],
    ['a number as key', { key: 7 }, '`key` must be a string, not a number'],
    ['no scope', { scope: undefined }, '`scope` must be a string, not undefined'],
    ['a scope of ours', { scope: ':charge' }, '`scope` must not begin with ":"'],
    ['an empty part of a scope', { scope: ['a', ''] }, '`scope` must not contain an empty string'],
    ['NaN in a scope', { scope: ['a', Number.NaN] }, '`scope` must be strings or whole numbers, not NaN'],
    ['no part of a scope', { scope: [] }, '`scope` must not be empty'],
    ['a negative wait', { waitMs: -1 }, '`waitMs` must be a whole number of milliseconds from 0'],
    ['a wait without a length', { wait: false }, 'Unknown option "wait"'],
    ['a negative time to keep', { keepMs: -5 }, '`keepMs` must be'],
    ['a fraction of a millisecond', { keepMs: 0.5 }, '`keepMs` must be'],
    [
      'a fingerprint that is no JSON',
      { fingerprint: { n: 1n } },
      '`fingerprint.n` is a bigint, which JSON cannot store',
    ],
    ['NUL in a fingerprint', { fingerprint: 'a\0' }, '`fingerprint` must not hold a NUL'],
    [
      'a misspelled option',
      { fingerPrint: 1 },
      'Unknown option "fingerPrint". Did you mean fingerprint? Expected one of: scope, key',
    ],
    ['an option of the other mode', { leaseMs: 1_000 }, 'Unknown option "leaseMs"'],
    ['another mode', { mode: 'safe' }, "`mode` must be 'joined' or 'leased'"],
    [
      'a lease that is too short',
      { mode: 'leased', leaseMs: 50 },
      '`leaseMs` must be a whole number of milliseconds from 100',
    ],
    ['no attempts', { mode: 'leased', maxAttempts: 0 }, '`maxAttempts` must be'],
    [
      'another policy',
      { mode: 'leased', onAmbiguous: 'never' },
      "`onAmbiguous` must be 'retry', 'hold' or a function",
    ],
    ['what is no schema', { result: {} }, '`result` must be a Standard Schema'],
    ['a rule that is no function', { isTerminal: true }, '`isTerminal` must be a function'],
  ]
  it.each(bad)('%s', async (_, change, message) => {
    const { value, roundTrips } = await countTraffic(fixture.pool, () =>
      fixture.dibs.once({ ...at, ...change } as never, async () => 1).catch((error) => error),
    )
    expect(value).toBeInstanceOf(InvalidInputError)
    expect(value.message).toContain(message)
    expect(roundTrips).toBe(0)
  })

  const values: [string, unknown, string][] = [
    ['a bigint', { n: 1n }, '`outcome.n` is a bigint, which JSON cannot store'],
    ['NaN', [Number.NaN], '`outcome[0]` is NaN, which JSON cannot store'],
    // biome-ignore lint/suspicious/noSparseArray: what is not there is undefined
    ['a hole', [1, , 2], '`outcome[1]` is undefined, which JSON cannot store in an array'],
    ['a function', () => {}, '`outcome` is a function, which JSON cannot store'],
    [
      'an array that says it is a Set',
      [Object.assign([1], { toJSON: () => new Set() })],
      '`outcome[0]` is a Set, which JSON cannot store',
    ],
    ['a Map', { m: new Map() }, '`outcome.m` is a Map, which JSON cannot store'],
    ['a NUL', { t: 'a\0' }, '`outcome.t` must not hold a NUL character'],
    ['half a surrogate pair', ['\ud800'], '`outcome[0]` must not hold half of a surrogate pair'],
    ['too much', 'x'.repeat(1_048_577), '`outcome` must be at most 1048576 bytes as JSON, and is 1048579'],
    ['a depth without end', deep(600), '`outcome` must not be nested deeper than 500 levels'],
  ]
  it.each(values)('an outcome that is %s leaves nothing behind', async (_, value, message) => {
    const failed = fixture.dibs.once(at, async (tx) => {
      await write('a')(tx)
      return value
    })
    await expect(failed).rejects.toThrow(InvalidOutcomeError)
    await expect(failed).rejects.toThrow(message)
    expect(await fixture.logged()).toEqual([])
    expect(await fixture.dibs.claims.get(at)).toBeUndefined()
  })

  it('but a backslash before u0000 is only text', async () => {
    expect(await fixture.dibs.once(at, async () => '\\u0000 \\ud800')).toBe('\\u0000 \\ud800')
  })

  it('what throws when it is read', async () => {
    const broken = {
      get text() {
        throw new Error('no text')
      },
    }
    await expect(fixture.dibs.once(at, async () => broken as never)).rejects.toThrow(
      '`outcome.text` cannot be read: no text',
    )
  })

  it('a circle', async () => {
    const circle: Record<string, unknown> = {}
    circle.self = circle
    await expect(fixture.dibs.once(at, async () => circle as never)).rejects.toThrow(
      '`outcome.self` refers back to an object that contains it',
    )
  })
})

function deep(levels: number): unknown {
  let value: unknown = 1
  for (let n = 0; n < levels; n++) value = [value]
  return value
}
