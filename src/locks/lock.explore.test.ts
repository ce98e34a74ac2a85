import { describe, vi } from 'vitest'
import { describeLockSchedules } from '../../test/locks/explore-locks.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describe('locks', () => describeLockSchedules((preemptions) => ({ preemptions, schedules: 5_000 })))
