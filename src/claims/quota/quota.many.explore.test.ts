import { vi } from 'vitest'
import { describeManySchedules } from '../../../test/claims/explore-quota-many.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describeManySchedules((preemptions) => ({ preemptions, schedules: 5_000 }))
