import { vi } from 'vitest'
import { describeAcquireSchedules } from '../../test/claims/explore-acquire.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describeAcquireSchedules((preemptions) => ({ preemptions, schedules: 5_000 }))
