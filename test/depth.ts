import { it } from 'vitest'
import type { ExploreBound } from '../src/testing/explore/options.js'

/** True where guards are removed to see which tests notice, and in the soak. */
export const isDeep = Boolean(process.env.DIBS_TEST_DEEP || process.env.SOAK_SECONDS)

/** The preemptions of a run in CI: one less than `npm run mutate` explores, and three less than `npm run soak`. */
export const inShort = (preemptions: number): ExploreBound => ({
  preemptions: isDeep ? preemptions : Math.max(0, preemptions - 1),
  schedules: 5_000,
})

/** A test of many schedules, such as those of three callers. CI runs it; `npm test` and `npm run t` do not. */
export const itInDepth: typeof it = isDeep || process.env.CI ? it : ((() => {}) as unknown as typeof it)
