import { describe, expect, it } from 'vitest'
import { openQuotas } from '../../../test/claims/open-quotas.js'
import { InvalidInputError } from '../../errors.js'
import { countTraffic } from '../../testing/index.js'
import type { Quota } from './quota.js'
import type { QuotaOptions } from './quota-spec.js'

const fixture = openQuotas()

const refuses = (field: string) => expect.objectContaining({ name: InvalidInputError.name, field })

describe('defining a quota refuses', () => {
  it.each([
    ['no limit', 'limit', {}],
    ['a limit of nothing', 'limit', { limit: 0 }],
    ['a negative limit', 'limit', { limit: -1 }],
    ['a fraction', 'limit', { limit: 1.5 }],
    ['NaN', 'limit', { limit: Number.NaN }],
    ['infinity', 'limit', { limit: Number.POSITIVE_INFINITY }],
    ['more than is exact', 'limit', { limit: 2 ** 53 }],
    ['a text', 'limit', { limit: '5' }],
    ['an unknown option', 'limits', { limit: 5, limits: 6 }],
    ['an unknown unit', 'per', { limit: 5, per: 'decade' }],
    ['slots', 'per', { limit: 5, per: { cron: '* * * * *' } }],
    ['an unknown zone', 'timeZone', { limit: 5, per: 'day', timeZone: 'Europe/Atlantis' }],
    ['an offset', 'timeZone', { limit: 5, per: 'day', timeZone: '+01:00' }],
    ['a zone without a window', 'timeZone', { limit: 5, timeZone: 'UTC' }],
    ['a zone with an interval', 'timeZone', { limit: 5, perMs: 5, timeZone: 'UTC' }],
    ['an interval of nothing', 'perMs', { limit: 5, perMs: 0 }],
    ['a wait back in time', 'waitMs', { limit: 5, waitMs: -1 }],
    ['a wait beyond a timer', 'waitMs', { limit: 5, waitMs: 2 ** 31 }],
    ['a ledger that is neither', 'ledger', { limit: 5, ledger: 'yes' }],
    ['to keep for no time', 'keepMs', { limit: 5, keepMs: 0 }],
    ['an unknown policy', 'ifLate', { limit: 5, ifLate: 'maybe' }],
    ['what are no options', 'options', null],
  ])('%s', (_, field, options) => {
    expect(() => fixture.dibs.quota('points', options as QuotaOptions)).toThrow(refuses(field))
  })

  it.each([
    ['an empty name', ''],
    ['a NUL', 'a\0b'],
    ['half of a character', 'a\ud800'],
    ['what is too long', 'ä'.repeat(257)],
    ['what is no text', 5],
  ])('%s', (_, name) => {
    expect(() => fixture.dibs.quota(name as string, { limit: 5 })).toThrow(refuses('name'))
  })
})

