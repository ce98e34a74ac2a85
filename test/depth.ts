import { it } from 'vitest'
import type { ExploreBound } from '../src/testing/explore/options.js'

/** Everything, where guards are removed to see who notices. */
export const isDeep = Boolean(process.env.DIBS_TEST_ALL || process.env.SOAK_SECONDS)

/** How deep a run looks that somebody waits for: one preemption less than what `npm run mutate` looks at, and three less than `npm run soak`. */
export const inShort = (preemptions: number): ExploreBound => ({
  preemptions: isDeep ? preemptions : Math.max(0, preemptions - 1),
  schedules: 5_000,
})

/** A test that is for `npm run soak` and `npm run mutate`: three callers have many schedules. */
export const itInDepth: typeof it = isDeep ? it : ((() => {}) as unknown as typeof it)
