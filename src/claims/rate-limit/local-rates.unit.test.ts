import { describe, expect, it } from 'vitest'
import { LocalRates } from './local-rates.js'
import { checkRateSpec } from './rate-spec.js'

const spec = checkRateSpec('r', { algorithm: 'token-bucket', limit: 2, perMs: 1_000 })

describe('a limit in this process', () => {
  it('counts each subject by a clock of its own', () => {
    const rates = new LocalRates(spec)
    expect(rates.take('a', 2)).toMatchObject({ granted: true, remaining: 0 })
    expect(rates.take('a', 1)).toMatchObject({ granted: false })
    expect(rates.take('b', 1)).toMatchObject({ granted: true, remaining: 1 })
    expect(rates.take('b', 0)).toMatchObject({ granted: true, remaining: 1 })
    expect(rates.size).toBe(2)
  })

  it('has its windows where the database has them', () => {
    const day = checkRateSpec('r', { algorithm: 'fixed-window', limit: 2, perMs: 86_400_000 })
    const { resetUs } = new LocalRates(day).take('a', 1)
    const leftMs = 86_400_000 - (Date.now() % 86_400_000)
    expect(Math.abs(resetUs / 1_000 - leftMs) % 86_400_000).toBeLessThan(60_000)
  })

  it('keeps no more than so many subjects, those that were used last', () => {
    const rates = new LocalRates(spec, 3)
    for (const subject of ['a', 'b', 'c', 'a', 'd']) rates.take(subject, 1, 1n)
    expect(rates.size).toBe(3)
    expect(rates.take('a', 0, 1n)).toMatchObject({ remaining: 0 })
    expect(rates.take('b', 0, 1n)).toMatchObject({ remaining: 2 })
  })

  it('drops subjects that are as if unused', () => {
    const rates = new LocalRates(spec)
    for (let n = 0; n < 100; n++) rates.take(`old ${n}`, 1, BigInt(n))
    for (let n = 0; n < 100; n++) rates.take(`new ${n}`, 1, 10_000_000n + BigInt(n))
    expect(rates.size).toBe(100)
  })
})
