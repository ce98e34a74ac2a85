import { expect, it } from 'vitest'
import { seededRandom } from './seeded-random.js'

const draws = (seed: number, count = 1_000): number[] => {
  const random = seededRandom(seed)
  return Array.from({ length: count }, random)
}

it('gives the same numbers for the same seed, others for any other', () => {
  expect(draws(7)).toEqual(draws(7))
  const firsts = [0, 1, 2, 3, 2 ** 32, 2 ** 32 + 1, 2 ** 33, 2 ** 33 + 1].map((seed) => draws(seed, 1)[0])
  expect(new Set(firsts).size).toBe(firsts.length)
})

it('spreads them over 0 to 1, with neighboring seeds unlike each other', () => {
  for (const seed of [0, 1, 2, 123_456_789_012]) {
    const all = draws(seed)
    expect(Math.min(...all)).toBeGreaterThanOrEqual(0)
    expect(Math.max(...all)).toBeLessThan(1)
    for (let tenth = 0; tenth < 10; tenth++) {
      const inside = all.filter((value) => Math.floor(value * 10) === tenth).length
      expect(inside).toBeGreaterThan(60)
      expect(inside).toBeLessThan(140)
    }
  }
  const firsts = Array.from({ length: 1_000 }, (_, seed) => draws(seed, 1)[0] ?? 0)
  expect(firsts.filter((value) => value < 0.5).length).toBeGreaterThan(440)
  expect(firsts.filter((value) => value < 0.5).length).toBeLessThan(560)
})
