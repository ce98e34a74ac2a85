import { vi } from 'vitest'
import { describeAcquireSchedules } from '../../test/claims/explore-acquire.js'
import { inShort } from '../../test/depth.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describeAcquireSchedules(inShort)
