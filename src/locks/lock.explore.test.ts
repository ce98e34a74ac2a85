import { describe, vi } from 'vitest'
import { inShort } from '../../test/depth.js'
import { describeLockSchedules } from '../../test/locks/explore-locks.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describe('locks', () => describeLockSchedules(inShort))
