import { describe, expect, it } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { InvalidInputError } from '../../errors.js'
import { idempotent } from '../adapters/fetch.js'
import { rateLimited } from '../rate-limit/fetch-rate-limit.js'
import type { IdempotencyOptions } from './idempotency-options.js'

const fixture = openClaims()
const handler = () => new Response()

describe('options', () => {
  it.each<[object, string]>([
    [{}, '`scope` must be a function that returns the owner of the key'],
    [{ scope: 'tenant' }, '`scope` must be a function'],
    [{ wrong: 1 }, 'Unknown option "wrong"'],
    [{ mode: 'both' }, "`mode` must be 'joined' or 'leased', not \"both\""],
    [{ leaseMs: 1_000 }, "`leaseMs` is no option in mode 'joined'"],
    [{ mode: 'leased', keepsWrites: () => true }, "`keepsWrites` is no option in mode 'leased'"],
    [{ mode: 'leased', transaction: () => {} }, "`transaction` is no option in mode 'leased'"],
    [{ mode: 'leased', leaseMs: 1 }, '`leaseMs` must be a whole number'],
    [{ mode: 'leased', onAmbiguous: 'maybe' }, "`onAmbiguous` must be 'retry', 'hold' or a function"],
    [{ required: 'yes' }, '`required` must be true or false'],
    [{ methods: [] }, "`methods` must be a list such as ['POST']"],
    [{ methods: ['get'] }, '`methods` has GET, which changes nothing'],
    [{ methods: ['PSOT'] }, '`methods` contains "PSOT", which is not an HTTP method'],
    [
      { fingerprint: () => 1, fingerprintHeaders: ['x'] },
      '`fingerprintHeaders` has no effect beside `fingerprint`',
    ],
    [{ key: () => 'k', header: 'x' }, '`header` has no effect beside `key`. Give only one of them'],
    [{ waitMs: 30_000 }, '`waitMs` must be less than deadlineMs, which is 30000'],
    [{ problemTypes: 5 }, '`problemTypes` must be a string'],
    [{ statuses: { rateLimited: 429 } }, 'Unknown option "statuses.rateLimited"'],
    [{ header: 'no name' }, '`header` must be the name of a header, not "no name"'],
    [{ replayHeaders: ['Set-Cookie'] }, '`replayHeaders` has "Set-Cookie", which belongs to one client'],
    [{ replayHeaders: ['Connection'] }, 'is never replayed'],
    [{ fingerprintHeaders: 'x' }, '`fingerprintHeaders` must be a list of header names'],
    [{ key: 'x' }, '`key` must be a function'],
    [{ normalizePath: '/' }, '`normalizePath` must be a function'],
    [{ keyPattern: 'x' }, '`keyPattern` must be a RegExp'],
    [{ waitMs: -1 }, '`waitMs` must be a whole number'],
    [{ keepMs: 0 }, '`keepMs` must be a whole number'],
    [{ deadlineMs: 0 }, '`deadlineMs` must be a whole number'],
    [
      { store: 'stripe' },
      "`store` must be 'final', 'stripe-v1', 'stripe-v2' or a function of the status, not \"stripe\"",
    ],
    [{ maxResponseBytes: 700_001 }, '`maxResponseBytes` must be a whole number from 0 to 700000'],
    [{ large: {} }, '`large.reference` must be a function'],
    [{ large: { reference: () => 1 } }, '`large.rebuild` must be a function'],
    [{ statuses: { missing: 400 } }, 'Unknown option "statuses.missing"'],
    [
      { statuses: { keyMissing: 200 } },
      '`statuses.keyMissing` must be a whole number from 400 to 599, not 200',
    ],
  ])('%j is refused: %s', (options, message) => {
    const all = Object.keys(options).length === 0 ? options : { scope: 'anonymous', ...options }
    const make = () => idempotent(fixture.dibs, all as IdempotencyOptions<Request>, handler)
    expect(make).toThrow(InvalidInputError)
    expect(make).toThrow(message)
  })

  it('wants a Dibs', () => {
    expect(() => idempotent({} as never, { scope: 'anonymous' }, handler)).toThrow(
      '`dibs` must be what `await Dibs.open()` gave, not a plain object',
    )
  })

  it('of a rate limit', () => {
    const limit = fixture.dibs.rateLimit('api', { algorithm: 'gcra', limit: 1, perMs: 1_000 })
    expect(() => rateLimited(limit, {} as never, handler)).toThrow(
      '`subject` must be a function, not undefined',
    )
    expect(() => rateLimited(limit, { subject: () => 'a', wrong: 1 } as never, handler)).toThrow('"wrong"')
    expect(() => rateLimited({} as never, { subject: () => 'a' }, handler)).toThrow(
      '`limit` must come from `dibs.rateLimit()`, not be a plain object',
    )
    expect(() => rateLimited(limit, { subject: () => 'a', status: 42 }, handler)).toThrow(
      '`status` must be a whole number from 400 to 599, not 42',
    )
  })
})
