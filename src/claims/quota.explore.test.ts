import { vi } from 'vitest'
import { describeQuotaSchedules } from '../../test/claims/explore-quota.js'

// Some go through a hundred schedules; on a machine that has other things to do that takes a while.
vi.setConfig({ testTimeout: 120_000 })

/** All orders in which somebody is left once though they could go on. More, and all of two, are for `npm run soak`. */
describeQuotaSchedules(() => ({ preemptions: 1, schedules: 5_000 }))
