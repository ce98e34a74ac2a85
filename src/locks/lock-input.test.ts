import { describe, expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { InvalidInputError } from '../errors.js'

const fixture = openClaims()
const refusal = async (promise: Promise<unknown>): Promise<InvalidInputError> => {
  const error = await promise.catch((e) => e)
  expect(error).toBeInstanceOf(InvalidInputError)
  return error as InvalidInputError
}

describe('what is no lock', () => {
  it.each([
    ['', 'must not be empty'],
    [7, 'must be a string'],
    [undefined, 'must be a string'],
    ['x'.repeat(513), 'at most 512 bytes'],
    ['a\0b', 'NUL'],
    ['\ud800', 'surrogate'],
  ])('a name: %o', async (name, reason) => {
    for (const call of ['lock', 'tryLock'] as const) {
      const error = await refusal(fixture.dibs[call](name as string))
      expect(error.field).toBe('name')
      expect(error.message).toContain(reason)
    }
  })

  it.each([
    [{ leaseMs: 0 }, 'leaseMs', 'from 50 to 86400000, not 0'],
    [{ leaseMs: 49 }, 'leaseMs', 'from 50'],
    [{ leaseMs: 86_400_001 }, 'leaseMs', 'to 86400000'],
    [{ leaseMs: Number.NaN }, 'leaseMs', 'NaN'],
    [{ leaseMs: Number.POSITIVE_INFINITY }, 'leaseMs', 'Infinity'],
    [{ leaseMs: '30s' }, 'leaseMs', '"30s"'],
    [{ maxHoldMs: 0 }, 'maxHoldMs', 'from 1'],
    [{ permits: 0 }, 'permits', 'from 1 to 1000, not 0'],
    [{ permits: 1_001 }, 'permits', '1001'],
    [{ permits: 1.5 }, 'permits', '1.5'],
    [{ permits: '2' }, 'permits', '2'],
    [{ holder: '' }, 'holder', 'empty'],
    [{ holder: 'x'.repeat(201) }, 'holder', '200 bytes'],
    [{ ttl: 1_000 }, 'ttl', '. Expected one of: leaseMs'],
    [{ tx: {} }, 'tx', 'dibs.acquire([claim.lock(name)]'],
    [null, 'options', 'object'],
  ])('options: %o', async (options, field, reason) => {
    for (const call of ['lock', 'tryLock'] as const) {
      const error = await refusal(fixture.dibs[call]('x', options as never))
      expect(error.field).toBe(field)
      expect(error.message).toContain(reason)
    }
  })

  it.each([
    [{ waitMs: -1 }, 'waitMs'],
    [{ waitMs: 2 ** 31 }, 'waitMs'],
    [{ signal: {} }, 'signal'],
  ])('options of one that waits: %o', async (options, field) => {
    expect((await refusal(fixture.dibs.lock('x', options as never))).field).toBe(field)
    expect((await refusal(fixture.dibs.withLock('x', options as never, async () => {}))).field).toBe(field)
    expect((await refusal(fixture.dibs.tryLock('x', options as never))).message).toContain('Unknown option')
  })

  it('a function that is none', async () => {
    expect((await refusal(fixture.dibs.withLock('x', {} as never))).field).toBe('fn')
    expect((await refusal(fixture.dibs.withLock('x', {}, undefined as never))).field).toBe('fn')
    expect(await fixture.dibs.locks.inspect('x')).toEqual([])
  })
})

describe('what is a lock', () => {
  it.each(['x', '50 %', 'Grüße 🙂', "'; drop table lock; --", 'a:b:c', 'x'.repeat(512)])(
    '%s',
    async (name) => {
      await using lock = await fixture.dibs.lock(name, { leaseMs: 86_400_000 })
      expect(lock.name).toBe(name)
      expect(await fixture.other.tryLock(name)).toBeNull()
      expect((await fixture.dibs.locks.list({ prefix: name })).items).toHaveLength(1)
    },
  )
})
