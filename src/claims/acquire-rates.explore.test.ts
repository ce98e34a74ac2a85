import { vi } from 'vitest'
import { describeRateSchedules } from '../../test/claims/explore-acquire-rates.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describeRateSchedules((preemptions) => ({ preemptions, schedules: 5_000 }))