describe('a call refuses, before it asks', () => {
  const calls: [name: string, field: string, call: (quota: Quota) => Promise<unknown>][] = [
    ['an empty subject', 'subject', (quota) => quota.take('')],
    ['a subject with a NUL', 'subject', (quota) => quota.take('a\0b')],
    ['a subject that is too long', 'subject', (quota) => quota.take('a'.repeat(513))],
    ['a subject that is no text', 'subject', (quota) => quota.take(5 as never)],
    ['a subject that is empty to look at', 'subject', (quota) => quota.peek('')],
    ['a subject that is empty to verify', 'subject', (quota) => quota.verify({ subject: '' })],
    ['nothing', 'amount', (quota) => quota.take('child', 0)],
    ['a negative amount', 'amount', (quota) => quota.take('child', -1)],
    ['a fraction', 'amount', (quota) => quota.tryTake('child', 0.5)],
    ['NaN', 'amount', (quota) => quota.tryTake('child', Number.NaN)],
    ['a text', 'amount', (quota) => quota.take('child', '1' as never)],
    ['to reserve nothing', 'amount', (quota) => quota.reserve('child', 0)],
    ['to reserve for no time', 'leaseMs', (quota) => quota.reserve('child', 1, { leaseMs: 0 })],
    ['to reserve for half a millisecond', 'leaseMs', (quota) => quota.reserve('child', 1, { leaseMs: 0.5 })],
    ['an empty id', 'id', (quota) => quota.take('child', 1, { id: '' })],
    ['an id with a NUL', 'id', (quota) => quota.reserve('child', 1, { id: 'a\0' })],
    ['an id that is too long', 'id', (quota) => quota.refund('a'.repeat(513))],
    ['a limit of nothing', 'limit', (quota) => quota.take('child', 1, { limit: 0 })],
    ['a limit that is no number', 'limit', (quota) => quota.settle('a', 1, { limit: Number.NaN })],
    ['an unknown zone', 'timeZone', (quota) => quota.take('child', 1, { timeZone: 'Mars/Base' })],
    ['a zone that is no name', 'timeZone', (quota) => quota.peek('child', { timeZone: '-05' })],
    ['an unknown option', 'ids', (quota) => quota.take('child', 1, { ids: 'a' } as never)],
    ['an option of another call', 'leaseMs', (quota) => quota.take('child', 1, { leaseMs: 5 } as never)],
    ['an unknown option of reserve', 'ttl', (quota) => quota.reserve('child', 1, { ttl: 5 } as never)],
    ['an unknown option of settle', 'id', (quota) => quota.settle('a', 1, { id: 'b' } as never)],
    ['an unknown option of void', 'limit', (quota) => quota.void('a', { limit: 1 } as never)],
    ['an unknown option of refund', 'limit', (quota) => quota.refund('a', { limit: 1 } as never)],
    ['an unknown option of peek', 'id', (quota) => quota.peek('child', { id: 'a' } as never)],
    ['an unknown option of verify', 'id', (quota) => quota.verify({ id: 'a' } as never)],
    ['to settle with less than nothing', 'actual', (quota) => quota.settle('a', -1)],
    ['to settle with NaN', 'actual', (quota) => quota.settle('a', Number.NaN)],
    ['to refund nothing', 'amount', (quota) => quota.refund('a', { amount: 0 })],
    ['what are no options', 'options', (quota) => quota.take('child', 1, 'id' as never)],
    ['a claim with a transaction', 'tx', async (quota) => quota.claim('child', 1, { tx: {} } as never)],
  ]
  it.each(calls)('%s', async (_, field, call) => {
    const quota = fixture.dibs.quota('points', { limit: 5, per: 'day' })
    const { roundTrips } = await countTraffic(fixture.pool, async () => {
      await expect(call(quota)).rejects.toThrow(refuses(field))
    })
    expect(roundTrips).toBe(0)
  })

  it('a zone where there is no window to begin by it', async () => {
    const stock = fixture.dibs.quota('stock', { limit: 5 })
    await expect(stock.take('sku', 1, { timeZone: 'UTC' })).rejects.toThrow(refuses('timeZone'))
    const tokens = fixture.dibs.quota('tokens', { limit: 5, perMs: 1_000 })
    await expect(tokens.take('a', 1, { timeZone: 'UTC' })).rejects.toThrow(refuses('timeZone'))
  })
})

describe('names and subjects', () => {
  it.each(['a"b', "a'b", '{a,b}', 'a\\b', ' ', 'ż🦊', 'null', 'a'.repeat(512)])('may be %s', async (odd) => {
    const quota = fixture.dibs.quota(odd, { limit: 5 })
    await Promise.all([quota.take('other'), quota.take(odd, 1, { id: odd }), quota.take(odd, 1, { id: odd })])
    expect(await quota.peek(odd)).toMatchObject({ used: 1 })
    expect(await quota.refund(odd)).toEqual({ replayed: false })
  })

  it('may be counted up to what is exact', async () => {
    const quota = fixture.dibs.quota('points', { limit: Number.MAX_SAFE_INTEGER })
    await quota.take('child', Number.MAX_SAFE_INTEGER - 1)
    expect(await quota.tryTake('child', 2)).toMatchObject({ ok: false, remaining: 1 })
    expect(await quota.take('child', 1)).toMatchObject({ used: Number.MAX_SAFE_INTEGER, remaining: 0 })
  })
})
