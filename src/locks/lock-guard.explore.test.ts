import { describe, vi } from 'vitest'
import { inShort } from '../../test/depth.js'
import { describeGuardSchedules } from '../../test/locks/explore-locks.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describe.each(['read committed', 'repeatable read'] as const)('guard at %s', (isolation) => {
  describeGuardSchedules(inShort, isolation)
})
