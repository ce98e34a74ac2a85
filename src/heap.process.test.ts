import { expect, it } from 'vitest'
import { heapGrowth } from '../test/watch-heap.js'

/** Warm code grows by 0.3 MB. With a race against a promise that lives on, jobs grew by 8 MB and an idle worker by 2.5 MB. */
const MOST_MB = 1

it.each([
  { work: 'jobs', count: 1_200 },
  { work: 'statements of an idle worker', count: 6_000 },
  { work: 'calls', count: 300 },
])('keeps no memory after $count × $work', { timeout: 300_000 }, async (repeated) => {
  expect(await heapGrowth(repeated), 'MB').toBeLessThan(MOST_MB)
})
