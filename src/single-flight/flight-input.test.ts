import { describe, expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { InvalidInputError } from '../errors.js'
import type { SingleFlightOptions } from './flight-spec.js'

const fixture = openClaims()
const load = async () => 1
const refusal = async (promise: Promise<unknown>): Promise<InvalidInputError> => {
  const error = await promise.catch((e) => e)
  expect(error).toBeInstanceOf(InvalidInputError)
  return error as InvalidInputError
}

describe('what is no flight', () => {
  it.each([
    ['', 'must not be empty'],
    [7, 'must be a string, not a number'],
    [undefined, 'must be a string, not undefined'],
    ['x'.repeat(506), 'must be at most 505 bytes long, and is 506'],
    ['a\0b', 'NUL'],
    ['\ud800', 'surrogate'],
  ])('a key: %o', async (key, reason) => {
    for (const call of [
      fixture.dibs.singleFlight(key as string, load),
      fixture.dibs.singleFlight.forget(key as string),
    ]) {
      const error = await refusal(call)
      expect(error.field).toBe('key')
      expect(error.message).toContain(reason)
    }
  })

  it.each([
    [{ ttlMs: -1 }, 'ttlMs', 'from 0'],
    [{ ttlMs: '60s' }, 'ttlMs', '"60s"'],
    [{ ttlMs: Number.POSITIVE_INFINITY }, 'ttlMs', 'Infinity'],
    [{ staleMs: 0.5 }, 'staleMs', '0.5'],
    [{ errorTtlMs: Number.NaN }, 'errorTtlMs', 'NaN'],
    [{ waitMs: 2 ** 31 }, 'waitMs', 'to 2147483647'],
    [{ leaseMs: 49 }, 'leaseMs', 'from 50 to 86400000, not 49'],
    [{ ifBusy: 'wait' }, 'ifBusy', "must be 'fail', 'load' or 'serve-stale', not \"wait\""],
    [{ ifBusy: null }, 'ifBusy', 'not null'],
    [{ refreshEarly: -1 }, 'refreshEarly', 'from 0 to 10, not -1'],
    [{ refreshEarly: Number.NaN }, 'refreshEarly', 'not NaN'],
    [{ refreshEarly: true }, 'refreshEarly', 'not true'],
    [{ signal: {} }, 'signal', 'must be an AbortSignal, not a plain object'],
    [{ result: {} }, 'result', 'Standard Schema'],
    [{ ttl: 5 }, 'ttl', 'Expected one of: ttlMs, staleMs'],
    [{ tx: fixture.pool }, 'tx', 'is no option here: what is shared'],
    [null, 'options', 'must be an object, not null'],
    ['x', 'options', 'must be an object, not a string'],
  ])('options: %o', async (options, field, reason) => {
    const error = await refusal(fixture.dibs.singleFlight('k', options as SingleFlightOptions<number>, load))
    expect(error.field).toBe(field)
    expect(error.message).toContain(reason)
  })

  it('something else than a function', async () => {
    const error = await refusal(fixture.dibs.singleFlight('k', 'load' as unknown as typeof load))
    expect(error).toMatchObject({ field: 'load', message: '`load` must be a function, not a string.' })
  })
})
