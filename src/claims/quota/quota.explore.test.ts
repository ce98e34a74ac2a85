import { vi } from 'vitest'
import { describeQuotaSchedules } from '../../../test/claims/explore-quota.js'
import { inShort } from '../../../test/depth.js'

// Some go through a hundred schedules; on a machine that has other things to do that takes a while.
vi.setConfig({ testTimeout: 120_000 })

/** All orders in which nobody is left though they could go on; one preemption with mutations, more and all of two with `npm run soak`. */
describeQuotaSchedules(() => inShort(1))
