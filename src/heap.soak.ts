import { expect, it } from 'vitest'
import { heapGrowth } from '../test/watch-heap.js'

const MOST_MB = 2

it.each([
  { work: 'jobs', count: 50_000 },
  { work: 'transactional jobs', count: 20_000 },
  { work: 'statements of an idle worker', count: 100_000 },
  { work: 'an idle minute', count: 60 },
  { work: 'locks', count: 50_000 },
  { work: 'contended locks', count: 20_000 },
  { work: 'semaphores', count: 20_000 },
  { work: 'onces', count: 50_000 },
  { work: 'leased onces', count: 50_000 },
  { work: 'flights', count: 20_000 },
  { work: 'elections', count: 20_000 },
  { work: 'transactions', count: 50_000 },
  { work: 'quotas', count: 50_000 },
  { work: 'rates', count: 50_000 },
])('keeps no memory after $count × $work', async (repeated) => {
  expect(await heapGrowth(repeated), 'MB').toBeLessThan(MOST_MB)
})
