import { vi } from 'vitest'
import { describeManySchedules } from '../../test/claims/explore-quota-many.js'
import { inShort } from '../../test/depth.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describeManySchedules(inShort)
